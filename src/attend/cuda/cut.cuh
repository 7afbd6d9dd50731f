#pragma once
// How the tiles of all heads are shared by the blocks of a launch. Every block works it out for
// itself from the row counts on the device: there is nothing to plan on the host.

#include "kernels/cuda/mma.cuh"

namespace pith::cuda {

/// ends[i + 1] <- sum of count(0..i) for i < n, ends[0] = 0; returns the whole. One warp calls it.
template <class Count>
__device__ inline int prefix_sums(int* ends, int n, const Count& count) {
  const int lane = threadIdx.x % kWarp;
  int carried = 0;
  for (int first = 0; first < n; first += kWarp) {
    int x = first + lane < n ? count(first + lane) : 0;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int y = __shfl_up_sync(~0u, x, d);
      if (lane >= d) x += y;
    }
    x += carried;
    if (first + lane < n) ends[first + lane + 1] = x;
    carried = __shfl_sync(~0u, x, kWarp - 1);
  }
  if (lane == 0) ends[0] = 0;
  __syncwarp();
  return carried;
}

/// Each head gets whole blocks where that is nearly even and work is short: a block that works for
/// two heads goes through its start and its end twice, 4 to 5 us, and all wait for it. Otherwise
/// the tiles are cut evenly, across heads.
struct Cut {
  static constexpr int kShort = 400;  // tiles a block: above, no idle block is worth it

  const int* ends;    // [heads + 1] tiles of the heads before
  const int* firsts;  // [heads + 1] whole blocks of the heads before
  int heads, total;   // total tiles
  int blocks;         // that have work, at least 1
  bool whole;

  static constexpr size_t bytes(int heads) { return sizeof(int) * (2 * (heads + 1) + 1); }

  /// All threads call it. `shared`: bytes(heads). tiles(head): of that head.
  template <class Tiles>
  static __device__ Cut make(int* shared, int heads, const Tiles& tiles) {
    int* ends = shared;
    int* firsts = ends + heads + 1;
    int* whole = firsts + heads + 1;
    const int grid = gridDim.x;
    if (threadIdx.x < kWarp) {
      const int total = prefix_sums(ends, heads, tiles);
      bool even = total > 0 && total <= int64_t{kShort} * grid;
      const auto share = [&](int head) {
        const int mine = ends[head + 1] - ends[head];
        if (mine == 0) return 0;
        const int n = min(mine, max(1, static_cast<int>(int64_t{grid} * mine / total)));
        // More than an eighth above the mean, and one tile for the rounding.
        even &= int64_t{(mine + n - 1) / n - 1} * grid * 8 <= int64_t{total} * 9;
        return n;
      };
      const int used = prefix_sums(firsts, heads, share);
      even = __all_sync(~0u, even) && used <= grid;
      if (threadIdx.x == 0) *whole = even;
    }
    __syncthreads();
    const int total = ends[heads];
    const int even_blocks = max(1, min(grid, total));
    return {ends, firsts, heads, total, *whole ? firsts[heads] : even_blocks, *whole != 0};
  }

  /// Also for block = blocks: the end of the last one's.
  __device__ int first_tile(int block) const {
    if (!whole) return static_cast<int>(int64_t{total} * block / blocks);
    int head = 0;
    while (head < heads && firsts[head + 1] <= block) ++head;
    if (head == heads) return total;
    const int mine = ends[head + 1] - ends[head], n = firsts[head + 1] - firsts[head];
    return ends[head] + static_cast<int>(int64_t{mine} * (block - firsts[head]) / n);
  }
  __device__ int block_of(int tile) const {
    return static_cast<int>(((tile + int64_t{1}) * blocks - 1) / total);
  }
  __device__ int first_block(int head) const { return whole ? firsts[head] : block_of(ends[head]); }
  __device__ int block_count(int head) const {
    return whole ? firsts[head + 1] - firsts[head]
                 : block_of(ends[head + 1] - 1) - block_of(ends[head]) + 1;
  }
};

}  // namespace pith::cuda
