#include "attend/cuda/decode_kernel.cuh"
#include "methods/qjl/qjl_tiles.cuh"

namespace pith::cuda {
namespace {

template <int kSketch>
struct Codec {
  template <int D>
  using Of = GroupedTiles<QjlKeys<D, kSketch>, TokenValues<D, 2, true>>;
};

/// sketch[head, i] = <rows[i], q[head]>: a warp a row of the projection.
template <class T>
__global__ void __launch_bounds__(256)
    sketch_kernel(float* sketch, const T* q, const float* rows, int count, int dim) {
  const int lane = threadIdx.x % kWarp, i = blockIdx.x * 8 + threadIdx.x / kWarp;
  if (i >= count) return;
  const T* query = q + static_cast<size_t>(blockIdx.y) * dim;
  float sum = 0;
  for (int d = lane; d < dim; d += kWarp) {
    sum += rows[static_cast<size_t>(i) * dim + d] * static_cast<float>(query[d]);
  }
  sum = sum_over_rows(sum);
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  if (lane == 0) sketch[static_cast<size_t>(blockIdx.y) * count + i] = sum;
}

}  // namespace

void decode_qjl(const QjlProjection& projection, const DecodeCall& call, float* q_sketch,
                const DecodeScratch& scratch, cudaStream_t stream) {
  projection.check();
  call.check();
  const int count = projection.m + kQjlOutlierSketch, dim = projection.head_dim;
  const dim3 grid((count + 7) / 8, call.shape.sequences * call.shape.query_heads);
  if (call.dtype == DType::kBF16) {
    sketch_kernel<<<grid, 256, 0, stream>>>(q_sketch, static_cast<const __nv_bfloat16*>(call.q),
                                            projection.rows, count, dim);
  } else {
    sketch_kernel<<<grid, 256, 0, stream>>>(q_sketch, static_cast<const __half*>(call.q),
                                            projection.rows, count, dim);
  }
  check(cudaGetLastError(), "sketches of queries");
  DecodeCall sketched = call;
  sketched.q_sketch = q_sketch;
  projection.m == 256 ? launch_decode<Codec<256>>(sketched, scratch, count, stream)
                      : launch_decode<Codec<512>>(sketched, scratch, count, stream);
}

}  // namespace pith::cuda
