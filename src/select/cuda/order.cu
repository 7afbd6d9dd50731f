// The needs of selections of rows in codes beside those of dense rows (choose.cu): the numbers of
// rows in their new order, which codecs move them by, and weights of rows one by one.

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "select/cuda/judged_rows.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    order_kernel(const __grid_constant__ NewOrder order, const int32_t* all_kept, int32_t* all_to,
                 size_t stride) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= order.named + order.behind) return;
  const int32_t* kept = all_kept + blockIdx.y * stride;
  const int row =
      i < order.named ? kept[(order.begin + i) % order.rows] : order.rows + i - order.named;
  all_to[blockIdx.y * stride + i] = order.first + row;
}

__global__ void __launch_bounds__(kThreads) fill_kernel(float* to, size_t count, float value) {
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = value;
}

unsigned blocks_for(size_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

const int32_t* order_rows(const SelectSpace& space, const NewOrder& order, cudaStream_t stream) {
  auto* to = reinterpret_cast<int32_t*>(space.keys);
  const auto count = static_cast<size_t>(order.named + order.behind);
  if (count == 0) return to;
  launch_kernel(order_kernel, {dim3(blocks_for(count), order.heads), kThreads}, stream,
                "the order of coded rows", order, space.kept, to, space.stride);
  return to;
}

void fill_numbers(float* to, size_t count, float value, cudaStream_t stream) {
  if (count == 0) return;
  launch_kernel(fill_kernel, {blocks_for(count), kThreads}, stream, "weights of coded rows", to,
                count, value);
}

}  // namespace pith::cuda
