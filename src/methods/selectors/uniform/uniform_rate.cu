#include "kernels/cuda/device.h"
#include "kernels/cuda/grouped_layout.h"
#include "kernels/cuda/launch.cuh"
#include "methods/selectors/uniform/uniform_rate_cuda.h"
#include "select/draws.h"

namespace pith::cuda {
namespace {

constexpr int kWarpSize = 32, kThreads = 256, kWarps = kThreads / kWarpSize;

/// A block per head and job: which of 256 rows stay, then their move.
__global__ void __launch_bounds__(kThreads)
    take_kernel(const __grid_constant__ RateDraw draw, const __grid_constant__ RateJobs jobs) {
  __shared__ int kept[kThreads], of_warp[kWarps];
  const RateJob& job = jobs.job[blockIdx.y];
  const RateSample& to = job.sample;
  const int head = blockIdx.x, lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int pieces = draw.dim / 8;  // of 16 bytes
  int held = to.counts[head];
  const int gone = to.coded ? to.coded[head] : 0;
  const size_t first_to = static_cast<size_t>(head) * to.capacity;
  int32_t* positions = to.positions + static_cast<size_t>(head) * to.positions_stride;
  const auto* k = static_cast<const uint4*>(job.k) + head * (job.head_stride / 8);
  const auto* v = static_cast<const uint4*>(job.v) + head * (job.head_stride / 8);
  const int32_t* given = job.positions ? job.positions + head * job.positions_stride : nullptr;
  const Philox random(draw.seed, job.layer, job.first_head + head);
  for (int first = 0; first < job.rows; first += kThreads) {
    const int row = first + static_cast<int>(threadIdx.x);
    const int64_t position = given && row < job.rows ? given[row] : job.position + row;
    const bool stays = row < job.rows && stays_by_rate(random, position, draw.rate);
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
      positions[held + at] = static_cast<int32_t>(position);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count * pieces; i += kThreads) {
      const size_t from = static_cast<size_t>(kept[i / pieces]) * pieces + i % pieces;
      const size_t at_row = (first_to + held - gone) * pieces + i;
      static_cast<uint4*>(to.k)[at_row] = k[from];
      static_cast<uint4*>(to.v)[at_row] = v[from];
    }
    held += count;
    __syncthreads();  // the list is read
  }
  if (threadIdx.x == 0) to.counts[head] = held;
}

/// 16 bytes per thread.
__device__ inline void copy_bytes(void* to, const void* from, size_t bytes) {
  for (size_t i = threadIdx.x; i < bytes / 16; i += kThreads) {
    static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
  }
}

/// A block per head and job.
__global__ void __launch_bounds__(kThreads) groups_kernel(const __grid_constant__ GroupShape shape,
                                                          const __grid_constant__ GroupJobs jobs) {
  const GroupJob& job = jobs.job[blockIdx.y];
  const int head = blockIdx.x;
  const int held = job.counts[head], before = job.coded[head];
  const int fresh = (held - before) / shape.group * shape.group, left = held - before - fresh;
  const auto move = [&](void* to, const void* from, size_t bytes) {  // of a block
    const size_t first = head * job.to.stride + static_cast<size_t>(before / kBlockRows);
    copy_bytes(static_cast<char*>(to) + first * bytes,
               static_cast<const char*>(from) + head * job.from.stride * bytes,
               fresh / kBlockRows * bytes);
  };
  move(job.to.key_codes, job.from.key_codes, shape.bytes.key_codes);
  move(job.to.key_side, job.from.key_side, shape.bytes.key_side);
  move(job.to.value_codes, job.from.value_codes, shape.bytes.value_codes);
  move(job.to.value_side, job.from.value_side, shape.bytes.value_side);
  // Apart: those left over are fewer than a group.
  const auto keep = [&](void* to, const void* from) {
    const size_t row = shape.dim * 2;
    copy_bytes(static_cast<char*>(to) + head * job.tail.head_stride * 2,
               static_cast<const char*>(from) + head * job.rows.head_stride * 2 + fresh * row,
               left * row);
  };
  if (fresh > 0 || job.tail.k != job.rows.k) {
    keep(job.tail.k, job.rows.k);
    keep(job.tail.v, job.rows.v);
  }
  __syncthreads();  // all have read how many were coded
  if (threadIdx.x > 0) return;
  job.coded[head] = before + fresh;
  job.waiting[head] = left;
}

}  // namespace

void take_groups(const GroupShape& shape, const GroupJobs& jobs, cudaStream_t stream) {
  launch_kernel(groups_kernel, {dim3(shape.heads, jobs.count), kThreads}, stream,
                "codes of a sample", shape, jobs);
}

void take_by_rate(const RateDraw& draw, const RateJobs& jobs, cudaStream_t stream) {
  launch_kernel(take_kernel, {dim3(draw.heads, jobs.count), kThreads}, stream, "a sample", draw,
                jobs);
}

}  // namespace pith::cuda
