#include "kernels/cuda/device.h"
#include "kernels/cuda/philox.cuh"
#include "methods/baselines/uniform_cuda.h"

namespace pith::cuda {
namespace {

constexpr int kWarpSize = 32, kThreads = 256, kWarps = kThreads / kWarpSize;

/// A block a head and job: which of 256 rows stay, then their move.
__global__ void __launch_bounds__(kThreads)
    take_kernel(const __grid_constant__ RateDraw draw, const __grid_constant__ RateJobs jobs) {
  __shared__ int kept[kThreads], of_warp[kWarps];
  const RateJob& job = jobs.job[blockIdx.y];
  const RateSample& to = job.sample;
  const int head = blockIdx.x, lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int pieces = draw.dim / 8;  // of 16 bytes
  const size_t first_to = static_cast<size_t>(head) * to.capacity;
  const auto* k = static_cast<const uint4*>(job.k) + head * (job.head_stride / 8);
  const auto* v = static_cast<const uint4*>(job.v) + head * (job.head_stride / 8);
  const int32_t* given = job.positions ? job.positions + head * job.positions_stride : nullptr;
  const auto random = DevicePhilox::make(draw.seed, job.layer, job.first_head + head);
  int held = to.counts[head];
  for (int first = 0; first < job.rows; first += kThreads) {
    const int row = first + static_cast<int>(threadIdx.x);
    const int64_t position = given && row < job.rows ? given[row] : job.position + row;
    const bool stays =
        row < job.rows && random.uniform(static_cast<uint64_t>(position), 0) < draw.rate;
    const uint32_t votes = __ballot_sync(~0u, stays);
    if (lane == 0) of_warp[warp] = __popc(votes);
    __syncthreads();
    int at = __popc(votes & ((1u << lane) - 1)), count = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) at += of_warp[w];
      count += of_warp[w];
    }
    if (stays) {
      kept[at] = row;
      to.positions[first_to + held + at] = static_cast<int32_t>(position);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count * pieces; i += kThreads) {
      const size_t from = static_cast<size_t>(kept[i / pieces]) * pieces + i % pieces;
      const size_t at_row = (first_to + held) * pieces + i;
      static_cast<uint4*>(to.k)[at_row] = k[from];
      static_cast<uint4*>(to.v)[at_row] = v[from];
    }
    held += count;
    __syncthreads();  // the list is read
  }
  if (threadIdx.x == 0) to.counts[head] = held;
}

}  // namespace

void take_by_rate(const RateDraw& draw, const RateJobs& jobs, cudaStream_t stream) {
  take_kernel<<<dim3(draw.heads, jobs.count), kThreads, 0, stream>>>(draw, jobs);
  check(cudaGetLastError(), "a sample");
}

}  // namespace pith::cuda
