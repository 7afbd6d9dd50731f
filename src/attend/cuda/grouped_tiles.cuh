#pragma once
// Grouped b-bit rows as operands of the decode kernel, never expanded in memory.
//
// A block is 32 rows of one KV head. Codes lie in the order of tensor-core fragments: a 32-bit word
// holds, in each of its halves, 16 / b codes of neighbouring channels (keys) or rows (values). A
// code isolated by one AND is a subnormal f16, code * 2^(position - 24); tensor cores multiply
// subnormals exactly, so no conversion is needed. The power of two is folded into the query (keys)
// or into the result (values), scales into the smaller operand: the query (KIVI's per-channel
// keys), the score (per-token keys) or the probability (values).
//
// Bytes per row at D = 128: KIVI-2 96, int4 144, int8 272; dense 512.

#include "attend/cuda/running.cuh"
#include "kernels/cuda/grouped_layout.h"
#include "kernels/cuda/mma.cuh"

namespace pith::cuda {

/// f16 subnormals weigh 2^-24; queries are raised by 2^kRaise to keep small ones precise.
inline constexpr int kRaise = 4;

/// Register n of a fragment list: a pair of b-bit codes, each times 2^(unit_bits(n) - 24).
template <int kBits>
struct CodePairs {
  static constexpr int kPerWord = 16 / kBits;
  // Codes may lie in an f16's 10 bits of mantissa; the rest is shifted down first.
  static constexpr int kDirect = 10 / kBits < kPerWord ? 10 / kBits : kPerWord;
  static constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x00010001u;

  static __host__ __device__ constexpr int unit_bits(int n) {
    const int slot = n % kPerWord;
    return (slot < kDirect ? slot : slot - kDirect) * kBits;
  }
  static __device__ uint32_t take(const uint32_t* words, int n) {
    const int slot = n % kPerWord;
    const uint32_t w = words[n / kPerWord];
    return (slot < kDirect ? w : w >> (kDirect * kBits)) & (kMask << unit_bits(n));
  }
};

__device__ inline float power_of_two(int e) { return __int_as_float((127 + e) << 23); }

/// n words of this lane from a block's [n / 4][32 lanes] 16-byte pieces; of 2 words, 8-byte pieces.
template <int n>
__device__ inline void read_words(uint32_t (&words)[n], const char* block) {
  static_assert(n == 2 || n % 4 == 0);
  const int lane = threadIdx.x % kWarp;
  if constexpr (n == 2) {
    const uint2 x = reinterpret_cast<const uint2*>(block)[lane];
    words[0] = x.x;
    words[1] = x.y;
  }
#pragma unroll
  for (int i = 0; i < n / 4; ++i) {
    const uint4 x = *reinterpret_cast<const uint4*>(block + (i * kWarp + lane) * 16);
    words[4 * i] = x.x;
    words[4 * i + 1] = x.y;
    words[4 * i + 2] = x.z;
    words[4 * i + 3] = x.w;
  }
}

/// Values: per token, groups of 32 channels with an f16 scale and, if asymmetric, an f16 minimum.
template <int D, int kBits, bool kAsymmetric>
struct TokenValues {
  using Pairs = CodePairs<kBits>;
  static constexpr int kWords = D * kBits / 32, kGroups = D / 32;
  static constexpr int kCodeBytes = kWords * 128;
  static constexpr int kSideBytes = 32 * kGroups * 2 * (kAsymmetric ? 2 : 1);
  static constexpr bool kRotated = false;  // sums are of rows as a transform left them

  /// Channel of acc[t] row r + 8 u, and its unit.
  static __device__ int channel_of(int t, int u) {
    return 16 * t + 8 * u + static_cast<int>(threadIdx.x % kWarp) / 4;
  }
  static __device__ float unit(int t, int u) {
    return power_of_two(24 - Pairs::unit_bits(u * (D / 16) + t));
  }

  // The common part of a group's channels, its minima or -2^(b-1) scales, is summed apart and
  // spread over them once, at the end. With 8 bits codes outweigh it so much that f32 sums would
  // feel it: there it is spread tile by tile.
  static constexpr bool kSpreadLate = kBits <= 4;
  static constexpr float kOffset = kAsymmetric ? 1 : -(1 << (kBits - 1));
  static __device__ float shift(const float (&low)[4], int t, int j) {
    if constexpr (!kSpreadLate) return 0;
    return __shfl_sync(~0u, low[j], t / 2 * 4 + threadIdx.x % 4) * kOffset;
  }

  static __device__ void accumulate(Running<D>& run, const char* codes, const char* side,
                                    const uint32_t (&p)[2][2]) {
    float(&acc)[D / 16][4] = run.acc;
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    uint32_t words[kWords];
    read_words(words, codes);
    // [half][pair][group] f16 pairs of rows (2c, 2c + 1) + 8 pair + 16 half.
    uint32_t scales[4 * kGroups];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const uint4 x = reinterpret_cast<const uint4*>(side)[i * 4 + c];
      scales[4 * i] = x.x;
      scales[4 * i + 1] = x.y;
      scales[4 * i + 2] = x.z;
      scales[4 * i + 3] = x.w;
    }
    constexpr int kTiles = D / 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const uint32_t b0 = multiply(p[half][0], scales[(half * 2 + 0) * kGroups + g]);
        const uint32_t b1 = multiply(p[half][1], scales[(half * 2 + 1) * kGroups + g]);
#pragma unroll
        for (int t = 2 * g; t < 2 * g + 2; ++t) {
          const auto reg = [&](int pair, int u) {
            return Pairs::take(words, ((half * 2 + pair) * 2 + u) * kTiles + t);
          };
          mma<__half>(acc[t], reg(0, 0), reg(0, 1), reg(1, 0), reg(1, 1), b0, b1);
        }
      }
    }
    // Minima (asymmetric), or scales: one product with a row for each group.
    const auto* low = reinterpret_cast<const uint32_t*>(side + (kAsymmetric ? kSideBytes / 2 : 0));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[2] = {0, 0};
      if (r < kGroups) {
        a[0] = low[layout::piece_of((half * 2 + 0) * kGroups + r, c) / 2];
        a[1] = low[layout::piece_of((half * 2 + 1) * kGroups + r, c) / 2];
      }
      mma<__half>(run.low, a[0], 0, a[1], 0, p[half][0], p[half][1]);
    }
    if constexpr (!kSpreadLate) spread(run);
  }

  static __device__ void spread(Running<D>& run) {
    constexpr int kTiles = D / 16;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float x =
            __shfl_sync(~0u, run.low[j], t / 2 * 4 + static_cast<int>(threadIdx.x) % 4) * kOffset;
        run.acc[t][j] += x * power_of_two(Pairs::unit_bits(t) - 24);
        run.acc[t][2 + j] += x * power_of_two(Pairs::unit_bits(kTiles + t) - 24);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) run.low[j] = 0;
  }
};

/// Keys per channel in groups of 32 rows (KIVI): f16 scale and minimum of each channel a block.
template <int D, int kBits>
struct ChannelKeys {
  using Pairs = CodePairs<kBits>;
  static constexpr int kWords = D * kBits / 32, kSteps = D / 16;
  static constexpr int kCodeBytes = kWords * 128, kSideBytes = D * 4;

  // [step][lane] four f16 pairs: the query as it is, for the minima, and raised with the codes'
  // units taken out.
  static constexpr int kQueryBytes = kSteps * kWarp * 16;

  using Ahead = NothingAhead;
  static __device__ Ahead ask(const void*) { return {}; }

  static __device__ void prepare(char* to, const float* q, int, const void*, Ahead) {  // q [8, D]
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    for (int s = threadIdx.x / kWarp; s < kSteps; s += blockDim.x / kWarp) {
      const float* x = q + r * D + 16 * s + 2 * c;
      const float low = power_of_two(kRaise - Pairs::unit_bits(s));
      const float high = power_of_two(kRaise - Pairs::unit_bits(kSteps + s));
      reinterpret_cast<uint4*>(to)[s * kWarp + lane] =
          make_uint4(pack<__half>(x[0], x[1]), pack<__half>(x[8], x[9]),
                     pack<__half>(x[0] * low, x[1] * low), pack<__half>(x[8] * high, x[9] * high));
    }
  }

  struct Query {
    uint4 steps[kSteps];
  };
  static __device__ Query load_query(const char* shared, const DeviceSpan&) {
    Query out;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      out.steps[s] = reinterpret_cast<const uint4*>(shared)[s * kWarp + threadIdx.x % kWarp];
    }
    return out;
  }

  static __device__ void scores(float (&out)[2][4], const char* codes, const char* side,
                                const Query& query) {
    const int c = threadIdx.x % 4;
    uint32_t words[kWords];
    read_words(words, codes);
    // [step][high] f16 pairs of channels, two steps a piece; the minima after all scales.
    const auto* scales = reinterpret_cast<const uint4*>(side) + c;
    const auto* minima = scales + 4 * (kSteps / 2);
    float bias[4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i][j] = 0;
    }
#pragma unroll
    for (int pair = 0; pair < kSteps / 2; ++pair) {
      const uint4 scale = scales[4 * pair], low = minima[4 * pair];
      const uint32_t scale_of[2][2] = {{scale.x, scale.y}, {scale.z, scale.w}};
      const uint32_t low_of[2][2] = {{low.x, low.y}, {low.z, low.w}};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int s = 2 * pair + i;
        const uint4 q = query.steps[s];
        const uint32_t b0 = multiply(q.z, scale_of[i][0]);
        const uint32_t b1 = multiply(q.w, scale_of[i][1]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto reg = [&](int row, int high) {
            return Pairs::take(words, ((half * 2 + row) * 2 + high) * kSteps + s);
          };
          mma<__half>(out[half], reg(0, 0), reg(1, 0), reg(0, 1), reg(1, 1), b0, b1);
        }
        // All rows of A alike: every lane gets its queries' sums.
        mma<__half>(bias, low_of[i][0], low_of[i][0], low_of[i][1], low_of[i][1], q.x, q.y);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        out[half][j] = out[half][j] * power_of_two(24 - kRaise) + bias[j];
      }
    }
  }
};

/// Keys per token, groups of 32 channels with one f16 scale, codes offset by 2^(b-1).
template <int D, int kBits>
struct TokenKeys {
  using Pairs = CodePairs<kBits>;
  static constexpr int kWords = D * kBits / 32, kSteps = D / 16, kGroups = D / 32;
  static constexpr int kCodeBytes = kWords * 128, kSideBytes = 32 * kGroups * 2;

  // [step][lane] two f16 pairs, raised with the codes' units taken out; then [group][query] the
  // codes' offset 2^(b-1) times the group's sum.
  static constexpr int kQueryBytes = kSteps * kWarp * 8 + kGroups * 8 * 4;

  using Ahead = NothingAhead;
  static __device__ Ahead ask(const void*) { return {}; }

  static __device__ void prepare(char* to, const float* q, int, const void*, Ahead) {  // q [8, D]
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    auto* offsets = reinterpret_cast<float*>(to + kSteps * kWarp * 8);
    for (int g = threadIdx.x / kWarp; g < kGroups; g += blockDim.x / kWarp) {
      float sum = 0;  // of the rounded numbers that the product uses: the offset cancels exactly
#pragma unroll
      for (int s = 2 * g; s < 2 * g + 2; ++s) {
        uint32_t pairs[2];
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          const float* x = q + r * D + 16 * s + 8 * high + 2 * c;
          const int unit = Pairs::unit_bits(high * kSteps + s);
          const float fold = power_of_two(kRaise - unit);
          pairs[high] = pack<__half>(x[0] * fold, x[1] * fold);
          const float2 back = __half22float2(*reinterpret_cast<const __half2*>(&pairs[high]));
          sum += (back.x + back.y) * power_of_two(unit - kRaise);
        }
        reinterpret_cast<uint2*>(to)[s * kWarp + lane] = make_uint2(pairs[0], pairs[1]);
      }
      sum = sum_over_columns(sum);
      if (c == 0) offsets[g * 8 + r] = sum * (1 << (kBits - 1));
    }
  }

  struct Query {
    uint2 steps[kSteps];
    float2 offsets[kGroups];  // of queries 2c, 2c + 1
  };
  static __device__ Query load_query(const char* shared, const DeviceSpan&) {
    const int lane = threadIdx.x % kWarp;
    Query out;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      out.steps[s] = reinterpret_cast<const uint2*>(shared)[s * kWarp + lane];
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      out.offsets[g] =
          reinterpret_cast<const float2*>(shared + kSteps * kWarp * 8)[g * 4 + lane % 4];
    }
    return out;
  }

  static __device__ void scores(float (&out)[2][4], const char* codes, const char* side,
                                const Query& query) {
    const int r = threadIdx.x % kWarp / 4;
    uint32_t words[kWords];
    read_words(words, codes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i][j] = 0;
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      // [group][r][4] scales of rows r, r + 8, r + 16, r + 24.
      const uint2 packed = reinterpret_cast<const uint2*>(side)[g * 8 + r];
      const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&packed.x));
      const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&packed.y));
      const float scale[2][2] = {{low.x, low.y}, {high.x, high.y}};
      const float2 offset = query.offsets[g];
      const uint2 q[2] = {query.steps[2 * g], query.steps[2 * g + 1]};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float part[4] = {};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const auto reg = [&](int row, int up) {
            return Pairs::take(words, ((half * 2 + row) * 2 + up) * kSteps + 2 * g + i);
          };
          mma<__half>(part, reg(0, 0), reg(1, 0), reg(0, 1), reg(1, 1), q[i].x, q[i].y);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          out[half][j] += scale[half][j / 2] *
                          (part[j] * power_of_two(24 - kRaise) - (j % 2 ? offset.y : offset.x));
        }
      }
    }
  }
};

/// Keys and values of a block, with the ring that it travels through. In a batch a multiprocessor
/// has several smaller blocks: one begins or merges while another streams. Alone a call's end is
/// worth more: it merges as many parts as it has blocks.
template <class Keys, class Values, bool kInCompany = false>
struct GroupedTiles {
  using InCompany = GroupedTiles<Keys, Values, true>;
  static constexpr bool kPresent = true;
  static constexpr bool kRotated = Values::kRotated;
  static constexpr int kRows = 32;
  static constexpr int kBlockBytes =
      Keys::kCodeBytes + Keys::kSideBytes + Values::kCodeBytes + Values::kSideBytes;
  // Eight warps with three blocks each on their way were 2 to 5% faster than sixteen with two:
  // their registers hold the queries, and less is merged at the end.
  static constexpr int kWarps = kInCompany ? 4 : 8;
  // Rings of two blocks, or of four and more, are slower: what a deep ring asks for at first is
  // ahead of everything else in the queues to memory.
  static constexpr int kStages = kBlockBytes > 6144 ? 2 : 3;
  static __device__ constexpr int warps() { return kWarps; }
  static constexpr int kQueryBytes = Keys::kQueryBytes;
  // Of the larger blocks of codes a third one on a multiprocessor would spill registers.
  static constexpr int kResident = !kInCompany ? 1 : kBlockBytes > 6144 ? 2 : 3;
  using Number = __half;
  using Query = typename Keys::Query;
  struct Tile {
    const char* block;
  };

  static __device__ Query load_query(const char* shared, const DeviceSpan& span) {
    return Keys::load_query(shared, span);
  }

  using Ahead = typename Keys::Ahead;
  static __device__ Ahead ask(const void* table) { return Keys::ask(table); }
  /// The product of the keys with `queries` queries q [8, D], from the loads requested before.
  static __device__ void prepare(char* to, const float* q, int queries, const void* table,
                                 const Ahead& ahead) {
    Keys::prepare(to, q, queries, table, ahead);
  }
  static __device__ int channel_of(int t, int u) { return Values::channel_of(t, u); }
  static __device__ float unit(int t, int u) { return Values::unit(t, u); }
  static __device__ float shift(const float (&low)[4], int t, int j) {
    return Values::shift(low, t, j);
  }

  static __device__ void fetch(char* to, const DeviceSpan& span, int tile) {
    fetch_codes<Keys>(to, span.keys, tile);
    to += Keys::kCodeBytes;
    if constexpr (requires { Keys::fetch_side(to, span, tile); }) {
      Keys::fetch_side(to, span, tile);
    } else {
      copy<Keys::kSideBytes>(to, span.key_side, tile);
    }
    to += Keys::kSideBytes;
    fetch_codes<Values>(to, span.values, tile);
    copy<Values::kSideBytes>(to + Values::kCodeBytes, span.value_side, tile);
  }
  static __device__ void scores(float (&s)[2][4], const Tile& tile, const Query& q) {
    Keys::scores(s, tile.block, tile.block + Keys::kCodeBytes, q);
  }
  template <int D>
  static __device__ void accumulate(Running<D>& run, const Tile& tile, const uint32_t (&p)[2][2]) {
    const char* values = tile.block + Keys::kCodeBytes + Keys::kSideBytes;
    Values::accumulate(run, values, values + Values::kCodeBytes, p);
  }

 private:
  template <class Side>
  static __device__ void fetch_codes(char* to, const void* codes, int tile) {
    if constexpr (requires { Side::fetch_codes(to, codes, tile); }) {
      Side::fetch_codes(to, codes, tile);
    } else {
      copy<Side::kCodeBytes>(to, codes, tile);
    }
  }
  template <int kBytes>
  static __device__ void copy(char* to, const void* from, int tile) {
    static_assert(kBytes % 16 == 0);
    const char* block = static_cast<const char*>(from) + static_cast<size_t>(tile) * kBytes;
#pragma unroll
    for (int i = 0; i < kBytes / 16; i += kWarp) {
      const int piece = i + threadIdx.x % kWarp;
      if (piece < kBytes / 16) copy_async(to + 16 * piece, block + 16 * piece);
    }
  }
};

}  // namespace pith::cuda
