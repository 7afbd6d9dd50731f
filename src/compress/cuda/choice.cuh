#pragma once
// A block of threads finds the largest of many keys: radix selection, 8 bits a pass.

#include <cstdint>

namespace pith::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr int kChooseThreads = 1024, kChooseWarps = kChooseThreads / kWarpSize;

/// The sum over the threads before this one; `total` of all. All threads call it.
__device__ inline int prefix_of(int x, int& total, int* shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  int sum = x;
#pragma unroll
  for (int d = 1; d < kWarpSize; d *= 2) {
    const int y = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += y;
  }
  if (lane == kWarpSize - 1) shared[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
#pragma unroll
  for (int w = 0; w < kChooseWarps; ++w) {
    if (w < warp) before += shared[w];
    total += shared[w];
  }
  __syncthreads();
  return before + sum - x;
}

/// The largest key of which at least `keep` rows have as much or more; `keep` becomes how many of
/// the rows that have just that key stay. each(f) calls f(key) for this thread's share of the rows;
/// all threads call it.
template <class Each>
__device__ uint32_t find_cut(const Each& each, int& keep) {
  __shared__ int counts[256];
  __shared__ int digit, rest;
  uint32_t cut = 0, mask = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += kChooseThreads) counts[i] = 0;
    __syncthreads();
    each([&](uint32_t key) {
      if ((key & mask) == cut) atomicAdd(&counts[key >> shift & 255], 1);
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      int d = 255, left = keep;
      while (counts[d] < left) left -= counts[d--];
      digit = d;
      rest = left;
    }
    __syncthreads();
    cut |= static_cast<uint32_t>(digit) << shift;
    mask |= 255u << shift;
    keep = rest;
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

}  // namespace pith::cuda
