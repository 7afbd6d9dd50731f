#pragma once
// One block halves one run of rows. The walk goes tile by tile, 64 rows each: the tile's sums over
// all earlier rows come first, from the tensor cores, then one warp walks through the tile.

#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/tile.cuh"
#include "select/cuda/halving.h"
#include "select/cuda/walk.cuh"
#include "select/draws.h"

namespace pith::cuda {

/// The rows of one run.
struct RunRows {
  const char* k;
  const char* v;
  size_t row_bytes;          // between rows
  const int32_t* numbers;    // [S] where row i lies in k and v; null: at i
  const int64_t* positions;  // [S] of row i; null: first_position + its number
  int64_t first_position;
  int count;                           // S
  const int32_t* by_number = nullptr;  // positions of row numbers; null: as above
  int first_number = 0;                // of row 0, where there are no numbers

  __device__ int number(int i) const { return numbers ? numbers[i] : first_number + i; }
  __device__ int64_t position(int i) const {
    if (by_number) return by_number[number(i)];
    return positions ? positions[i] : first_position + number(i);
  }
};

/// Memory of a run of S rows: shared, and of a wide run (halving_wide.cu) what goes from launch to
/// launch elsewhere.
template <int D, bool kWide = false>
struct RunSpace {
  static constexpr int kTileBytes = kWalkTile * 2 * D;
  static constexpr int kFixed = (kWalkTile * kDiagonal + D + 2 * kWalkTile + 64) * 4;

  char* shared;
  int rows;                  // S, rounded up to whole tiles
  float* outside = nullptr;  // [2, S] of a wide run

  static __host__ __device__ constexpr int padded(int rows) {
    return (rows + kWalkTile - 1) / kWalkTile * kWalkTile;
  }
  /// Runs of one tile have no earlier rows to stream.
  static __host__ __device__ constexpr size_t bytes(int rows) {
    const size_t of_rows = kWide ? 0 : size_t{8} * padded(rows);
    return kFixed + of_rows + size_t{rows > kWalkTile ? 4u : 2u} * kTileBytes;
  }

  __device__ char* keys(int stage) const { return shared + 2 * stage * kTileBytes; }
  __device__ char* values(int stage) const { return shared + (2 * stage + 1) * kTileBytes; }
  __device__ float* diagonal() const {  // [64, 66] the kernel inside a tile
    return reinterpret_cast<float*>(shared + (rows > kWalkTile ? 4 : 2) * kTileBytes);
  }
  __device__ float* mean() const { return diagonal() + kWalkTile * kDiagonal; }  // [D]
  __device__ float* sums() const { return mean() + D; }  // [2, 64] over earlier rows
  __device__ float* reduction() const { return sums() + 2 * kWalkTile; }  // [64]
  __device__ float* offsets() const {  // [S] exponents' row terms
    return kWide ? outside : reduction() + 64;
  }
  __device__ float* signs() const { return offsets() + rows; }  // [S]
};

/// Shared by all rows of a run.
struct RunConstants {
  float scale;     // of <k, k'>, in units of log2
  float constant;  // added to <v, v'>
  float bound;     // the square of the paper's radius
};

template <class T, int D, bool kWide = false>
struct HalvingBlock {
  static constexpr int kPieces = D / 8, kSteps = D / 16;
  static constexpr int kTogether = 4;  // rows on their way to a thread
  const DeviceHalvingRule& rule;
  const RunRows& rows;
  const RunSpace<D, kWide>& space;
  RunConstants c;

  __device__ const uint4* piece(const char* base, int row, int p) const {
    return reinterpret_cast<const uint4*>(base +
                                          static_cast<size_t>(rows.number(row)) * rows.row_bytes) +
           p;
  }
  /// Tile rows first .. first + 63 are on their way to a stage; rows past the end repeat the last.
  __device__ void fetch(int stage, int first) const {
    for (int i = threadIdx.x; i < kWalkTile * kPieces; i += kWalkThreads) {
      const int row = i / kPieces, p = i % kPieces, at = min(first + row, rows.count - 1);
      copy_async(space.keys(stage) + piece_at<D>(row, p), piece(rows.k, at, p));
      if (rule.values) copy_async(space.values(stage) + piece_at<D>(row, p), piece(rows.v, at, p));
    }
    commit_copies();
  }

  // Plain loads below: the run may have been moved by this very kernel.

  /// The mean key, into shared memory; zero where keys are not centred.
  __device__ void find_mean() const {
    constexpr int kLanes = kWalkThreads / kPieces;  // rows read at a time
    float* parts = space.diagonal();                // [kLanes, D], at most 2048
    const int p = threadIdx.x % kPieces, lane = threadIdx.x / kPieces;
    float sum[8] = {};
    for (int first = lane; rule.centre && first < rows.count; first += kTogether * kLanes) {
      uint4 k[kTogether];
#pragma unroll
      for (int b = 0; b < kTogether; ++b) {
        k[b] = *piece(rows.k, min(first + b * kLanes, rows.count - 1), p);
      }
#pragma unroll
      for (int b = 0; b < kTogether; ++b) {
        float x[8];
        unpack_piece<T>(x, k[b]);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[j] += first + b * kLanes < rows.count ? x[j] : 0;
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) parts[lane * D + 8 * p + j] = sum[j];
    __syncthreads();
    if (threadIdx.x < D) {
      float total = 0;
#pragma unroll
      for (int l = 0; l < kLanes; ++l) total += parts[l * D + threadIdx.x];
      space.mean()[threadIdx.x] = total / static_cast<float>(rows.count);
    }
    __syncthreads();
  }

  /// exp(scale <k_i - m, k_j - m> - shift) = 2^(scale' <k_i, k_j> + offset_i + offset_j).
  __device__ RunConstants measure() const {
    find_mean();
    const int p = threadIdx.x % kPieces, lane = threadIdx.x / kPieces;
    float m[8], mean_square = 0, longest = 0, entry = 0, longest_value = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) m[j] = space.mean()[8 * p + j];
    for (int j = 0; j < D; ++j) mean_square += space.mean()[j] * space.mean()[j];
    // All lanes take part in every round: sums run over the lanes of a row.
    constexpr int kLanes = kWalkThreads / kPieces;
    for (int first = lane; first - lane < rows.count; first += kTogether * kLanes) {
      uint4 k[kTogether], v[kTogether];
#pragma unroll
      for (int b = 0; b < kTogether; ++b) {
        const int i = min(first + b * kLanes, rows.count - 1);
        k[b] = *piece(rows.k, i, p);
        if (rule.values) v[b] = *piece(rows.v, i, p);
      }
#pragma unroll
      for (int b = 0; b < kTogether; ++b) {
        const int i = first + b * kLanes;
        float x[8], along = 0, square = 0, value_square = 0;
        unpack_piece<T>(x, k[b]);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          along += x[j] * m[j];
          square += (x[j] - m[j]) * (x[j] - m[j]);
        }
        if (rule.values) {
          unpack_piece<T>(x, v[b]);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            value_square += x[j] * x[j];
            entry = fmaxf(entry, fabsf(x[j]));
          }
        }
#pragma unroll
        for (int d = 1; d < kPieces; d *= 2) {
          along += __shfl_xor_sync(~0u, along, d);
          square += __shfl_xor_sync(~0u, square, d);
          value_square += __shfl_xor_sync(~0u, value_square, d);
        }
        longest = fmaxf(longest, square);
        longest_value = fmaxf(longest_value, value_square);
        if (p == 0 && i < rows.count) space.offsets()[i] = mean_square / 2 - along;
      }
    }
    const float scale = rule.scale * 1.4426950408889634f;
    longest = block_max<kWalkThreads>(longest, space.reduction());
    entry = block_max<kWalkThreads>(entry, space.reduction() + 8);
    longest_value = block_max<kWalkThreads>(longest_value, space.reduction() + 16);
    for (int i = threadIdx.x; i < space.rows; i += kWalkThreads) {
      space.offsets()[i] =
          i < rows.count ? scale * (space.offsets()[i] - longest / 2) : -scale * longest;
      space.signs()[i] = 0;
    }
    __syncthreads();
    const float constant = rule.values ? rule.value_constant * entry * entry : 1.0f;
    return {scale, constant, longest_value + constant};
  }

  /// A warp's rows: tile rows 16 (warp % 4) .. + 15, as operands.
  struct Fragments {
    uint32_t k[kSteps][4], v[kSteps][4];
  };
  __device__ void load_fragments(Fragments& a) const {
    const int first = threadIdx.x / kWarp % 4 * 16;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      load_a<D>(a.k[i], space.keys(0), first, i);
      if (rule.values) load_a<D>(a.v[i], space.values(0), first, i);
    }
  }

  /// The kernel of the warp's rows with 32 columns (half of a tile that lies in `stage`). Inside
  /// the tile it is stored; else its products with the columns' signs are added to sum.
  template <bool kInside>
  __device__ void multiply_tile(float (&sum)[2], const Fragments& a, int tile, int other,
                                int stage) const {
    const int lane = threadIdx.x % kWarp, r = lane / 4, col = lane % 4 * 2;
    const int warp = threadIdx.x / kWarp, first = warp % 4 * 16, half = warp / 4 * 32;
    const float* mine = space.offsets() + tile * kWalkTile + first + r;
    const float u0 = mine[0], u1 = mine[8];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float sk[2][4] = {}, sv[2][4] = {};
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        uint32_t b[4];
        load_b<D>(b, space.keys(stage), half + 16 * n, i);
        mma<T>(sk[0], a.k[i][0], a.k[i][1], a.k[i][2], a.k[i][3], b[0], b[1]);
        mma<T>(sk[1], a.k[i][0], a.k[i][1], a.k[i][2], a.k[i][3], b[2], b[3]);
        if (!rule.values) continue;
        load_b<D>(b, space.values(stage), half + 16 * n, i);
        mma<T>(sv[0], a.v[i][0], a.v[i][1], a.v[i][2], a.v[i][3], b[0], b[1]);
        mma<T>(sv[1], a.v[i][0], a.v[i][1], a.v[i][2], a.v[i][3], b[2], b[3]);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = half + 16 * n + 8 * e + col;
        const float2 u =
            *reinterpret_cast<const float2*>(space.offsets() + other * kWalkTile + column);
        const float x0 = exp2_fast(fmaf(sk[e][0], c.scale, u0 + u.x)) * (sv[e][0] + c.constant);
        const float x1 = exp2_fast(fmaf(sk[e][1], c.scale, u0 + u.y)) * (sv[e][1] + c.constant);
        const float x2 = exp2_fast(fmaf(sk[e][2], c.scale, u1 + u.x)) * (sv[e][2] + c.constant);
        const float x3 = exp2_fast(fmaf(sk[e][3], c.scale, u1 + u.y)) * (sv[e][3] + c.constant);
        if constexpr (kInside) {
          float* to = space.diagonal() + (first + r) * kDiagonal + column;
          *reinterpret_cast<float2*>(to) = {x0, x1};
          *reinterpret_cast<float2*>(to + 8 * kDiagonal) = {x2, x3};
        } else {
          const float2 s =
              *reinterpret_cast<const float2*>(space.signs() + other * kWalkTile + column);
          sum[0] += x0 * s.x + x1 * s.y;
          sum[1] += x2 * s.x + x3 * s.y;
        }
      }
    }
  }

  /// Adds a tile's products with the signs of tiles first .. end - 1, which have been walked
  /// through, to sum, a thread's share of two rows; and finds the kernel inside the tile if
  /// kInside.
  template <bool kInside>
  __device__ void add_tiles(float (&sum)[2], int tile, int first, int end) const {
    Fragments a;
    fetch(0, tile * kWalkTile);
    if (first < end) fetch(1, first * kWalkTile);
    first < end ? wait_for_copies<1>() : wait_for_copies<0>();
    __syncthreads();
    load_fragments(a);
    if constexpr (kInside) multiply_tile<true>(sum, a, tile, tile, 0);
    __syncthreads();
    for (int other = first; other < end; ++other) {
      const int stage = (other - first + 1) % 2;
      if (other + 1 < end) {
        fetch(1 - stage, (other + 1) * kWalkTile);
        wait_for_copies<1>();
      } else {
        wait_for_copies<0>();
      }
      __syncthreads();
      multiply_tile<false>(sum, a, tile, other, stage);
      __syncthreads();
    }
  }

  /// The signs of a tile's rows. `sum`: a thread's share of its sums over all earlier rows.
  __device__ void walk_tile(WalkState& walk, float (&sum)[2], int tile, const HalvingRandom& random,
                            bool flip) const {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
      sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
      if (lane % 4 == 0) {
        space.sums()[warp / 4 * kWalkTile + warp % 4 * 16 + lane / 4 + 8 * i] = sum[i];
      }
    }
    __syncthreads();
    if (threadIdx.x < kWarp) {
      const WalkTile t{space.diagonal(), space.sums(), space.signs() + tile * kWalkTile,
                       tile * kWalkTile, min(kWalkTile, rows.count - tile * kWalkTile)};
      const auto draw = [&](int row) { return random.walk(rows.position(row)); };
      rule.walk == DeviceWalk::kPairs ? walk_pairs(walk, t, draw) : walk_rows(walk, t, flip, draw);
    }
    __syncthreads();
  }

  /// Before the first tile, and with `c` measured.
  __device__ WalkState begin_walk() const {
    const float log_size = logf((rule.walk == DeviceWalk::kPairs ? 2.0f : 1.0f) *
                                static_cast<float>(rows.count) / rule.delta);
    return {rule.walk == DeviceWalk::kPairs ? rule.balance * (0.5f + log_size)
                                            : rule.balance * 30 * log_size * c.bound,
            0, 0};
  }

  /// The signs of all rows into space.signs(); returns the failures (in the first warp).
  __device__ int run(const HalvingRandom& random, bool flip) {
    c = measure();
    WalkState walk = begin_walk();
    for (int tile = 0; tile * kWalkTile < rows.count; ++tile) {
      float sum[2] = {0, 0};
      add_tiles<true>(sum, tile, 0, tile);
      walk_tile(walk, sum, tile, random, flip);
    }
    return walk.failures;
  }
};

}  // namespace pith::cuda
