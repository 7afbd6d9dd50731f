#pragma once
// A warp's way through rows of csr codes: a lane takes a row for its scores, s lookups of four
// queries' products each; then rows are gone through one by one, the lanes being the pairs of one
// row times four queries, which add to sums by atom in the warp's own shared memory. No address is
// met twice: pairs of a chunk have different atoms, and those that are not needed are left out.
//
// Cost a row: 8 s bytes; s lookups of 16 bytes and 4 s additions in shared memory.

#include "attend/cuda/decode_kernel.cuh"
#include "kernels/cuda/numbers.cuh"
#include "methods/codecs/csr/csr_pairs.cuh"

namespace pith::cuda {

inline constexpr int kCsrMostWarps = 16, kCsrStages = 2;

/// kPairs: s. kQuads: groups of four queries.
template <int D, int kPairs, int kQuads>
struct CsrSpace {
  static constexpr int kSide = kPairs * 128;  // bytes of 32 rows of one side
  static constexpr int kRing = kCsrStages * 2 * kSide;
  static constexpr int kPiece = kQuads * 512;  // probabilities [4 kQuads][32]
  static constexpr int kPart4 = kPart<D> * 4;

  static size_t warp_bytes(int chunks, int values) {
    const int own = kRing + kPiece + kQuads * chunks * values * 16;
    return own > kPart4 ? own : kPart4;
  }
  static size_t fixed_bytes(int keys) {
    return kQueries * D * 4 + kPart4 + kCsrMostWarps * kQueries * 8 + kQuads * keys * 16;
  }

  char* shared;
  int warps, warp_bytes_, keys;

  __device__ char* of_warp(int w) const { return shared + w * warp_bytes_; }
  __device__ char* warp() const { return of_warp(threadIdx.x / kWarp); }
  __device__ float* piece() const { return reinterpret_cast<float*>(warp() + kRing); }
  /// [kQuads][chunks, atoms][4]
  __device__ float4* sums(int w) const {
    return reinterpret_cast<float4*>(of_warp(w) + kRing + kPiece);
  }
  __device__ float* q() const { return reinterpret_cast<float*>(shared + warps * warp_bytes_); }
  __device__ float* slot() const { return q() + kQueries * D; }  // [kQueries, D + 2]
  __device__ float2* tops() const { return reinterpret_cast<float2*>(slot() + kPart<D>); }
  __device__ char* table() const {  // [kQuads][atoms][4]
    return reinterpret_cast<char*>(tops() + kCsrMostWarps * kQueries);
  }
  __device__ char* walk() const { return table() + kQuads * keys * 16; }
};

__device__ inline const uint32_t* words_of(const uint4& x) {
  return reinterpret_cast<const uint32_t*>(&x);
}

/// table <- products of the queries, which are in shared memory, with all atoms of the head.
template <int D, int kPairs, int kQuads>
__device__ inline void make_table(const CsrSpace<D, kPairs, kQuads>& space, const __half* atoms) {
  using Dense = DenseTiles<__half, D>;
  const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  DeviceSpan span;
  span.keys = atoms;
  span.rows = space.keys;
  span.row_stride = D;
  const auto query = Dense::prepare(space.q());
  for (int t = threadIdx.x / kWarp; t * 16 < space.keys; t += space.warps) {
    typename Dense::Tile tile;
    Dense::load_keys(tile, span, t);
    float s[1][4];
    Dense::scores(s, tile, query);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int atom = t * 16 + r + 8 * i;
      if (atom >= space.keys || c / 2 >= kQuads) continue;
      char* to = space.table() + (c / 2 * space.keys + atom) * 16 + c % 2 * 8;
      *reinterpret_cast<float2*>(to) = make_float2(s[0][2 * i], s[0][2 * i + 1]);
    }
  }
}

/// A warp's share of the coded rows of one head.
template <int D, int kPairs, int kQuads>
struct CsrRun {
  using Space = CsrSpace<D, kPairs, kQuads>;
  static constexpr int kQ = 4 * kQuads;

  const Space& space;
  int chunks, values;  // atoms per chunk
  const SoftCap& cap;
  float top[kQ], sum[kQ];  // sum: over this lane's rows

  __device__ int sums_size() const { return kQuads * chunks * values; }

  __device__ void start() {
#pragma unroll
    for (int q = 0; q < kQ; ++q) {
      top[q] = kUnseen;
      sum[q] = 0;
    }
    float4* sums = space.sums(threadIdx.x / kWarp);
    for (int i = threadIdx.x % kWarp; i < sums_size(); i += kWarp) sums[i] = {0, 0, 0, 0};
    __syncwarp();
  }

  static __device__ void fetch(char* to, const DeviceSpan& span, int tile) {
    const int lane = threadIdx.x % kWarp;
    const auto from = [&](const void* codes) {
      return static_cast<const char*>(codes) + static_cast<size_t>(tile) * Space::kSide + lane * 16;
    };
#pragma unroll
    for (int i = 0; i < kPairs / 4; ++i) {
      copy_async(to + i * 512 + lane * 16, from(span.keys) + i * 512);
      copy_async(to + Space::kSide + i * 512 + lane * 16, from(span.values) + i * 512);
    }
  }

  __device__ void score(float (&s)[kQ], const char* keys) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int q = 0; q < kQ; ++q) s[q] = 0;
    const char* table = space.table();
#pragma unroll
    for (int i = 0; i < kPairs / 4; ++i) {
      const uint4 four = reinterpret_cast<const uint4*>(keys)[i * kWarp + lane];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t word = words_of(four)[e];
        const float c = coefficient_of(word);
#pragma unroll
        for (int quad = 0; quad < kQuads; ++quad) {
          const float4 x =
              *reinterpret_cast<const float4*>(table + quad * space.keys * 16 + (word & 0xffff));
          s[4 * quad] += c * x.x;
          s[4 * quad + 1] += c * x.y;
          s[4 * quad + 2] += c * x.z;
          s[4 * quad + 3] += c * x.w;
        }
      }
    }
  }

  /// Maxima rise to those of s, and what was summed shrinks.
  __device__ void follow(const float (&s)[kQ]) {
    float shrink[kQ];
#pragma unroll
    for (int q = 0; q < kQ; ++q) {
      float most = s[q];
#pragma unroll
      for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
      most = fmaxf(most, top[q]);
      shrink[q] = exp2_fast(top[q] - most);
      top[q] = most;
      sum[q] *= shrink[q];
    }
    float4* sums = space.sums(threadIdx.x / kWarp);
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const int size = chunks * values;
      for (int i = threadIdx.x % kWarp; i < size; i += kWarp) {
        float4& x = sums[quad * size + i];
        x.x *= shrink[4 * quad];
        x.y *= shrink[4 * quad + 1];
        x.z *= shrink[4 * quad + 2];
        x.w *= shrink[4 * quad + 3];
      }
    }
    __syncwarp();
  }

  /// Adds the probabilities in piece() times the coefficients of 32 rows to the sums.
  __device__ void add_values(const char* codes) {
    constexpr int kPasses = kPairs > 8 ? kPairs / 8 : 1;
    const int lane = threadIdx.x % kWarp, j = lane / 4, q = lane % 4;
    const bool mine = kPairs >= 8 || j < kPairs;
    char* sums = reinterpret_cast<char*>(space.sums(threadIdx.x / kWarp));
    const int size = chunks * values * 16, a_chunk = kPairs / chunks;
    char* to[kPasses];
#pragma unroll
    for (int i = 0; i < kPasses; ++i) to[i] = sums + (j + 8 * i) / a_chunk * values * 16 + q * 4;
#pragma unroll 2
    for (int quad = 0; quad < 8; ++quad) {
      float4 p[kQuads];
      uint4 four[kPasses];
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        p[i] = reinterpret_cast<const float4*>(space.piece())[(4 * i + q) * 8 + quad];
      }
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        four[i] = mine ? reinterpret_cast<const uint4*>(codes)[quad * kPairs + j + 8 * i]
                       : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int row = 0; row < 4; ++row) {
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
          const uint32_t word = words_of(four[i])[row];
          if ((word & 0x7fff0000u) == 0) continue;
          const float c = coefficient_of(word);
#pragma unroll
          for (int k = 0; k < kQuads; ++k) {
            auto* at = reinterpret_cast<float*>(to[i] + k * size + (word & 0xffff));
            *at += c * reinterpret_cast<const float*>(&p[k])[row];
          }
        }
        __syncwarp();  // the next row may have the same atoms in other lanes
      }
    }
  }

  __device__ void tile(const DeviceSpan& span, const char* block, int t) {
    const int lane = threadIdx.x % kWarp, row = t * BlockTiles::kRows + lane;
    float s[kQ];
    score(s, block);
    const bool inside = row < span.rows;
    float w = span.log_weight;
    if (span.log_weights && inside) w += span.log_weights[row];
    bool rises = false;
#pragma unroll
    for (int q = 0; q < kQ; ++q) {
      s[q] = inside ? cap(s[q]) + w * kLog2e : -INFINITY;
      rises |= s[q] > top[q] + kLazy;
    }
    if (__any_sync(~0u, rises)) follow(s);
#pragma unroll
    for (int q = 0; q < kQ; ++q) {
      s[q] = exp2_fast(s[q] - top[q]);
      sum[q] += s[q];
      space.piece()[q * kWarp + lane] = s[q];
    }
    __syncwarp();
    add_values(block + Space::kSide);
  }

  /// Tiles first, first + warps, ... below `end`.
  __device__ void span(const DeviceSpan& span, int first, int end) {
    if (first < end) fetch(space.warp(), span, first);
    commit_copies();
    int slot = 0;
    for (int t = first; t < end; t += space.warps) {
      __syncwarp();  // every lane is done with the slot that is filled next
      if (t + space.warps < end) {
        fetch(space.warp() + (slot ^ 1) * 2 * Space::kSide, span, t + space.warps);
      }
      commit_copies();
      wait_for_copies<1>();
      __syncwarp();
      tile(span, space.warp() + slot * 2 * Space::kSide, t);
      slot ^= 1;
    }
    wait_for_copies<0>();
    __syncwarp();
  }
};

}  // namespace pith::cuda
