// The records that rows name (level_format.h) are counted and numbered anew: a thread block per
// KV head. Cost: a word of each row is read and written twice at most, and a word per record.

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "rows/cuda/level_format.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 1024;

struct FindParams {
  FindRecordsCall call;
  PlacedSide keys, values;
};

/// to[i] <- how many of numbers[0], ..., numbers[i - 1] are not 0, for those that are not 0; -1 for
/// the others. Returns how many there are in all, in every thread.
__device__ inline int number_marks(int* numbers, int count) {
  __shared__ int warps[kThreads / kWarp], total;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) total = 0;
  for (int first = 0; first < count; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool mark = i < count && numbers[i] != 0;
    const unsigned votes = __ballot_sync(~0u, mark);
    if (lane == 0) warps[warp] = __popc(votes);
    __syncthreads();
    int before = total;
    for (int w = 0; w < warp; ++w) before += warps[w];
    if (i < count) numbers[i] = mark ? before + __popc(votes & ((1u << lane) - 1)) : -1;
    __syncthreads();
    if (threadIdx.x == kThreads - 1) total = before + __popc(votes);
    __syncthreads();
  }
  return total;
}

__global__ void __launch_bounds__(kThreads) find_kernel(const __grid_constant__ FindParams p) {
  const FindRecordsCall& c = p.call;
  const int head = blockIdx.x;
  int* numbers = c.numbers + static_cast<size_t>(head) * c.records;
  // The number of a row, as one side has it: both have the same.
  const auto number_of = [&](bool keys, int row) -> int& {
    const PlacedSide& f = keys ? p.keys : p.values;
    auto* sides = static_cast<char*>(keys ? c.rows.key_side : c.rows.value_side);
    char* side = sides + (head * c.rows.stride + row / kBlockRows) * f.at.side;
    return reinterpret_cast<int*>(side + f.at.numbers)[row % kBlockRows];
  };
  const bool in_keys = p.keys.record_bytes > 0, in_values = p.values.record_bytes > 0;
  const int shift = in_keys ? p.keys.record_shift : p.values.record_shift;
  for (int i = threadIdx.x; i < c.records; i += kThreads) numbers[i] = 0;
  __syncthreads();
  for (int row = threadIdx.x; row < c.count; row += kThreads) {
    numbers[number_of(in_keys, row) >> shift] = 1;  // all write the same
  }
  __syncthreads();
  const int named = number_marks(numbers, c.records);
  if (threadIdx.x == 0) c.named[head] = named;
  for (int row = threadIdx.x; row < c.count; row += kThreads) {
    const int old = number_of(in_keys, row);
    const int fresh = (numbers[old >> shift] << shift) + (old & ((1 << shift) - 1));
    if (in_keys) number_of(true, row) = fresh;
    if (in_values) number_of(false, row) = fresh;
  }
}

}  // namespace

void find_level_records(const LevelFormat& format, const FindRecordsCall& call,
                        cudaStream_t stream) {
  const FindParams params{call, {format.keys, call.head_dim}, {format.values, call.head_dim}};
  launch_kernel(find_kernel, {call.heads, kThreads}, stream, "records of coded rows", params);
}

}  // namespace pith::cuda
