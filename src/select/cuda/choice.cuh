#pragma once
// A block of threads finds the largest of many keys: radix selection, 11 bits a pass.

#include <cstdint>

namespace pith::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr int kChooseThreads = 1024, kChooseWarps = kChooseThreads / kWarpSize;

/// The sum over the threads of a warp before this one.
__device__ inline int sum_before(int x) {
  const int lane = threadIdx.x % kWarpSize;
  int sum = x;
#pragma unroll
  for (int d = 1; d < kWarpSize; d *= 2) {
    const int y = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += y;
  }
  return sum - x;
}

/// The sum over the warps before this one of what each warp has; `total` of all. All threads call
/// it; `shared` [kChooseWarps].
__device__ inline int warps_before(int of_warp, int& total, int* shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  if (lane == 0) shared[warp] = of_warp;
  __syncthreads();
  static_assert(kChooseWarps == kWarpSize);
  const int of_lane = shared[lane], before = sum_before(of_lane);
  total = __shfl_sync(~0u, before + of_lane, kWarpSize - 1);
  __syncthreads();
  return __shfl_sync(~0u, before, warp);
}

/// The same over threads: of numbers, and how many say yes.
__device__ inline int prefix_of(int x, int& total, int* shared) {
  const int before = sum_before(x);
  const int of_warp = __shfl_sync(~0u, before + x, kWarpSize - 1);
  return warps_before(of_warp, total, shared) + before;
}
__device__ inline int count_before(bool yes, int& total, int* shared) {
  const unsigned all = __ballot_sync(~0u, yes);
  const unsigned lanes_before = (1u << threadIdx.x % kWarpSize) - 1;
  return warps_before(__popc(all), total, shared) + __popc(all & lanes_before);
}

/// The largest key of which at least so many rows as are to stay have as much or more.
struct Cut {
  uint32_t key = 0;
  int stay = 0;  ///< of the rows with just that key
  int rows = 0;  ///< that have it
};

/// each(f) calls f(key) for this thread's share of the rows; all threads call it.
template <class Each>
__device__ Cut find_cut(const Each& each, int keep) {
  constexpr int kBits = 11, kBins = 1 << kBits;
  static_assert(kBins == 2 * kChooseThreads);
  __shared__ int counts[kBins], shared[kChooseWarps];
  __shared__ int digit, rest, same;
  Cut cut{0, keep, 0};
  uint32_t mask = 0;
  for (int shift = 32 - kBits;; shift = max(shift - kBits, 0)) {
    for (int i = threadIdx.x; i < kBins; i += kChooseThreads) counts[i] = 0;
    __syncthreads();
    each([&](uint32_t key) {
      if ((key & mask) == cut.key) atomicAdd(&counts[key >> shift & (kBins - 1)], 1);
    });
    __syncthreads();
    const int larger = kBins - 1 - 2 * static_cast<int>(threadIdx.x), smaller = larger - 1;
    const int of_larger = counts[larger], both = of_larger + counts[smaller];
    int all = 0;
    const int before = prefix_of(both, all, shared);
    if ((threadIdx.x == 0 || before < cut.stay) && before + both >= cut.stay) {
      const bool first = before + of_larger >= cut.stay;
      digit = first ? larger : smaller;
      rest = cut.stay - before - (first ? 0 : of_larger);
      same = first ? of_larger : both - of_larger;
    }
    __syncthreads();
    cut = {cut.key | static_cast<uint32_t>(digit) << shift, rest, same};
    if (shift == 0) break;
    mask |= static_cast<uint32_t>(kBins - 1) << shift;
  }
  __syncthreads();
  return cut;
}

/// f(key) for this thread's share of `rows` keys.
struct EachKey {
  const uint32_t* keys;
  int rows;
  template <class F>
  __device__ void operator()(const F& f) const {
    for (int i = threadIdx.x; i < rows; i += kChooseThreads) f(keys[i]);
  }
};

/// The `keep` rows with the largest keys stay, of equal ones the newer. place(number(i), stays, n)
/// of each row i, the n-th of those that stay or of the others; number() of all rows up to i comes
/// before the place() of any behind them. All threads call it.
template <class Number, class Place>
__device__ void choose_among(const uint32_t* keys, int rows, int keep, const Number& number,
                             const Place& place) {
  __shared__ int shared[kChooseWarps];
  const Cut cut = find_cut(EachKey{keys, rows}, keep);
  int stay = 0, tie = 0;  // of the rows before
  for (int first = 0; first < rows; first += kChooseThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool there = i < rows;
    const uint32_t key = there ? keys[i] : 0;
    const int of_row = there ? number(i) : 0;
    bool stays = there && key >= cut.key;
    int all = 0;
    if (cut.stay < cut.rows) {
      const bool equal = there && key == cut.key;
      const int nth = tie + count_before(equal, all, shared);
      tie += all;
      if (equal) stays = nth >= cut.rows - cut.stay;
    }
    const int before = stay + count_before(stays, all, shared);
    stay += all;
    if (there) place(of_row, stays, stays ? before : i - before);
  }
}

}  // namespace pith::cuda
