#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "select/cuda/halving_run.cuh"
#include "select/cuda/halving_warp.cuh"

namespace pith::cuda {
namespace {

/// Raises random rows of the other side to the kept one until that has half of the run. Keys of the
/// order are words of the rows' own, so that each row finds its rank by itself.
__device__ void fill_to_half(float* signs, const RunRows& rows, const HalvingRandom& random,
                             int missing) {
  const auto key = [&](int i) { return random.order(rows.position(i)); };
  for (int i = threadIdx.x; i < rows.count; i += kWalkThreads) {
    if (signs[i] > 0) continue;
    const uint32_t mine = key(i);
    int rank = 0;
    for (int j = 0; j < rows.count && rank < missing; ++j) {
      if (j == i || signs[j] > 0.0f) continue;
      const uint32_t other = key(j);
      rank += other < mine || (other == mine && j < i);
    }
    // Others still count this row among theirs: marked now, raised when all have their rank.
    if (rank < missing) signs[i] = -2;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows.count; i += kWalkThreads) {
    if (signs[i] == -2) signs[i] = 1;
  }
  __syncthreads();
}

/// The side of a walk over rows that stays, in order.
__device__ void keep_side(const RunOutput& out, const RunRows& rows, float* signs,
                          const DeviceHalvingRule& rule, const HalvingRandom& random, bool flip) {
  __shared__ int warp_counts[kWalkThreads / kWarp];
  int ones = 0;
  for (int first = 0; first < rows.count; first += kWalkThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    ones += __syncthreads_count(i < rows.count && signs[i] > 0);
  }
  bool keep_plus = 2 * ones < rows.count || (2 * ones == rows.count && flip);
  if (rule.coin_side && rule.walk == DeviceWalk::kRows) keep_plus = random.side(rows.position(0));
  for (int i = threadIdx.x; i < rows.count && !keep_plus; i += kWalkThreads) signs[i] = -signs[i];
  __syncthreads();
  const int count = keep_plus ? ones : rows.count - ones;
  if (rule.walk == DeviceWalk::kRowsExact && count < rows.count / 2) {
    fill_to_half(signs, rows, random, rows.count / 2 - count);
  }
  int before = 0;
  for (int first = 0; first < rows.count; first += kWalkThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool stays = i < rows.count && signs[i] > 0;
    const uint32_t votes = __ballot_sync(~0u, stays);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (lane == 0) warp_counts[warp] = __popc(votes);
    __syncthreads();
    int at = before + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kWalkThreads / kWarp; ++w) {
      if (w < warp) at += warp_counts[w];
      before += warp_counts[w];
    }
    if (stays) out.kept[at] = rows.number(i);
    __syncthreads();
  }
  if (out.count && threadIdx.x == 0) *out.count = before;
}

template <class T, int D>
__global__ void __launch_bounds__(kWalkThreads, D > 128 ? 1 : 2)
    halve_kernel(const __grid_constant__ DeviceHalvingRule rule,
                 const __grid_constant__ HalvingCall call, int kept_size) {
  auto* shared = launched_shared<char>();
  const size_t group = blockIdx.x, head = blockIdx.y;
  const RunRows rows = rows_of(call, head, group);
  const RunSpace<D> space{shared, RunSpace<D>::padded(call.size)};
  const HalvingRandom random = random_of(call, head);
  const bool flip = random.coin(rows.position(0));
  HalvingBlock<T, D> block{rule, rows, space};
  const int failures = block.run(random, flip);
  const RunOutput out = output_of(call, head, group, kept_size);
  if (rule.walk == DeviceWalk::kPairs) {
    keep_pairs(out, rows, space.signs(), flip, threadIdx.x, kWalkThreads);
  } else {
    keep_side(out, rows, space.signs(), rule, random, flip);
  }
  if (out.failures && threadIdx.x == 0) *out.failures = failures;
}

constexpr int kWarps = 4;  // of a block whose warps have a run each

template <class T, int D>
__global__ void __launch_bounds__(kWarps* kWarp)
    halve_small_kernel(const __grid_constant__ DeviceHalvingRule rule,
                       const __grid_constant__ HalvingCall call, int kept_size) {
  __shared__ WarpSpace spaces[kWarps];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const size_t group = blockIdx.x * kWarps + warp, head = blockIdx.y;
  if (group >= call.groups) return;
  const RunRows rows = rows_of(call, head, group);
  const HalvingRandom random = random_of(call, head);
  const bool flip = random.coin(rows.position(0));
  const int failures = halve_by_warp<T, D>(rule, rows, spaces[warp], random);
  const RunOutput out = output_of(call, head, group, kept_size);
  keep_pairs(out, rows, spaces[warp].signs, flip, lane, kWarp);
  if (out.failures && lane == 0) *out.failures = failures;
}

template <class T, int D>
void launch(const DeviceHalvingRule& rule, const HalvingCall& call, cudaStream_t stream) {
  if (rule.walk == DeviceWalk::kPairs && call.size <= kWarpRows) {
    const dim3 grid((call.groups + kWarps - 1) / kWarps, call.heads);
    launch_kernel(halve_small_kernel<T, D>, {grid, kWarps * kWarp}, stream, "halving", rule, call,
                  call.kept_size(rule));
    return;
  }
  const size_t bytes = RunSpace<D>::bytes(call.size);
  const dim3 grid(call.groups, call.heads);
  launch_kernel(halve_kernel<T, D>, {grid, kWalkThreads, bytes}, stream, "halving", rule, call,
                call.kept_size(rule));
}

}  // namespace

void halve_batch(const DeviceHalvingRule& rule, const HalvingCall& call, cudaStream_t stream) {
  call.check(rule);
  with_rows_of<256>(call.dtype, call.dim,
                    [&]<class T, int D>() { launch<T, D>(rule, call, stream); });
}

}  // namespace pith::cuda
