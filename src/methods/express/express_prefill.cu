// Picks of strata, and a coreset's way from lists of row numbers into a store.

#include "compress/draws.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "methods/express/express_prefill.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;

__device__ int32_t pick_of(const PickJob& job, int i, const Philox& random,
                           int64_t first_position) {
  const int32_t first = job.first + i * job.stratum;
  int32_t pick = first;
  for (int32_t nth = 2; nth <= job.size; ++nth) {
    const int64_t position = first_position + first + nth - 1;
    if (becomes_pick(random, position, kStratumTag, nth)) pick = first + nth - 1;
  }
  return pick;
}

__device__ Philox random_of(const PickSource& source) {
  return Philox(source.seed, source.layer, source.first_head + blockIdx.y);
}

__global__ void __launch_bounds__(kThreads)
    pick_kernel(PickJob job, PickSource source, int32_t* pool, size_t pool_stride) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= job.count) return;
  pool[blockIdx.y * pool_stride + job.to + i] =
      pick_of(job, i, random_of(source), source.first_position);
}

__global__ void __launch_bounds__(kThreads)
    pick_partial_kernel(const PickJob* jobs, int count, PickSource source, int32_t* pool,
                        size_t pool_stride) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= count) return;
  pool[blockIdx.y * pool_stride + jobs[i].to] =
      pick_of(jobs[i], 0, random_of(source), source.first_position);
}

/// One block a head.
__global__ void __launch_bounds__(kThreads)
    store_kernel(StoreJob job, int pieces, const __grid_constant__ ExpressArrays to) {
  const size_t head = blockIdx.x;
  const char* k = static_cast<const char*>(job.k.data) + head * job.k.head_stride * 2;
  const char* v = static_cast<const char*>(job.v.data) + head * job.v.head_stride * 2;
  int at = 0;
  for (int s = 0; s < job.count; ++s) {
    const PrefillSegment segment = job.segments[s];
    for (int i = threadIdx.x; i < segment.count * pieces; i += kThreads) {
      const size_t row = head * to.capacity + at + i / pieces;
      const int piece = i % pieces;
      const size_t from = job.pool[head * job.pool_stride + segment.first + i / pieces];
      static_cast<uint4*>(to.k)[row * pieces + piece] =
          reinterpret_cast<const uint4*>(k + from * job.k.row_stride * 2)[piece];
      static_cast<uint4*>(to.v)[row * pieces + piece] =
          reinterpret_cast<const uint4*>(v + from * job.v.row_stride * 2)[piece];
      if (piece != 0) continue;
      to.log_weights[row] = segment.log_weight;
      to.positions[row] = job.first_position + static_cast<int64_t>(from);
    }
    at += segment.count;
  }
}

}  // namespace

void pick_rows(const PickJob& job, const PickSource& source, int32_t* pool, int pool_stride,
               int heads, cudaStream_t stream) {
  const dim3 grid((job.count + kThreads - 1) / kThreads, heads);
  launch_kernel(pick_kernel, {grid, kThreads}, stream, "express picks", job, source, pool,
                pool_stride);
}

void pick_partial_rows(const PickJob* jobs, int count, const PickSource& source, int32_t* pool,
                       int pool_stride, int heads, cudaStream_t stream) {
  const dim3 grid((count + kThreads - 1) / kThreads, heads);
  launch_kernel(pick_partial_kernel, {grid, kThreads}, stream, "express picks", jobs, count, source,
                pool, pool_stride);
}

void store_rows(const StoreJob& job, const ExpressSite& site, const ExpressArrays& to,
                cudaStream_t stream) {
  launch_kernel(store_kernel, {site.heads, kThreads}, stream, "express store", job, site.dim / 8,
                to);
}

}  // namespace pith::cuda
