#pragma once
// qjl's tight rows as operands of the decode kernel. Levels are those of Lloyd and Max, which no
// whole numbers stand for: codes lie so that a few of their bits are a selector by which one
// instruction takes four bytes out of a table of eight, once for the levels' upper bytes as f16,
// once for the lower ones; a second puts a pair together. That is three instructions per pair
// beside the two and a half of evenly spaced levels (plane_tiles.cuh), and nothing to take off
// sums afterwards.
//
// Bytes per row at D = 128 and b bits: 32 b + 2, and 2 D / `center` of the mean.

#include "rows/cuda/plane_tiles.cuh"
#include "rows/tight_rows.h"

namespace pith::cuda {

/// The bits of a positive number as an f16.
constexpr uint16_t half_bits(float x) {
  int exponent = 15;
  for (; x >= 2; x /= 2) ++exponent;
  for (; x < 1; x *= 2) --exponent;
  return static_cast<uint16_t>((exponent << 10) + static_cast<int>((x - 1) * 1024 + 0.5f));
}

/// A byte of each of the levels of codes 4 i, 4 i + 1, ..., in their order.
constexpr uint32_t level_bytes(int bits, int i, bool upper) {
  const int positive = 1 << (bits - 1);
  uint32_t bytes = 0;
  for (int j = 0; j < 4; ++j) {
    const int code = (4 * i + j) % (2 * positive);
    const int half = code >= positive ? half_bits(tight_level(bits, code - positive))
                                      : half_bits(tight_level(bits, positive - 1 - code)) | 0x8000;
    bytes |= static_cast<uint32_t>(upper ? half >> 8 : half & 0xff) << (8 * j);
  }
  return bytes;
}

template <int D, int kBits>
struct TightPairs {
  static_assert(kBits == 2 || kBits == 3);
  static constexpr int kWords = D * kBits / 32;
  static constexpr int kFirst = D * layout::code_part(kBits, 0, true).width / 32;
  static constexpr uint32_t kLower = level_bytes(kBits, 0, false),
                            kNextLower = level_bytes(kBits, 1, false),
                            kUpper = level_bytes(kBits, 0, true),
                            kNextUpper = level_bytes(kBits, 1, true);

  uint32_t first[kFirst], second[kWords > kFirst ? kWords - kFirst : 1];

  __device__ void read(const char* codes) {
    read_words(first, codes);
    if constexpr (kWords > kFirst) read_words(second, codes + kFirst * 128);
  }
  /// Pairs 4 i, ..., 4 i + 3 of the list (grouped_layout.h); `i` is known when it is compiled.
  __device__ void take(uint32_t (&to)[4], int i) const {
    constexpr uint32_t kTwo = 0x33333333u, kTop = 0x44444444u;
    uint32_t which = first[i / 2] >> (i % 2 * 2) & kTwo;
    if constexpr (kBits == 3) {
      const uint32_t w = second[i / 4];
      const uint32_t top = i % 4 == 0 ? w << 2 : i % 4 == 1 ? w << 1 : i % 4 == 2 ? w : w >> 1;
      which |= top & kTop;
    }
#pragma unroll
    for (int two = 0; two < 2; ++two) {
      const uint32_t selector = two == 0 ? which : which >> 16;
      const uint32_t lower = __byte_perm(kLower, kNextLower, selector);
      const uint32_t upper = __byte_perm(kUpper, kNextUpper, selector);
      to[2 * two] = __byte_perm(lower, upper, 0x6240);
      to[2 * two + 1] = __byte_perm(lower, upper, 0x7351);
    }
  }
};

/// A pair of scales from two bytes, as f16.
__device__ inline uint32_t tight_scales(const char* side, int pair) {
  return __byte_perm(reinterpret_cast<const uint16_t*>(side)[pair], 0, 0x4140) << 7;
}

template <int D, int kBits>
struct TightKeys {
  using Pairs = TightPairs<D, kBits>;
  static constexpr int kSteps = D / 16;
  static constexpr int kMeanAt = kBlockRows;
  static constexpr int kCodeBytes = Pairs::kWords * 128, kSideBytes = kMeanAt + 2 * D;

  // Rotated queries: [step][lane] two f16 pairs, raised; [query, D] f32.
  static constexpr int kTurnedAt = kSteps * kWarp * 8;
  static constexpr int kQueryBytes = kTurnedAt + 8 * D * 4;

  struct Ahead {
    uint32_t flips;  // of the lane's channels
  };
  static __device__ Ahead ask(const void* flips) {
    return {LevelLane<D>::flips_of(static_cast<const uint32_t*>(flips))};
  }
  static __device__ void prepare(char* to, const float* q, int, const void*, Ahead ahead) {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    auto* turned = reinterpret_cast<float*>(to + kTurnedAt);
    rotate_queries<D>(turned, q, ahead.flips);
    __syncthreads();
    constexpr float kUp = 1 << kRaise;
    for (int s = threadIdx.x / kWarp; s < kSteps; s += blockDim.x / kWarp) {
      const float* x = turned + r * D + 16 * s + 2 * c;
      reinterpret_cast<uint2*>(to)[s * kWarp + lane] =
          make_uint2(pack<__half>(x[0] * kUp, x[1] * kUp), pack<__half>(x[8] * kUp, x[9] * kUp));
    }
  }

  struct Query {
    uint2 steps[kSteps];
    bool centred;
  };
  static __device__ Query load_query(const char* shared, const DeviceSpan& span) {
    Query out;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      out.steps[s] = reinterpret_cast<const uint2*>(shared)[s * kWarp + threadIdx.x % kWarp];
    }
    out.centred = span.group_blocks > 0;
    return out;
  }
  static __device__ void fetch_side(char* to, const DeviceSpan& span, int tile) {
    CentredSide<D, kMeanAt>::fetch(to, span, tile);
  }

  static __device__ void scores(float (&out)[2][4], const char* codes, const char* side,
                                const Query& query) {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    Pairs pairs;
    pairs.read(codes);
    float bias[4] = {};
    if (query.centred) {
      const auto* mean = reinterpret_cast<const uint32_t*>(side + kMeanAt);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint32_t low = mean[8 * s + c], high = mean[8 * s + 4 + c];
        // All rows of A alike: every lane gets its queries' sums.
        mma<__half>(bias, low, low, high, high, query.steps[s].x, query.steps[s].y);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float part[4] = {};
#pragma unroll
      for (int four = 0; four < kSteps / 4; ++four) {
        uint32_t x[2][2][4];  // [row][high]
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs.take(x[i / 2][i % 2], (half * 4 + i) * kSteps / 4 + four);
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const uint2 q = query.steps[4 * four + s];
          mma<__half>(part, x[0][0][s], x[1][0][s], x[0][1][s], x[1][1][s], q.x, q.y);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto scale = static_cast<uint8_t>(side[16 * half + j / 2 * 8 + r]);
        out[half][j] = (__half2float(__ushort_as_half(half_of_tight(scale))) * part[j] + bias[j]) *
                       power_of_two(-kRaise);
      }
    }
  }
};

template <int D, int kBits>
struct TightValues {
  using Pairs = TightPairs<D, kBits>;
  static constexpr int kTiles = D / 16;
  static constexpr int kCodeBytes = Pairs::kWords * 128, kSideBytes = kBlockRows;
  static constexpr bool kRotated = true;

  /// Channel of acc[t] row r + 8 u, in which sums are as they are.
  static __device__ int channel_of(int t, int u) {
    return 16 * t + 8 * u + static_cast<int>(threadIdx.x % kWarp) / 4;
  }
  static __device__ float unit(int, int) { return 1; }
  static __device__ float shift(const float (&)[4], int, int) { return 0; }

  static __device__ void accumulate(Running<D>& run, const char* codes, const char* side,
                                    const uint32_t (&p)[2][2]) {
    const int c = threadIdx.x % 4;
    Pairs pairs;
    pairs.read(codes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t b0 = multiply(p[half][0], tight_scales(side, 8 * half + c));
      const uint32_t b1 = multiply(p[half][1], tight_scales(side, 8 * half + 4 + c));
#pragma unroll
      for (int four = 0; four < kTiles / 4; ++four) {
        uint32_t x[2][2][4];  // [pair][u]
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs.take(x[i / 2][i % 2], (half * 4 + i) * kTiles / 4 + four);
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          mma<__half>(run.acc[4 * four + t], x[0][0][t], x[0][1][t], x[1][0][t], x[1][1][t], b0,
                      b1);
        }
      }
    }
  }
};

}  // namespace pith::cuda
