// Means of the first rows of each KV head before RoPE: a thread per channel, sums in f64.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/turn.cuh"
#include "rows/cuda/level_means.h"

namespace pith::cuda {
namespace {

struct MeanParams {
  HeadSample sample;
  const double* turns;  // [D/2]
  __half* means;        // [heads, D]
};

template <class T, int D>
__global__ void __launch_bounds__(D) mean_kernel(const __grid_constant__ MeanParams p) {
  const HeadSample& sample = p.sample;
  const int head = blockIdx.x, channel = threadIdx.x;
  const T* rows = static_cast<const T*>(sample.rows) + head * sample.head_stride;
  double sum = 0;
#pragma unroll 4
  for (int t = 0; t < sample.count; ++t) {
    const float x = turned_back(rows + static_cast<size_t>(t) * D, channel, D, p.turns,
                                sample.positions.of(head, t));
    sum += __half2float(__float2half_rn(x));
  }
  p.means[head * D + channel] = __float2half_rn(static_cast<float>(sum / sample.count));
}

}  // namespace

void learn_means(uint16_t* means, const double* turns, const HeadSample& sample,
                 cudaStream_t stream) {
  with_rows_of<256>(sample.dtype, sample.dim, [&]<class T, int D>() {
    launch_kernel(mean_kernel<T, D>, {sample.heads, D}, stream, "means of keys before RoPE",
                  MeanParams{sample, turns, reinterpret_cast<__half*>(means)});
  });
}

}  // namespace pith::cuda
