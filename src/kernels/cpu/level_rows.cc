// Attention over codes that name levels of a table (KVQuant, TurboQuant): a table of 16 numbers
// lies in a register (two of AVX2's), so that a code becomes its level by one lookup, once for all
// queries. Scores have one row a lane, as in code_rows.cc, sums of values one channel a lane. About
// 6 instructions a vector of codes and four queries, 4 of them multiply-adds.

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/level_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if PITH_SIMD_TARGET
#include "kernels/cpu/words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kGroup = 32;                        // channels worked on together
constexpr size_t kMaxDim = 512;                      // of rows that dot and add take
constexpr size_t kQueries = kManyRegisters ? 4 : 2;  // of one register block
constexpr size_t kVectors = kGroup / kLanes;

static_assert(kLanes == 8 || kLanes == 16, "a table is one vector, or two");

/// Looks up the code in the low bits of every lane; what lies above them does not count.
template <int kBits>
class Levels {
 public:
  explicit Levels(const float* levels) {
    const F32 d;
    alignas(64) float all[16];
    for (size_t i = 0; i < 16; ++i) all[i] = levels[i % (size_t{1} << kBits)];
    table_ = hn::Load(d, all);
    if constexpr (kTwo) upper_ = hn::Load(d, all + kLanes);
  }
  HWY_INLINE Vec operator()(Words v) const {
    const F32 d;
    const I32 di;
    const auto index = indices(v);
    if constexpr (!kTwo) return hn::TableLookupLanes(table_, index);
    // Bit 3 chooses the table: moved to the sign.
    const Vec chooser = hn::BitCast(d, hn::ShiftLeft<28>(v));
    return hn::IfNegativeThenElse(chooser, hn::TableLookupLanes(upper_, index),
                                  hn::TableLookupLanes(table_, index));
  }

 private:
  static constexpr bool kTwo = kLanes == 8 && kBits == 4;
  /// The lookup sees the low bits alone; Highway's own checks want the others gone.
  static HWY_INLINE auto indices(Words v) {
    if constexpr (HWY_IS_DEBUG_BUILD) v = hn::And(v, hn::Set(I32(), kLanes - 1));
    return hn::IndicesFromVec(F32(), v);
  }
  Vec table_, upper_;
};

// 32 codes are kBits words. They are gone through in runs of whole codes: words as they are, or for
// 3 bits the words that begin at bits 0, 30, 60 and 90.
template <int kBits>
constexpr size_t kRuns = kBits == 3 ? 4 : kBits;
template <int kBits>
constexpr size_t run_length(size_t run) {
  return kBits != 3 ? 32 / kBits : run < 3 ? 10 : 2;
}

/// Run r of kLanes rows, whose words lie kWordRows apart from `words` on.
template <int kBits, size_t kRun>
HWY_INLINE Words load_run(const int32_t* words) {
  const I32 d;
  const hn::RebindToUnsigned<I32> u;
  const auto word = [&](size_t w) { return hn::Load(d, words + w * kWordRows); };
  if constexpr (kBits != 3 || kRun == 0) {
    return word(kRun);
  } else {
    constexpr int kShift = 32 - 2 * static_cast<int>(kRun);  // of the word before
    const auto low = hn::BitCast(d, hn::ShiftRight<kShift>(hn::BitCast(u, word(kRun - 1))));
    if constexpr (kRun == 3) return low;
    return hn::Or(low, hn::ShiftLeft<32 - kShift>(word(kRun % 3)));
  }
}

/// sums[m][0 .. 1] += q levels of run kRun and those after it, two vectors of rows.
template <int kBits, size_t kRun, size_t Q>
HWY_INLINE void add_runs(Vec (&sums)[Q][2], const Levels<kBits>& levels, const int32_t* words,
                         const float* HWY_RESTRICT q, size_t dim) {
  const F32 d;
  if constexpr (kRun < kRuns<kBits>) {
    Words v0 = load_run<kBits, kRun>(words), v1 = load_run<kBits, kRun>(words + kLanes);
    HWY_UNROLL(32)
    for (size_t k = 0; k < run_length<kBits>(kRun); ++k) {
      const Vec x0 = levels(v0), x1 = levels(v1);
      v0 = hn::ShiftRight<kBits>(v0);
      v1 = hn::ShiftRight<kBits>(v1);
      HWY_UNROLL(4)
      for (size_t m = 0; m < Q; ++m) {
        const Vec factor = hn::Set(d, q[m * dim + k]);
        sums[m][0] = hn::MulAdd(factor, x0, sums[m][0]);
        sums[m][1] = hn::MulAdd(factor, x1, sums[m][1]);
      }
    }
    add_runs<kBits, kRun + 1, Q>(sums, levels, words, q + run_length<kBits>(kRun), dim);
  }
}

template <int kBits, size_t Q>
void dot_many(float* out, size_t ld, const float* q, const LevelRows& rows, size_t count,
              float scale) {
  const F32 d;
  const Levels<kBits> levels(rows.levels);
  const size_t row_words = rows.dim * kBits / 32;
  alignas(64) int32_t words[kMaxDim * kBits / 32 * kWordRows];
  for (size_t t = 0; t < count; t += kWordRows, out += kWordRows) {
    const size_t n = count - t < kWordRows ? count - t : kWordRows;
    const uint8_t* codes = rows.codes + t * rows.stride;
    transpose_words(words, codes, rows.stride, row_words, n);
    const uint8_t* ahead = codes + kWordRows * rows.stride;
    for (size_t row = 0; row < n; row += 2 * kLanes) {
      for (size_t i = 0; i < 2 * kLanes * rows.stride; i += 64) hwy::Prefetch(ahead + i);
      ahead += 2 * kLanes * rows.stride;
      Vec sums[Q][2];
      HWY_UNROLL(4)
      for (size_t m = 0; m < Q; ++m) sums[m][0] = sums[m][1] = hn::Zero(d);
      for (size_t g = 0; g < rows.dim / kGroup; ++g)
        add_runs<kBits, 0, Q>(sums, levels, words + g * kBits * kWordRows + row, q + g * kGroup,
                              rows.dim);
      for (size_t m = 0; m < Q; ++m)
        for (size_t r = 0; r < 2; ++r) {
          const size_t first = row + r * kLanes;
          const Vec value = hn::Mul(sums[m][r], hn::Set(d, scale));
          if (first + kLanes <= n)
            hn::StoreU(value, d, out + m * ld + first);
          else if (first < n)
            store_part(out + m * ld + first, value, n - first);
        }
    }
  }
}

template <int kBits>
void dot_all(float* out, size_t ld, const float* q, size_t queries, const LevelRows& rows,
             size_t count, float scale) {
  for_query_blocks<kQueries>(queries, [&]<size_t Q>(size_t m) HWY_ATTR {
    dot_many<kBits, Q>(out + m * ld, ld, q + m * rows.dim, rows, count, scale);
  });
}

/// kLanes neighbouring codes, one per lane, in its low bits: 8 codes are kBits bytes.
template <int kBits>
HWY_INLINE Words load_codes(const uint8_t* codes) {
  const I32 d;
  int32_t first;
  std::memcpy(&first, codes, 4);
  const auto shifts = hn::Mul(hn::And(hn::Iota(d, 0), hn::Set(d, 7)), hn::Set(d, kBits));
  if constexpr (kLanes == 8) {
    return hn::Shr(hn::Set(d, first), shifts);
  } else {
    const hn::Half<I32> half;
    int32_t second;
    std::memcpy(&second, codes + kBits, 4);
    return hn::Shr(hn::Combine(d, hn::Set(half, second), hn::Set(half, first)), shifts);
  }
}

/// acc[m, 0 .. 31] += sum_t p[m * ld + t] level[t, 0 .. 31].
template <int kBits, size_t Q>
HWY_INLINE void add_group(float* acc, size_t dim, const float* HWY_RESTRICT p, size_t ld,
                          const Levels<kBits>& levels, const uint8_t* HWY_RESTRICT codes,
                          size_t stride, size_t n, const uint8_t* ahead) {
  const F32 d;
  Vec sums[Q][kVectors];
  HWY_UNROLL(4)
  for (size_t m = 0; m < Q; ++m) {
    HWY_UNROLL(4)
    for (size_t i = 0; i < kVectors; ++i) sums[m][i] = hn::LoadU(d, acc + m * dim + i * kLanes);
  }
  for (size_t t = 0; t < n; ++t, codes += stride, ahead += 4 * kBits) {
    hwy::Prefetch(ahead);
    Vec x[kVectors];
    HWY_UNROLL(4)
    for (size_t i = 0; i < kVectors; ++i)
      x[i] = levels(load_codes<kBits>(codes + i * kLanes * kBits / 8));
    HWY_UNROLL(4)
    for (size_t m = 0; m < Q; ++m) {
      const Vec weight = hn::Set(d, p[m * ld + t]);
      HWY_UNROLL(4)
      for (size_t i = 0; i < kVectors; ++i) sums[m][i] = hn::MulAdd(weight, x[i], sums[m][i]);
    }
  }
  HWY_UNROLL(4)
  for (size_t m = 0; m < Q; ++m) {
    HWY_UNROLL(4)
    for (size_t i = 0; i < kVectors; ++i) hn::StoreU(sums[m][i], d, acc + m * dim + i * kLanes);
  }
}

template <int kBits>
void add_all(float* acc, const float* p, size_t ld, size_t queries, const LevelRows& rows,
             size_t count) {
  constexpr size_t kBlock = 64;  // rows whose codes stay in L1 while the groups pass
  const Levels<kBits> levels(rows.levels);
  const size_t dim = rows.dim;
  for (size_t t = 0; t < count; t += kBlock) {
    const size_t n = count - t < kBlock ? count - t : kBlock;
    for (size_t g = 0; g < dim / kGroup; ++g) {
      const uint8_t* codes = rows.codes + t * rows.stride + g * 4 * kBits;
      // Each group asks for its share of the next block.
      const uint8_t* ahead = rows.codes + (t + kBlock) * rows.stride + g * 4 * kBits * kBlock;
      float* to = acc + g * kGroup;
      for_query_blocks<kQueries>(queries, [&]<size_t Q>(size_t m) HWY_ATTR {
        add_group<kBits, Q>(to + m * dim, dim, p + m * ld + t, ld, levels, codes, rows.stride, n,
                            ahead);
      });
    }
  }
}

template <int kBits>
void unpack_all(float* HWY_RESTRICT out, const LevelRows& rows, const float* HWY_RESTRICT scale,
                const float* HWY_RESTRICT low, size_t count) {
  const F32 d;
  const Levels<kBits> levels(rows.levels);
  for (size_t t = 0; t < count; ++t, out += rows.dim) {
    const uint8_t* codes = rows.codes + t * rows.stride;
    for (size_t c = 0; c < rows.dim; c += kLanes, codes += kLanes * kBits / 8) {
      const Vec x = levels(load_codes<kBits>(codes));
      hn::StoreU(hn::MulAdd(hn::LoadU(d, scale + c), x, hn::LoadU(d, low + c)), d, out + c);
    }
  }
}

/// Runs `call` with the code's width as the constant kBits.
#define PITH_VISIT_LEVEL_BITS(bits, call) \
  if (bits == 1) {                        \
    constexpr int kBits = 1;              \
    call;                                 \
  } else if (bits == 2) {                 \
    constexpr int kBits = 2;              \
    call;                                 \
  } else if (bits == 3) {                 \
    constexpr int kBits = 3;              \
    call;                                 \
  } else {                                \
    constexpr int kBits = 4;              \
    call;                                 \
  }

void dot_levels(float* out, size_t ld, const float* q, size_t queries, const LevelRows& rows,
                size_t count, float scale) {
  PITH_VISIT_LEVEL_BITS(rows.bits, dot_all<kBits>(out, ld, q, queries, rows, count, scale));
}

void add_levels(float* acc, const float* p, size_t ld, size_t queries, const LevelRows& rows,
                size_t count) {
  PITH_VISIT_LEVEL_BITS(rows.bits, add_all<kBits>(acc, p, ld, queries, rows, count));
}

void unpack_levels(float* out, const LevelRows& rows, const float* scale, const float* low,
                   size_t count) {
  PITH_VISIT_LEVEL_BITS(rows.bits, unpack_all<kBits>(out, rows, scale, low, count));
}

}  // namespace

void fill_level_rows(Kernels& table) {
  table.dot_levels = dot_levels;
  table.add_levels = add_levels;
  table.unpack_levels = unpack_levels;
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();
#endif  // PITH_SIMD_TARGET
