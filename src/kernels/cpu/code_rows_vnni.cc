// code_rows.cc for CPUs with byte products (AVX-512 VNNI and VBMI: Ice Lake, Zen 4 and later):
// codes are multiplied as they are, four of a lane in one instruction. Queries, and the weights of
// values with their rows' scales in them, become whole numbers of 16 bits, two signed bytes each,
// relative to the largest of a query, or to the largest weight times the largest scale of 64 rows:
// what rounding loses is at most 2^-16 of that largest, where a code of 8 bits loses 2^-9 of its
// group's. Sums are whole, hence exact. About 6.5 instructions for 64 codes and four queries, 4 of
// them products; code_rows.cc takes 24 to 28.

#define PITH_VNNI_TARGET
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/code_rows_vnni.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if PITH_SIMD_TARGET
#include "kernels/cpu/products-inl.h"

HWY_PUSH_ATTRIBUTES(PITH_VNNI_STR)
namespace pith {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kGroup = 32;         // channels that share a scale
constexpr size_t kBlock = kWordRows;  // rows at a time
constexpr size_t kQueries = 4;        // of one register block

const char* ran() { return hwy::TargetName(HWY_TARGET); }

/// Q queries, rounded.
template <size_t Q>
struct Queries {
  alignas(64) int8_t bytes[Q][2 * kMaxSideDim];
  float sums[kMaxSideDim / kGroup][Q];  // of each group, whole numbers
  float scale[Q];

  /// `summed`: sums are wanted.
  void fill(const float* q, size_t dim, bool summed) {
    const F32 d;
    Vec most[Q], all[Q];
    for (size_t m = 0; m < Q; ++m) {
      most[m] = all[m] = hn::Zero(d);
      for (size_t c = 0; c < dim; c += kLanes) {
        const Vec x = hn::LoadU(d, q + m * dim + c);
        most[m] = hn::Max(most[m], hn::Abs(x));
        all[m] = hn::Add(all[m], x);
      }
    }
    float largest[Q], total[Q];
    join_lanes(largest, most, Larger());
    join_lanes(total, all, Plus());
    for (size_t m = 0; m < Q; ++m) {
      most[m] = hn::Set(d, largest[m] > 0 ? kLargest / largest[m] : 0);
      // Infinity and NaN come out as NaN.
      scale[m] = largest[m] / kLargest + 0 * total[m];
    }
    for (size_t g = 0; g < dim / kGroup; ++g) {
      Vec of_group[Q];
      for (size_t m = 0; m < Q; ++m) {
        const float* from = q + m * dim + g * kGroup;
        const Words a = hn::NearestInt(hn::Mul(hn::LoadU(d, from), most[m]));
        const Words b = hn::NearestInt(hn::Mul(hn::LoadU(d, from + kLanes), most[m]));
        store_bytes(a, bytes[m] + g * kFactorBytes);
        store_bytes(b, bytes[m] + g * kFactorBytes + kFactorBytes / 2);
        of_group[m] = hn::ConvertTo(d, hn::Add(a, b));
      }
      if (summed) join_lanes(sums[g], of_group, Plus());
    }
  }
};

struct Block {
  alignas(64) int32_t words[kMaxSideDim / 4 * kBlock];
  Sides sides;
};

struct Dots {
  float* out;  // [Q, ld]
  size_t ld;
  size_t dim;
  float scale;
  bool scaled, shifted;  // whether codes have scales, and minima
};

/// out[m, row ...] for Q queries and two vectors of rows.
template <int kBits, bool kSigned, size_t Q>
HWY_INLINE void dot_pair(const Dots& a, const Queries<Q>& q, const Block& block, size_t row,
                         size_t n, const uint8_t* ahead) {
  const F32 d;
  const I32 di;
  const Words mask = hn::Set(di, static_cast<int32_t>(0x01010101u * ((1u << kBits) - 1)));
  Vec total[Q][2];
  HWY_UNROLL(4)
  for (size_t m = 0; m < Q; ++m) total[m][0] = total[m][1] = hn::Zero(d);
  for (size_t g = 0; g < a.dim / kGroup; ++g) {
    Words high[Q][2], low[Q][2];
    HWY_UNROLL(4)
    for (size_t m = 0; m < Q; ++m) {
      // Signed codes are code - 2^(b-1): the second part is the same for all rows.
      const int32_t shift = kSigned ? -(static_cast<int32_t>(q.sums[g][m]) << (kBits - 1)) : 0;
      high[m][0] = high[m][1] = hn::Zero(di);
      low[m][0] = low[m][1] = hn::Set(di, shift);
    }
    for (size_t w = 0; w < kBits; ++w) {
      // A word of these rows is as long as this of the next block's.
      for (size_t i = 0; i < 8 * kLanes; i += 64) hwy::Prefetch(ahead + i);
      ahead += 8 * kLanes;
      const int32_t* from = block.words + (g * kBits + w) * kBlock + row;
      Words v0 = hn::Load(di, from), v1 = hn::Load(di, from + kLanes);
      HWY_UNROLL(4)
      for (size_t slot = 0; slot < 8 / kBits; ++slot) {
        const Words x0 = kBits == 8 ? v0 : hn::And(v0, mask);
        const Words x1 = kBits == 8 ? v1 : hn::And(v1, mask);
        v0 = hn::ShiftRight<kBits>(v0);
        v1 = hn::ShiftRight<kBits>(v1);
        // Four neighbouring channels, as CodeRows has them.
        const size_t at = g * kFactorBytes + factor_at((slot * kBits + w) * 4);
        HWY_UNROLL(4)
        for (size_t m = 0; m < Q; ++m) {
          const int8_t* factors = q.bytes[m] + at;
          high[m][0] = add_products(high[m][0], x0, factors + kHigh);
          high[m][1] = add_products(high[m][1], x1, factors + kHigh);
          low[m][0] = add_products(low[m][0], x0, factors);
          low[m][1] = add_products(low[m][1], x1, factors);
        }
      }
    }
    HWY_UNROLL(2)
    for (size_t r = 0; r < 2; ++r) {
      const size_t at = row + r * kLanes, side = a.shifted ? 2 * g : g;
      const Vec scale = a.scaled ? block.sides.at(side, at) : hn::Set(d, 1.0f);
      const Vec minimum = a.shifted ? block.sides.at(side + 1, at) : hn::Zero(d);
      HWY_UNROLL(4)
      for (size_t m = 0; m < Q; ++m) {
        const Words sum = hn::Add(low[m][r], hn::ShiftLeft<8>(high[m][r]));
        total[m][r] = hn::MulAdd(scale, hn::ConvertTo(d, sum), total[m][r]);
        if (a.shifted) total[m][r] = hn::MulAdd(minimum, hn::Set(d, q.sums[g][m]), total[m][r]);
      }
    }
  }
  HWY_UNROLL(4)
  for (size_t m = 0; m < Q; ++m) {
    HWY_UNROLL(2)
    for (size_t r = 0; r < 2; ++r) {
      const size_t first = row + r * kLanes;
      const Vec value = hn::Mul(total[m][r], hn::Set(d, a.scale * q.scale[m]));
      if (first + kLanes <= n)
        hn::StoreU(value, d, a.out + m * a.ld + first);
      else if (first < n)
        store_part(a.out + m * a.ld + first, value, n - first);
    }
  }
}

/// All rows against Q queries.
template <int kBits, bool kSigned, size_t Q>
void dot_many(float* out, size_t ld, const float* q, const CodeRows& rows, const CodeSides& sides,
              size_t count, float scale) {
  const size_t groups = rows.dim / kGroup, row_bytes = rows.dim * kBits / 8;
  Queries<Q> rounded;
  rounded.fill(q, rows.dim, sides.numbers != nullptr);
  Dots a{out, ld, rows.dim, scale, sides.numbers != nullptr, sides.minima};
  Block block;
  for (size_t t = 0; t < count; t += kBlock, a.out += kBlock) {
    const size_t n = count - t < kBlock ? count - t : kBlock;
    const uint8_t* codes = rows.codes + t * row_bytes;
    transpose_words(block.words, codes, row_bytes, row_bytes / 4, n);
    if (sides.numbers) block.sides.fill(sides, t, groups, n);
    for (size_t row = 0; row < n; row += 2 * kLanes)
      dot_pair<kBits, kSigned, Q>(a, rounded, block, row, n, codes + (kBlock + row) * row_bytes);
  }
}

/// Weights of 64 rows for Q queries as shares of each query's largest; rows past the last: 0.
template <size_t Q>
struct Shares {
  alignas(64) float x[Q][kBlock];
  float largest[Q];

  void fill(const float* HWY_RESTRICT p, size_t ld, size_t n) {
    const F32 d;
    Vec most[Q];
    for (size_t m = 0; m < Q; ++m) {
      most[m] = hn::Zero(d);
      for (size_t t = 0; t < kBlock; t += kLanes) {
        const float* from = p + m * ld + t;
        const Vec v = t + kLanes <= n ? hn::LoadU(d, from)
                      : t < n         ? load_part(from, n - t)
                                      : hn::Zero(d);
        most[m] = hn::Max(most[m], hn::Abs(v));
        hn::Store(v, d, x[m] + t);
      }
    }
    join_lanes(largest, most, Larger());
    for (size_t m = 0; m < Q; ++m) {
      const Vec inverse = hn::Set(d, largest[m] > 0 ? 1 / largest[m] : 0);
      for (size_t t = 0; t < kBlock; t += kLanes)
        hn::Store(hn::Mul(hn::Load(d, x[m] + t), inverse), d, x[m] + t);
    }
  }
};

/// Shares times the rows' scales in one group, rounded.
template <size_t Q>
struct Weights {
  static constexpr size_t kVectors = kBlock / kLanes;

  alignas(64) int8_t bytes[Q][2 * kBlock];
  float scale[Q];
  float bias[Q];  // what minima add, or the middle of signed codes

  template <bool kMinima, int kBits>
  HWY_INLINE void fill(const Shares<Q>& shares, const Sides& sides, size_t g, size_t n) {
    const F32 d;
    Vec scales[kVectors], lows[kVectors], most = hn::Zero(d);
    HWY_UNROLL(4)
    for (size_t i = 0; i < kVectors; ++i) {
      const size_t t = i * kLanes;
      scales[i] = t < n ? sides.at(kMinima ? 2 * g : g, t) : hn::Zero(d);
      if constexpr (kMinima) lows[i] = t < n ? sides.at(2 * g + 1, t) : hn::Zero(d);
      most = hn::Max(most, hn::Abs(scales[i]));
    }
    const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
    const Vec factor = hn::Set(d, largest > 0 ? kLargest / largest : 0);
    HWY_UNROLL(4)
    for (size_t i = 0; i < kVectors; ++i) scales[i] = hn::Mul(scales[i], factor);
    Vec sums[Q];
    HWY_UNROLL(4)
    for (size_t m = 0; m < Q; ++m) {
      sums[m] = hn::Zero(d);
      HWY_UNROLL(4)
      for (size_t i = 0; i < kVectors; ++i) {
        const Vec x = hn::Load(d, shares.x[m] + i * kLanes);
        const Words whole = hn::NearestInt(hn::Mul(x, scales[i]));
        store_bytes(whole, bytes[m] + i * kFactorBytes / 2);
        // The middle is taken out of rounded weights: channels must not share an error.
        sums[m] =
            kMinima ? hn::MulAdd(x, lows[i], sums[m]) : hn::Add(sums[m], hn::ConvertTo(d, whole));
      }
    }
    join_lanes(bias, sums, Plus());
    for (size_t m = 0; m < Q; ++m) {
      scale[m] = shares.largest[m] * (largest / kLargest);
      bias[m] *= kMinima ? shares.largest[m] : -scale[m] * static_cast<float>(1 << (kBits - 1));
    }
  }
};

/// Byte 4 i + r of the result is byte `width` r + i: four rows' bytes, side by side.
template <size_t kWidth>
HWY_INLINE __m512i interleave_index() {
  struct Table {
    uint8_t at[64];
    constexpr Table() : at() {
      for (size_t b = 0; b < 64; ++b)
        at[b] = static_cast<uint8_t>(kWidth * (b % 4) + b / 4 % kWidth);
    }
  };
  alignas(64) static constexpr Table kTable;
  return _mm512_load_si512(kTable.at);
}

HWY_INLINE Words join_rows(const uint8_t* const (&rows)[4], size_t byte) {
  const auto at = [&](size_t r) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + byte));
  };
  __m512i v = _mm512_castsi128_si512(at(0));
  v = _mm512_inserti32x4(v, at(1), 1);
  v = _mm512_inserti32x4(v, at(2), 2);
  v = _mm512_inserti32x4(v, at(3), 3);
  return Words{_mm512_permutexvar_epi8(interleave_index<16>(), v)};
}

/// The codes of 32 channels of four rows, four of a channel in a lane. 2 bits: channels 0 to 7 and
/// 16 to 23, then the others.
template <int kBits>
HWY_INLINE void load_quad(Words (&x)[2], const uint8_t* const (&rows)[4]) {
  const I32 d;
  const Words mask = hn::Set(d, static_cast<int32_t>(0x01010101u * ((1u << kBits) - 1)));
  if constexpr (kBits == 8) {
    x[0] = join_rows(rows, 0);
    x[1] = join_rows(rows, 16);
  } else if constexpr (kBits == 4) {
    const Words v = join_rows(rows, 0);
    x[0] = hn::And(v, mask);
    x[1] = hn::And(hn::ShiftRight<4>(v), mask);
  } else {
    const auto two = [&](size_t r) {
      const __m128i a = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[r]));
      const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[r + 1]));
      return _mm_unpacklo_epi64(a, b);
    };
    const __m256i four = _mm256_inserti128_si256(_mm256_castsi128_si256(two(0)), two(2), 1);
    Words v{_mm512_permutexvar_epi8(interleave_index<8>(), _mm512_castsi256_si512(four))};
    // Lanes 8 to 15 see the same bytes, two slots further.
    v = hn::Shr(v, hn::ShiftLeft<2>(hn::And(hn::ShiftRight<3>(hn::Iota(d, 0)), hn::Set(d, 1))));
    x[0] = hn::And(v, mask);
    x[1] = hn::And(hn::ShiftRight<2>(v), mask);
  }
}

/// acc[m, ...] of one group += the weighted codes of n rows and the bias.
template <int kBits, size_t Q>
HWY_INLINE void add_group(float* acc, size_t dim, const Weights<Q>& weights,
                          const uint8_t* HWY_RESTRICT codes, size_t row_bytes, size_t n,
                          const uint8_t* ahead) {
  const F32 d;
  const I32 di;
  Words high[Q][2], low[Q][2];
  HWY_UNROLL(4)
  for (size_t m = 0; m < Q; ++m) {
    high[m][0] = high[m][1] = hn::Zero(di);
    low[m][0] = low[m][1] = hn::Zero(di);
  }
  const uint8_t* rows[4] = {codes, codes + row_bytes, codes + 2 * row_bytes, codes + 3 * row_bytes};
  for (size_t t = 0; t < n; t += 4, ahead += 16 * kBits) {
    hwy::Prefetch(ahead);
    if constexpr (kBits == 8) hwy::Prefetch(ahead + 64);
    if (HWY_UNLIKELY(t + 4 > n))  // the last row stands for those that are not there
      for (size_t r = n - t; r < 4; ++r) rows[r] = rows[n - t - 1];
    Words x[2];
    load_quad<kBits>(x, rows);
    HWY_UNROLL(4)
    for (size_t m = 0; m < Q; ++m) {
      const int8_t* factors = weights.bytes[m] + factor_at(t);
      high[m][0] = add_products(high[m][0], x[0], factors + kHigh);
      high[m][1] = add_products(high[m][1], x[1], factors + kHigh);
      low[m][0] = add_products(low[m][0], x[0], factors);
      low[m][1] = add_products(low[m][1], x[1], factors);
    }
    HWY_UNROLL(4)
    for (size_t r = 0; r < 4; ++r) rows[r] += 4 * row_bytes;
  }
  HWY_UNROLL(4)
  for (size_t m = 0; m < Q; ++m) {
    Vec sums[2];
    for (size_t i = 0; i < 2; ++i)
      sums[i] = hn::ConvertTo(d, hn::Add(low[m][i], hn::ShiftLeft<8>(high[m][i])));
    if constexpr (kBits == 2) {
      const Vec first = sums[0];
      sums[0] = hn::ConcatLowerLower(d, sums[1], first);
      sums[1] = hn::ConcatUpperUpper(d, sums[1], first);
    }
    const Vec scale = hn::Set(d, weights.scale[m]), bias = hn::Set(d, weights.bias[m]);
    for (size_t i = 0; i < 2; ++i) {
      float* to = acc + m * dim + i * kLanes;
      hn::StoreU(hn::Add(hn::MulAdd(scale, sums[i], hn::LoadU(d, to)), bias), d, to);
    }
  }
}

/// Q queries, a block of rows whose sides are transposed.
template <int kBits, bool kSigned, size_t Q>
void add_block(float* acc, const float* p, size_t ld, size_t dim, const Sides& sides,
               const uint8_t* codes, size_t n) {
  const size_t row_bytes = dim * kBits / 8;
  Shares<Q> shares;
  shares.fill(p, ld, n);
  // All of them first: one alone waits for its largest number, several overlap.
  Weights<Q> weights[kMaxSideDim / kGroup];
  for (size_t g = 0; g < dim / kGroup; ++g)
    weights[g].template fill<!kSigned, kBits>(shares, sides, g, n);
  for (size_t g = 0; g < dim / kGroup; ++g, codes += 4 * kBits) {
    // Each group asks for its share of the next block.
    const uint8_t* ahead = codes + kBlock * row_bytes + (kBlock - 1) * g * 4 * kBits;
    add_group<kBits, Q>(acc + g * kGroup, dim, weights[g], codes, row_bytes, n, ahead);
  }
}

template <int kBits, bool kSigned>
void add_many(float* acc, const float* p, size_t ld, size_t queries, const CodeRows& rows,
              const CodeSides& sides, size_t count) {
  const size_t dim = rows.dim, row_bytes = dim * kBits / 8;
  Sides block;
  for (size_t t = 0; t < count; t += kBlock) {
    const size_t n = count - t < kBlock ? count - t : kBlock;
    const uint8_t* codes = rows.codes + t * row_bytes;
    block.fill(sides, t, dim / kGroup, n);
    for_query_blocks<kQueries>(queries, [&]<size_t Q>(size_t m) PITH_VNNI_ATTR {
      add_block<kBits, kSigned, Q>(acc + m * dim, p + m * ld + t, ld, dim, block, codes, n);
    });
  }
}

#define PITH_CODES_ATTR PITH_VNNI_ATTR
#include "kernels/cpu/code_rows_calls-inl.h"

}  // namespace

void fill_code_rows(Kernels& table) {
  table.ran = ran;
  table.dot_codes = dot_codes;
  table.add_codes = add_codes;
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();
#endif  // PITH_SIMD_TARGET
