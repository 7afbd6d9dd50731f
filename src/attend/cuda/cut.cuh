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
#pragma unroll 1
  for (int first = 0; first < n; first += kWarp) {
    int x = first + lane < n ? count(first + lane) : 0;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      if (d >= n) break;  // mostly 8
      const int y = __shfl_up_sync(~0u, x, d);
      if (lane >= d) x += y;
    }
    x += carried;
    if (first + lane < n) ends[first + lane + 1] = x;
    carried = __shfl_sync(~0u, x, min(n - first, kWarp) - 1);
  }
  if (lane == 0) ends[0] = 0;
  __syncwarp();
  return carried;
}

/// Each head gets whole blocks where that is nearly even and work is short: a block that works for
/// two heads goes through its start and its end twice, and all wait for it. Otherwise the tiles are
/// cut evenly, across heads. One warp works it out, its lanes by heads, in numbers of 32 bits and
/// with few divisions: every block waits for it before it asks for its first row.
struct Cut {
  struct Shape {
    int heads;
    int blocks;         // of the launch's grid that may be used
    int tiles_a_block;  // at least; 0: all blocks are used
  };
  static constexpr unsigned kShort = 400;  // tiles a block: above, no idle block is worth it
  /// Known are: how many pieces there are, and whether they are whole; whether a head has no
  /// tiles; this block's pieces, of which it works on kPiece; that one's tiles begin .. end, and
  /// the first head that it has tiles of.
  enum Own { kPieces, kWhole, kGaps, kPiece, kPieceEnd, kBegin, kEnd, kFirstHead, kOwn };

  // In shared memory: what follows is asked for rarely, and registers are scarce. Own comes first,
  // where no number of heads is in its address.
  const int* ends;  // [heads + 1] tiles of the heads before
  int heads;

  __device__ const int* firsts() const { return ends + heads + 1; }  // [heads + 1] whole blocks
  __device__ int own(Own i) const { return ends[i - kOwn]; }

  static constexpr size_t bytes(int heads) { return sizeof(int) * (2 * (heads + 1) + kOwn); }

  /// All threads call it. `shared`: bytes(heads). tiles(head): of that head; fewer than 2^24 in all
  /// heads of a launch whose work is short, 2^31 otherwise.
  template <class Tiles>
  static __device__ Cut make(int* shared, const Shape& shape, const Tiles& tiles) {
    const int heads = shape.heads;
    int* own = shared;
    int* ends = own + kOwn;
    int* firsts = ends + heads + 1;
    if (threadIdx.x < kWarp) {
      bool gaps = false;
      const int total = prefix_sums(ends, heads, [&](int head) {
        const int mine = tiles(head);
        gaps |= mine == 0;
        return mine;
      });
      gaps = __any_sync(~0u, gaps) != 0;
      int most = shape.blocks;
      if (shape.tiles_a_block > 0) most = min(most, max(1, (total - 1) / shape.tiles_a_block + 1));
      const int used = whole_blocks(firsts, ends, heads, total, static_cast<unsigned>(most));
      const Pieces all{used > 0 ? used : max(1, min(most, total)), used > 0};
      const int piece = first_piece(all.count, blockIdx.x);
      const int end = first_piece(all.count, blockIdx.x + 1);
      if (threadIdx.x == 0) {
        own[kPieces] = all.count, own[kWhole] = all.whole, own[kGaps] = gaps;
        own[kPieceEnd] = end;
      }
      Cut{ends, heads}.find(piece, end, all);
    }
    __syncthreads();
    return {ends, heads};
  }

  /// The block's next piece; false at its last. All threads call it, done with the piece before.
  __device__ bool next() const {
    const int piece = own(kPiece) + 1;
    if (piece >= own(kPieceEnd)) return false;
    __syncthreads();
    if (threadIdx.x < kWarp) {
      find(piece, own(kPieceEnd), {own(kPieces), own(kWhole) != 0});
    }
    __syncthreads();
    return true;
  }

  __device__ int first_block(int head) const {
    return own(kWhole) ? firsts()[head] : block_of(ends[head]);
  }
  __device__ int block_count(int head) const {
    return own(kWhole) ? firsts()[head + 1] - firsts()[head]
                       : block_of(ends[head + 1] - 1) - block_of(ends[head]) + 1;
  }

 private:
  struct Pieces {
    int count;
    bool whole;
  };
  /// Blocks take pieces that lie side by side. Where there are enough blocks each takes one, and
  /// those without come last: they get the multiprocessors that the launch ahead leaves last.
  static __device__ int first_piece(int pieces, unsigned block) {
    const auto all = static_cast<unsigned>(pieces);
    return static_cast<int>(all <= gridDim.x ? min(block, all) : all * block / gridDim.x);
  }
  /// One warp: what is known of the piece, if it is before `end`. The lane of the piece's first
  /// head knows it all.
  __device__ void find(int piece, int end, Pieces all) const {
    int* to = const_cast<int*>(ends) - kOwn;
    const int total = ends[heads];
    const auto note = [&](int head, int2 tiles) {
      to[kPiece] = piece, to[kBegin] = tiles.x, to[kEnd] = tiles.y, to[kFirstHead] = head;
    };
    if (piece >= end || total == 0) {
      if (threadIdx.x == 0) note(heads, {total, total});
      return;
    }
    const int2 even = all.whole ? int2{} : even_share(total, all.count, piece);
#pragma unroll 1
    for (int h = static_cast<int>(threadIdx.x); h < heads; h += kWarp) {
      const int* from = all.whole ? firsts() : ends;
      const int first = from[h], next = from[h + 1], at = all.whole ? piece : even.x;
      if (first > at || at >= next) continue;
      note(h, all.whole ? share_of_head(ends, firsts(), h, piece) : even);
    }
  }
  /// firsts <- blocks by heads; the number of blocks, or 0 if an even cut is better.
  static __device__ int whole_blocks(int* firsts, const int* ends, int heads, int total,
                                     unsigned grid) {
    const auto all = static_cast<unsigned>(total);
    if (all == 0 || all > kShort * grid) return 0;
    bool even = true;
    const auto share = [&](int head) {
      const auto mine = static_cast<unsigned>(ends[head + 1] - ends[head]);
      if (mine == 0) return 0;
      const unsigned n = min(mine, max(1u, grid * mine / all));
      // A block's most tiles are less one at most an eighth above the mean.
      even &= (mine - 1) / n * grid * 8 <= all * 9;
      return static_cast<int>(n);
    };
    const int used = prefix_sums(firsts, heads, share);
    return __all_sync(~0u, even) && static_cast<unsigned>(used) <= grid ? used : 0;
  }
  /// The first total % pieces pieces have a tile more than the others.
  static __device__ int2 even_share(int total, int pieces, int piece) {
    const auto each =
        static_cast<int>(static_cast<unsigned>(total) / static_cast<unsigned>(pieces));
    const int more = total - each * pieces;
    const int first = piece * each + min(piece, more);
    return {first, first + each + (piece < more ? 1 : 0)};
  }
  /// Of the piece's one head.
  static __device__ int2 share_of_head(const int* ends, const int* firsts, int head, int piece) {
    const auto tiles = static_cast<unsigned>(ends[head + 1] - ends[head]);
    const auto pieces = static_cast<unsigned>(firsts[head + 1] - firsts[head]);
    const auto at = static_cast<unsigned>(piece - firsts[head]);
    return {ends[head] + static_cast<int>(tiles * at / pieces),
            ends[head] + static_cast<int>(tiles * (at + 1) / pieces)};
  }
  __device__ int block_of(int tile) const {
    const int total = ends[heads], blocks = own(kPieces);
    const int each = total / blocks, more = total - each * blocks;
    const int longer = more * (each + 1);  // tiles of the blocks that have one more
    return tile < longer ? tile / (each + 1) : more + (tile - longer) / each;
  }
};

}  // namespace pith::cuda
