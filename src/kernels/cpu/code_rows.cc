// Attention straight from codes. Scores have one row a lane: the codes of a block of rows are
// transposed in 32-bit words, so that no sum runs across lanes and a row's scale is one product a
// group of 32 channels. Sums of values have one channel a lane, with the scales in the weights.
// About 13 instructions a vector of 4-bit codes and four queries, 8 of them multiply-adds.

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/code_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if PITH_SIMD_TARGET
#include "kernels/cpu/words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kGroup = 32;                        // channels that share a scale
constexpr size_t kMaxDim = kMaxSideDim;              // of rows that these kernels take
constexpr size_t kBlock = kWordRows;                 // rows at a time
constexpr size_t kQueries = kManyRegisters ? 4 : 2;  // of one register block
constexpr size_t kPair = 2;                          // vectors of rows of one register block

/// Codes of kBits each, the lowest of every lane, as numbers: code, or code - 2^(kBits-1).
template <int kBits, bool kSigned>
class Numbers {
 public:
  Numbers() {
    const I32 d;
    const auto code = hn::And(hn::Iota(d, 0), hn::Set(d, kMask));
    table_ = hn::ConvertTo(F32(), kSigned ? hn::Sub(code, hn::Set(d, kHalf)) : code);
  }
  /// A word of codes as operator() wants it: where signs count, they are put into the top bits.
  HWY_INLINE Words turned(Words v) const {
    if constexpr (kTable || !kSigned) return v;
    constexpr uint32_t kOnes = ~uint32_t{0} / ((1u << kBits) - 1);  // bit 0 of every code
    return hn::Xor(v, hn::Set(I32(), static_cast<int32_t>(kOnes * kHalf)));
  }
  HWY_INLINE Vec operator()(Words v) const {
    const I32 d;
    if constexpr (kTable) {
      // The lookup sees the low bits alone; Highway's own checks want the others gone.
      if constexpr (HWY_IS_DEBUG_BUILD) v = hn::And(v, hn::Set(d, kLanes - 1));
      return hn::TableLookupLanes(table_, hn::IndicesFromVec(F32(), v));
    } else if constexpr (kSigned) {
      return hn::ConvertTo(F32(), hn::ShiftRight<32 - kBits>(hn::ShiftLeft<32 - kBits>(v)));
    } else {
      return hn::ConvertTo(F32(), hn::And(v, hn::Set(d, kMask)));
    }
  }

 private:
  static constexpr int kMask = (1 << kBits) - 1, kHalf = 1 << (kBits - 1);
  static constexpr bool kTable = size_t{1} << kBits <= kLanes;
  Vec table_;
};

/// A block of rows, transposed.
struct Block {
  alignas(64) int32_t words[kMaxDim / 4 * kBlock];
  Sides sides;
};

struct Dots {
  float* out;  // [Q, ld]
  size_t ld;
  const float* q;     // [Q, kMaxDim] in the order in which a word's bits are gone through
  const float* sums;  // [Q, D / 32] of q over each group
  size_t dim;
  float scale;
  bool scaled, shifted;  // whether codes have scales, and minima
};

/// out[m, row ...] for Q queries and kPair vectors of rows.
template <int kBits, bool kSigned, size_t Q>
HWY_INLINE void dot_pair(const Dots& a, const Block& block, size_t row, size_t n,
                         const uint8_t* ahead) {
  const F32 d;
  const I32 di;
  const Numbers<kBits, kSigned> numbers;
  Vec total[Q][kPair];
  HWY_UNROLL(4)
  for (size_t m = 0; m < Q; ++m) total[m][0] = total[m][1] = hn::Zero(d);
  const float* HWY_RESTRICT q = a.q;
  for (size_t g = 0; g < a.dim / kGroup; ++g) {
    Vec sum[Q][kPair];
    HWY_UNROLL(4)
    for (size_t m = 0; m < Q; ++m) sum[m][0] = sum[m][1] = hn::Zero(d);
    for (size_t w = 0; w < kBits; ++w) {
      // A word of these rows is as long as this of the next block's.
      for (size_t i = 0; i < kPair * kLanes * 4; i += 64) hwy::Prefetch(ahead + i);
      ahead += kPair * kLanes * 4;
      const int32_t* from = block.words + (g * kBits + w) * kBlock + row;
      Words v0 = numbers.turned(hn::Load(di, from));
      Words v1 = numbers.turned(hn::Load(di, from + kLanes));
      HWY_UNROLL(16)
      for (size_t k = 0; k < 32 / kBits; ++k, ++q) {
        const Vec x0 = numbers(v0), x1 = numbers(v1);
        v0 = hn::ShiftRight<kBits>(v0);
        v1 = hn::ShiftRight<kBits>(v1);
        HWY_UNROLL(4)
        for (size_t m = 0; m < Q; ++m) {
          const Vec factor = hn::Set(d, q[m * kMaxDim]);
          sum[m][0] = hn::MulAdd(factor, x0, sum[m][0]);
          sum[m][1] = hn::MulAdd(factor, x1, sum[m][1]);
        }
      }
    }
    HWY_UNROLL(2)
    for (size_t r = 0; r < kPair; ++r) {
      const size_t at = row + r * kLanes, side = a.shifted ? 2 * g : g;
      const Vec scale = a.scaled ? block.sides.at(side, at) : hn::Set(d, 1.0f);
      const Vec low = a.shifted ? block.sides.at(side + 1, at) : hn::Zero(d);
      HWY_UNROLL(4)
      for (size_t m = 0; m < Q; ++m) {
        total[m][r] = hn::MulAdd(scale, sum[m][r], total[m][r]);
        if (a.shifted)
          total[m][r] = hn::MulAdd(low, hn::Set(d, a.sums[m * (a.dim / kGroup) + g]), total[m][r]);
      }
    }
  }
  HWY_UNROLL(4)
  for (size_t m = 0; m < Q; ++m) {
    HWY_UNROLL(2)
    for (size_t r = 0; r < kPair; ++r) {
      const size_t first = row + r * kLanes;
      const Vec value = hn::Mul(total[m][r], hn::Set(d, a.scale));
      if (first + kLanes <= n)
        hn::StoreU(value, d, a.out + m * a.ld + first);
      else if (first < n)
        store_part(a.out + m * a.ld + first, value, n - first);
    }
  }
}

/// packed [Q, kMaxDim] <- q [Q, D] in the order of the bits: words of a group, codes of a word.
template <int kBits, size_t Q>
void pack_queries(float* HWY_RESTRICT packed, const float* HWY_RESTRICT q, size_t dim) {
  constexpr size_t kBytes = 4 * kBits, kSlots = 8 / kBits;
  for (size_t m = 0; m < Q; ++m, packed += kMaxDim, q += dim) {
    for (size_t first = 0; first < dim; first += kGroup)
      for (size_t byte = 0; byte < kBytes; ++byte)
        for (size_t slot = 0; slot < kSlots; ++slot)
          packed[first + byte * kSlots + slot] = q[first + slot * kBytes + byte];
  }
}

/// All rows against Q queries.
template <int kBits, bool kSigned, size_t Q>
void dot_many(float* out, size_t ld, const float* q, const CodeRows& rows, const CodeSides& sides,
              size_t count, float scale) {
  const size_t groups = rows.dim / kGroup, row_bytes = rows.dim * kBits / 8;
  float packed[Q * kMaxDim], sums[Q * kMaxDim / kGroup];
  pack_queries<kBits, Q>(packed, q, rows.dim);
  for (size_t i = 0; sides.minima && i < Q * groups; ++i) {
    sums[i] = 0;
    for (size_t c = 0; c < kGroup; ++c) sums[i] += q[i * kGroup + c];
  }
  Dots a{out, ld, packed, sums, rows.dim, scale, sides.numbers != nullptr, sides.minima};
  Block block;
  for (size_t t = 0; t < count; t += kBlock, a.out += kBlock) {
    const size_t n = count - t < kBlock ? count - t : kBlock;
    const uint8_t* codes = rows.codes + t * row_bytes;
    transpose_words(block.words, codes, row_bytes, row_bytes / 4, n);
    if (sides.numbers) block.sides.fill(sides, t, groups, n);
    for (size_t row = 0; row < n; row += kPair * kLanes)
      dot_pair<kBits, kSigned, Q>(a, block, row, n, codes + (kBlock + row) * row_bytes);
  }
}

constexpr size_t kGroupVectors = kGroup / kLanes;

/// The codes of one group as numbers, in the order of the channels.
template <int kBits, bool kSigned>
HWY_INLINE void load_group(Vec (&x)[kGroupVectors], const Numbers<kBits, kSigned>& numbers,
                           const uint8_t* HWY_RESTRICT bytes) {
  const I32 wide;
  const hn::Rebind<uint8_t, F32> narrow;
  constexpr size_t kBytes = 4 * kBits;
  if constexpr (kBits == 8) {
    const F32 d;
    const hn::Rebind<int8_t, F32> signed_narrow;
    HWY_UNROLL(4)
    for (size_t i = 0; i < kGroupVectors; ++i) {
      const auto codes = hn::LoadU(narrow, bytes + i * kLanes);
      if constexpr (kSigned) {
        const auto turned = hn::BitCast(signed_narrow, hn::Xor(codes, hn::Set(narrow, 0x80)));
        x[i] = hn::ConvertTo(d, hn::PromoteTo(wide, turned));
      } else {
        x[i] = hn::ConvertTo(d, hn::PromoteTo(wide, codes));
      }
    }
  } else if constexpr (kBytes >= kLanes) {
    constexpr size_t kPieces = kBytes / kLanes;  // vectors that a slot fills
    HWY_UNROLL(4)
    for (size_t i = 0; i < kPieces; ++i) {
      auto codes = numbers.turned(hn::PromoteTo(wide, hn::LoadU(narrow, bytes + i * kLanes)));
      HWY_UNROLL(4)
      for (size_t slot = 0; slot < 8 / kBits; ++slot) {
        x[slot * kPieces + i] = numbers(codes);
        codes = hn::ShiftRight<kBits>(codes);
      }
    }
  } else {
    // Eight bytes, sixteen lanes: both halves see the same bytes and shift by slots of their own.
    const hn::Repartition<uint64_t, decltype(narrow)> word;
    uint64_t eight;
    std::memcpy(&eight, bytes, 8);
    auto codes = numbers.turned(hn::PromoteTo(wide, hn::BitCast(narrow, hn::Set(word, eight))));
    const auto upper = hn::And(hn::ShiftRight<3>(hn::Iota(wide, 0)), hn::Set(wide, 1));
    codes = hn::Shr(codes, hn::Add(upper, upper));
    HWY_UNROLL(4)
    for (size_t i = 0; i < kGroupVectors; ++i) {
      x[i] = numbers(codes);
      codes = hn::ShiftRight<4>(codes);
    }
  }
}

/// acc[m, ...] of one group += sum_t weights[m * kBlock + t] code[t, ...] + bias[m], Q queries.
template <int kBits, bool kSigned, size_t Q>
HWY_INLINE void add_group(float* acc, size_t dim, const float* HWY_RESTRICT weights,
                          const float* bias, const uint8_t* HWY_RESTRICT codes, size_t row_bytes,
                          size_t n, const uint8_t* ahead) {
  const F32 d;
  const Numbers<kBits, kSigned> numbers;
  Vec sums[Q][kGroupVectors];
  HWY_UNROLL(4)
  for (size_t m = 0; m < Q; ++m) {
    HWY_UNROLL(4)
    for (size_t i = 0; i < kGroupVectors; ++i)
      sums[m][i] = hn::Add(hn::LoadU(d, acc + m * dim + i * kLanes), hn::Set(d, bias[m]));
  }
  for (size_t t = 0; t < n; ++t, codes += row_bytes, ahead += 4 * kBits) {
    hwy::Prefetch(ahead);
    Vec x[kGroupVectors];
    load_group<kBits, kSigned>(x, numbers, codes);
    HWY_UNROLL(4)
    for (size_t m = 0; m < Q; ++m) {
      const Vec weight = hn::Set(d, weights[m * kBlock + t]);
      HWY_UNROLL(4)
      for (size_t i = 0; i < kGroupVectors; ++i) sums[m][i] = hn::MulAdd(weight, x[i], sums[m][i]);
    }
  }
  HWY_UNROLL(4)
  for (size_t m = 0; m < Q; ++m) {
    HWY_UNROLL(4)
    for (size_t i = 0; i < kGroupVectors; ++i)
      hn::StoreU(sums[m][i], d, acc + m * dim + i * kLanes);
  }
}

/// weights[m, t] <- p[m, t] scale[t] of group g, and bias[m] <- sum_t p[m, t] low[t].
template <bool kMinima>
HWY_INLINE void weigh(float* HWY_RESTRICT weights, float* bias, const float* HWY_RESTRICT p,
                      size_t ld, size_t queries, const Sides& sides, size_t g, size_t n) {
  const F32 d;
  Vec sums[kQueries];
  for (size_t m = 0; m < queries; ++m) sums[m] = hn::Zero(d);
  for (size_t t = 0; t < n; t += kLanes) {
    const Vec scale = sides.at(kMinima ? 2 * g : g, t);
    const Vec low = kMinima ? sides.at(2 * g + 1, t) : hn::Zero(d);
    for (size_t m = 0; m < queries; ++m) {
      const float* from = p + m * ld + t;
      const Vec x = t + kLanes <= n ? hn::LoadU(d, from) : load_part(from, n - t);
      hn::Store(hn::Mul(x, scale), d, weights + m * kBlock + t);
      if constexpr (kMinima) sums[m] = hn::MulAdd(x, low, sums[m]);
    }
  }
  for (size_t m = 0; m < queries; ++m) bias[m] = kMinima ? sum_lanes(sums[m]) : 0;
}

template <int kBits, bool kSigned, size_t Q>
HWY_INLINE void add_rows_of_group(float* acc, const float* p, size_t ld, size_t dim,
                                  const Sides& sides, size_t g, const uint8_t* codes, size_t n) {
  alignas(64) float weights[Q * kBlock];
  float bias[Q];
  weigh<!kSigned>(weights, bias, p, ld, Q, sides, g, n);
  // Each group asks for its share of the next block.
  const size_t row_bytes = dim * kBits / 8;
  add_group<kBits, kSigned, Q>(acc + g * kGroup, dim, weights, bias, codes + g * 4 * kBits,
                               row_bytes, n, codes + kBlock * (row_bytes + g * 4 * kBits));
}

template <int kBits, bool kSigned>
void add_many(float* acc, const float* p, size_t ld, size_t queries, const CodeRows& rows,
              const CodeSides& sides, size_t count) {
  const size_t dim = rows.dim, groups = dim / kGroup, row_bytes = dim * kBits / 8;
  Sides block;
  for (size_t t = 0; t < count; t += kBlock) {
    const size_t n = count - t < kBlock ? count - t : kBlock;
    const uint8_t* codes = rows.codes + t * row_bytes;
    block.fill(sides, t, groups, n);
    for (size_t g = 0; g < groups; ++g) {
      for_query_blocks<kQueries>(queries, [&]<size_t Q>(size_t m) HWY_ATTR {
        add_rows_of_group<kBits, kSigned, Q>(acc + m * dim, p + m * ld + t, ld, dim, block, g,
                                             codes, n);
      });
    }
  }
}

#define PITH_CODES_ATTR HWY_ATTR
#include "kernels/cpu/code_rows_calls-inl.h"

}  // namespace

void fill_code_rows(Kernels& table) {
  table.dot_codes = dot_codes;
  table.add_codes = add_codes;
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();
#endif  // PITH_SIMD_TARGET
