#pragma once
// turboquant's rows as operands of the decode kernel. Levels of 1, 3 and 4 bits are evenly spaced,
// so that codes are whole numbers in the order of their levels; those of 2 bits are a sum of two
// signs, which take a product each. Codes are isolated by AND as in grouped_tiles.cuh, the third of
// three bits put beside the other two. Scores are <H q, codes> times the row's scale; sums are of
// transformed values, and transformed back once a warp and head.
//
// Bytes per row at D = 128 and b bits: 32 b + 4, and 2 D / `center` of the mean.

#include "attend/cuda/grouped_tiles.cuh"
#include "rows/cpu/plane_rows.h"
#include "rows/cuda/level_lane.cuh"

namespace pith::cuda {

/// A lane's codes of b bits, pair n of a list (see grouped_layout.h), each times
/// 2^(unit_bits(n) - 24).
template <int D, int kBits>
struct TurboquantPairs {
  static constexpr int kParts = kBits == 2 ? 2 : 1;  // products that a pair takes
  static constexpr int kWords = D * kBits / 32;
  static constexpr int kFirst =
      D * layout::code_part(kBits, 0, false).width / 32;  // of the first part

  // A level in codes: step of a part times its code, summed, - kShift.
  static constexpr float kStep = 2 * plane_weight(kBits, kBits == 2 ? 0 : kBits - 1);
  static constexpr float kSecondStep = 2 * plane_weight(kBits, kBits == 2 ? 1 : kBits - 1);
  static constexpr float kShift = [] {
    float sum = 0;
    for (int i = 0; i < kBits; ++i) sum += plane_weight(kBits, i);
    return sum;
  }();

  uint32_t first[kFirst], second[kWords > kFirst ? kWords - kFirst : 1];

  __device__ void read(const char* codes) {
    read_words(first, codes);
    if constexpr (kWords > kFirst) read_words(second, codes + kFirst * 128);
  }
  /// Codes that one shift brings down to the lower bits of an f16's mantissa.
  static constexpr int kDirect = kBits <= 2 ? 8 : kBits == 3 ? 4 : 2;
  static __host__ __device__ constexpr int unit_bits(int n) {
    return n % kDirect * (kBits <= 2 ? 1 : kBits == 3 ? 2 : 4);
  }
  static __device__ uint32_t lower(const uint32_t* words, int n, uint32_t mask) {
    constexpr int kPerWord = 2 * kDirect;
    const uint32_t w = words[n / kPerWord];
    return (n % kPerWord < kDirect ? w : w >> 8) & (mask << unit_bits(n));
  }
  /// `n` and `part` are known when it is compiled.
  __device__ uint32_t take(int part, int n) const {
    if constexpr (kBits <= 2) return lower(part == 0 ? first : second, n, 0x00010001u);
    if constexpr (kBits == 4) return lower(first, n, 0x000f000fu);
    if constexpr (kBits == 3) {
      const uint32_t w = second[n / 16];
      const int four = n / 4 % 4;  // whose bits one shift brings to their place
      const uint32_t top = four == 0 ? w << 2 : four == 1 ? w << 1 : four == 2 ? w >> 6 : w >> 7;
      const uint32_t two = four % 2 == 0 ? first[n / 8] : first[n / 8] >> 8;
      // Codes of even places and of odd ones leave room for each other's upper bits: one
      // instruction joins two codes, which one each takes out.
      const uint32_t from_two = n % 2 == 0 ? 0x00330033u : 0x00cc00ccu;
      return select_bits(from_two, two, top) & (0x00070007u << unit_bits(n));
    }
  }
};

/// The data beside centred keys, kMeanAt bytes of scales first.
template <int D, int kMeanAt>
struct CentredSide {
  /// Scales, and the mean of the block's group out of its blocks' shares.
  static __device__ void fetch(char* to, const DeviceSpan& span, int tile) {
    constexpr int kMeanPieces = 2 * D / 16;
    const int lane = threadIdx.x % kWarp, blocks = span.group_blocks;
    const int share = blocks > 0 ? kMeanPieces / blocks : 0;  // 16-byte pieces
    const int stride = kMeanAt / 16 + share;
    const auto* sides = static_cast<const uint4*>(span.key_side);
    if (lane >= kMeanPieces) {
      const int i = lane - kMeanPieces;
      if (i < kMeanAt / 16) copy_async(to + 16 * i, sides + static_cast<size_t>(tile) * stride + i);
    } else if (blocks > 0) {
      const int of = lane >> (31 - __clz(share));  // the block whose share it is
      copy_async(to + kMeanAt + 16 * lane, sides +
                                               static_cast<size_t>((tile & -blocks) + of) * stride +
                                               kMeanAt / 16 + lane - of * share);
    }
  }
};

template <int D, int kBits>
struct TurboquantKeys {
  using Pairs = TurboquantPairs<D, kBits>;
  static constexpr int kSteps = D / 16;
  static constexpr int kMeanAt = 64;  // after the rows' scales: of the group, gathered
  static constexpr int kCodeBytes = Pairs::kWords * 128, kSideBytes = kMeanAt + 2 * D;

  // Transformed queries: [step][lane] two f16 pairs, raised with the codes' units taken out; the
  // same as they are; [query] what the codes' shift adds; [query, D] f32.
  static constexpr int kPlainAt = kSteps * kWarp * 8, kOffsetsAt = 2 * kPlainAt;
  static constexpr int kTurnedAt = kOffsetsAt + 8 * 4;
  static constexpr int kQueryBytes = kTurnedAt + 8 * D * 4;

  using Ahead = NothingAhead;
  static __device__ Ahead ask(const void*) { return {}; }

  /// A query's number is multiplied by 2^this.
  static __device__ int fold(int step, int high) {
    return kRaise - Pairs::unit_bits(high * kSteps + step);
  }
  static __device__ void prepare(char* to, const float* q, int, const void*, Ahead) {  // q [8, D]
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    auto* turned = reinterpret_cast<float*>(to + kTurnedAt);
    rotate_queries<D>(turned, q, 0);
    __syncthreads();
    for (int s = warp; s < kSteps; s += warps) {
      const float* x = turned + r * D + 16 * s + 2 * c;
      const float low = power_of_two(fold(s, 0)), high = power_of_two(fold(s, 1));
      reinterpret_cast<uint2*>(to)[s * kWarp + lane] =
          make_uint2(pack<__half>(x[0] * low, x[1] * low), pack<__half>(x[8] * high, x[9] * high));
      reinterpret_cast<uint2*>(to + kPlainAt)[s * kWarp + lane] =
          make_uint2(pack<__half>(x[0], x[1]), pack<__half>(x[8], x[9]));
    }
    for (int query = warp; query < 8; query += warps) {
      float sum = 0;  // of the rounded numbers that products use: the shift cancels exactly
      for (int channel = lane; channel < D; channel += kWarp) {
        const int unit = fold(channel / 16, channel % 16 / 8);
        const float raised = turned[query * D + channel] * power_of_two(unit);
        sum += __half2float(__float2half_rn(raised)) * power_of_two(-unit);
      }
      sum = sum_of_warp(sum);
      if (lane == 0) reinterpret_cast<float*>(to + kOffsetsAt)[query] = sum * Pairs::kShift;
    }
  }

  struct Query {
    uint2 steps[kSteps];
    float2 offsets;  // of queries 2c, 2c + 1
    const char* shared;
    bool centred;
  };
  static __device__ Query load_query(const char* shared, const DeviceSpan& span) {
    const int lane = threadIdx.x % kWarp;
    Query out;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      out.steps[s] = reinterpret_cast<const uint2*>(shared)[s * kWarp + lane];
    }
    out.offsets = reinterpret_cast<const float2*>(shared + kOffsetsAt)[lane % 4];
    out.shared = shared;
    out.centred = span.group_blocks > 0;
    return out;
  }

  static __device__ void fetch_side(char* to, const DeviceSpan& span, int tile) {
    CentredSide<D, kMeanAt>::fetch(to, span, tile);
  }
  static __device__ void add_mean(float (&out)[4], const char* mean, const Query& query) {
    const int lane = threadIdx.x % kWarp, c = lane % 4;
    const auto* pairs = reinterpret_cast<const uint32_t*>(mean);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint2 q = reinterpret_cast<const uint2*>(query.shared + kPlainAt)[s * kWarp + lane];
      const uint32_t low = pairs[8 * s + c], high = pairs[8 * s + 4 + c];
      // All rows of A alike: every lane gets its queries' sums.
      mma<__half>(out, low, low, high, high, q.x, q.y);
    }
  }

  static __device__ void scores(float (&out)[2][4], const char* codes, const char* side,
                                const Query& query) {
    const int r = threadIdx.x % kWarp / 4;
    Pairs pairs;
    pairs.read(codes);
    float bias[4] = {};
    if (query.centred) add_mean(bias, side + kMeanAt, query);
    const auto* scales = reinterpret_cast<const __half*>(side);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float part[Pairs::kParts][4] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint2 q = query.steps[s];
#pragma unroll
        for (int p = 0; p < Pairs::kParts; ++p) {
          const auto reg = [&](int row, int high) {
            return pairs.take(p, ((half * 2 + row) * 2 + high) * kSteps + s);
          };
          mma<__half>(part[p], reg(0, 0), reg(1, 0), reg(0, 1), reg(1, 1), q.x, q.y);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float scale = __half2float(scales[16 * half + j / 2 * 8 + r]);
        float sum = -(j % 2 ? query.offsets.y : query.offsets.x);
#pragma unroll
        for (int p = 0; p < Pairs::kParts; ++p) {
          const float step = p == 0 ? Pairs::kStep : Pairs::kSecondStep;
          sum += part[p][j] * (step * power_of_two(24 - kRaise));
        }
        out[half][j] = scale * sum + bias[j];
      }
    }
  }
};

template <int D, int kBits>
struct TurboquantValues {
  using Pairs = TurboquantPairs<D, kBits>;
  static constexpr int kTiles = D / 16;
  static constexpr int kCodeBytes = Pairs::kWords * 128, kSideBytes = 64;
  static constexpr bool kRotated = true;

  /// Channel of acc[t] row r + 8 u, and its unit.
  static __device__ int channel_of(int t, int u) {
    return 16 * t + 8 * u + static_cast<int>(threadIdx.x % kWarp) / 4;
  }
  static __device__ float unit(int t, int u) {
    return power_of_two(24 - Pairs::unit_bits(u * kTiles + t)) * Pairs::kStep;
  }
  // Of the second sign, with 2 bits, to the first: an f16. The shift goes by the rounded one, so
  // that levels stay symmetric: an error that all rows share would outweigh their mean.
  static constexpr float kRatio =
      static_cast<float>(static_cast<int>(Pairs::kSecondStep / Pairs::kStep * 2048 + 0.5f)) / 2048;
  static constexpr float kShift =
      Pairs::kParts == 2 ? Pairs::kStep / 2 * (1 + kRatio) : Pairs::kShift;
  // It is the same for all channels: probabilities times scales are summed apart.
  static __device__ float shift(const float (&low)[4], int, int j) { return -kShift * low[j]; }

  static __device__ void accumulate(Running<D>& run, const char* codes, const char* side,
                                    const uint32_t (&p)[2][2]) {
    const int c = threadIdx.x % 4;
    Pairs pairs;
    pairs.read(codes);
    const auto* scales = reinterpret_cast<const uint32_t*>(side);  // of rows 2 i, 2 i + 1
    constexpr uint32_t kOnes = 0x3c003c00u;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t b0 = multiply(p[half][0], scales[8 * half + c]);
      const uint32_t b1 = multiply(p[half][1], scales[8 * half + 4 + c]);
      mma<__half>(run.low, kOnes, kOnes, kOnes, kOnes, b0, b1);
      const auto add = [&](int part, uint32_t x0, uint32_t x1) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const auto reg = [&](int pair, int u) {
            return pairs.take(part, ((half * 2 + pair) * 2 + u) * kTiles + t);
          };
          mma<__half>(run.acc[t], reg(0, 0), reg(0, 1), reg(1, 0), reg(1, 1), x0, x1);
        }
      };
      add(0, b0, b1);
      if constexpr (Pairs::kParts == 2) {
        const uint32_t ratio = pack<__half>(kRatio, kRatio);
        add(1, multiply(b0, ratio), multiply(b1, ratio));
      }
    }
  }
};

}  // namespace pith::cuda
