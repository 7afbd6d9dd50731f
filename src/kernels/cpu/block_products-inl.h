// Products of weights in blocks with rounded inputs, and their decoding. Included once a target.
//
// A run of 32 codes times 32 whole numbers is one vector of integer sums (two runs with AVX-512);
// times the run's scales it is added to f32 sums of a row. Offsets and minima of codes go through
// the inputs' own sums: eight runs in one multiplication. About 8 instructions for 64 weights and a
// token with AVX-512, 9 for 32 with AVX2, and 6 for a run's scales.

#if defined(PITH_KERNELS_CPU_BLOCK_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PITH_KERNELS_CPU_BLOCK_PRODUCTS_INL_H_
#undef PITH_KERNELS_CPU_BLOCK_PRODUCTS_INL_H_
#else
#define PITH_KERNELS_CPU_BLOCK_PRODUCTS_INL_H_
#endif

#include <algorithm>
#include <utility>

#include "kernels/cpu/block_formats-inl.h"

HWY_PUSH_ATTRIBUTES(PITH_BLOCKS_STR)
namespace pith {
namespace HWY_NAMESPACE {

// Places of the matrix that are read by turns, as in rows.cc.
inline constexpr size_t kBlockStreams = 4;
// Distance of prefetches ahead of use: a short row is finished before its memory arrives.
inline constexpr size_t kPrefetchBytes = 2048;

/// Codes in the order of the products.
template <class F>
struct Operand {
#if HWY_TARGET == HWY_AVX2
  // Pairs of products are added in 16 bits: 2 * 63 * 128 fits, and so does 2 * 128 * 127, so bytes
  // are multiplied as magnitudes, with their signs on the other factor.
  HWY_INLINE explicit Operand(Codes c) : codes(c) {
    if constexpr (F::kSigned) magnitude = wrap(_mm256_abs_epi8(c.raw));
  }
  HWY_INLINE Ints times(const int8_t* x) const {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (F::kSigned) {
      const __m256i turned = _mm256_sign_epi8(bytes, codes.raw);
      return Ints{_mm256_madd_epi16(_mm256_maddubs_epi16(magnitude.raw, turned), ones)};
    } else {
      return Ints{_mm256_madd_epi16(_mm256_maddubs_epi16(codes.raw, bytes), ones)};
    }
  }
  /// Low bytes of wide inputs may be -128, whose sign cannot be turned.
  HWY_INLINE Ints times_low(const int8_t* x) const {
    if constexpr (!F::kSigned) return times(x);
    const auto half = [&](__m128i c, const int8_t* at) HWY_ATTR {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
      return _mm256_madd_epi16(_mm256_cvtepi8_epi16(c), _mm256_cvtepi8_epi16(bytes));
    };
    return Ints{_mm256_add_epi32(half(_mm256_castsi256_si128(codes.raw), x),
                                 half(_mm256_extracti128_si256(codes.raw, 1), x + 16))};
  }
  static constexpr int kZero = F::kZero;
  Codes codes, magnitude;
#else
  // Signed codes become unsigned: 128 more.
  HWY_INLINE explicit Operand(Codes c) : codes(c) {
    if constexpr (F::kSigned) codes = hn::Xor(c, hn::Set(U8(), 0x80));
  }
  HWY_INLINE Ints times(const int8_t* x) const {
    return Ints{_mm512_dpbusd_epi32(_mm512_setzero_si512(), codes.raw, _mm512_loadu_si512(x))};
  }
  HWY_INLINE Ints times_low(const int8_t* x) const { return times(x); }
  static constexpr int kZero = F::kSigned ? 128 : F::kZero;
  Codes codes;
#endif
};

/// The scales of the vector whose first run is `run`, one per lane.
template <size_t kSub>
HWY_INLINE Vec scales_of(const Scales* scale, size_t run) {
#if HWY_TARGET == HWY_AVX2
  if constexpr (kSub == 32) {
    const __m256i at = _mm256_set1_epi32(static_cast<int>(run));
    return Vec{_mm256_permutevar8x32_ps(scale[0].raw, at)};
  } else {
    const int a = static_cast<int>(2 * run % 8), b = a + 1;
    const __m256i at = _mm256_setr_epi32(a, a, a, a, b, b, b, b);
    return Vec{_mm256_permutevar8x32_ps(scale[run / 4].raw, at)};
  }
#else
  const int a = static_cast<int>(run * 32 / kSub % 8), one = a + 1;
  const __m512 eight = _mm512_castps256_ps512(scale[run * 32 / kSub / 8].raw);
  if constexpr (kSub == 32) {
    const __m512i at =
        _mm512_setr_epi32(a, a, a, a, a, a, a, a, one, one, one, one, one, one, one, one);
    return Vec{_mm512_permutexvar_ps(at, eight)};
  } else {
    const int c = a + 2, e = a + 3;
    const __m512i at = _mm512_setr_epi32(a, a, a, a, one, one, one, one, c, c, c, c, e, e, e, e);
    return Vec{_mm512_permutexvar_ps(at, eight)};
  }
#endif
}

/// Zeros in the lanes that are not there.
HWY_INLINE Vec widened(Scales x) {
#if HWY_TARGET == HWY_AVX2
  return Vec{x.raw};
#else
  return Vec{_mm512_zextps256_ps512(x.raw)};
#endif
}

/// Where the inputs of a product lie.
struct Inputs {
  const std::byte* first;  // of token 0's row
  size_t stride;           // bytes of a row

  template <bool kWide>
  HWY_INLINE const RoundedInputs& at(size_t token, size_t step) const {
    return *reinterpret_cast<const RoundedInputs*>(
        first + token * stride +
        step * (kWide ? sizeof(RoundedWideInputs) : sizeof(RoundedInputs)));
  }
};

/// Sums of a row for T tokens.
template <class F, size_t T, bool kWide>
struct RowSums {
  HWY_INLINE RowSums() {
    HWY_UNROLL(8)
    for (size_t t = 0; t < T; ++t) main[t] = hn::Zero(F32()), offset[t] = hn::Zero(Eight());
  }

  /// Adds the first `runs` runs of a step whose blocks begin at p.
  HWY_INLINE void add(const uint8_t* p, const StepSides<F::kSub>& s, const Inputs& inputs,
                      size_t step, size_t runs) {
    constexpr size_t kParts = 32 / F::kSub;
    HWY_UNROLL(8)
    for (size_t run = 0; run < kStepRuns; run += kRuns) {
      if (run >= runs) break;
      const Operand<F> codes(F::codes(p, run));
      const Vec scale = scales_of<F::kSub>(s.scale, run);
      HWY_UNROLL(8)
      for (size_t t = 0; t < T; ++t) {
        const RoundedInputs& x = inputs.at<kWide>(t, step);
        Ints whole = codes.times(x.codes + 32 * run);
        if constexpr (kWide) {
          const int8_t* low = reinterpret_cast<const RoundedWideInputs&>(x).low;
          whole = hn::Add(hn::ShiftLeft<8>(whole), codes.times_low(low + 32 * run));
        }
        // An input's scale belongs to 32 weights, as the lanes of a run do.
        const Vec factor =
            hn::Mul(scale, scales_of<32>(reinterpret_cast<const Scales*>(x.scale), run));
        main[t] = hn::MulAdd(hn::ConvertTo(F32(), whole), factor, main[t]);
      }
    }
    if constexpr (F::kMinimum || Operand<F>::kZero != 0) {
      HWY_UNROLL(8)
      for (size_t t = 0; t < T; ++t) {
        const RoundedInputs& x = inputs.at<kWide>(t, step);
        const float* sums = F::kSub == 32 ? x.sum : x.half_sum;
        HWY_UNROLL(2)
        for (size_t h = 0; h < kParts; ++h) {
          const Scales sum = hn::LoadU(Eight(), sums + 8 * h);
          offset[t] = hn::MulAdd(F::kMinimum ? s.low[h] : s.scale[h], sum, offset[t]);
        }
      }
    }
  }

  /// Lanes whose sum is the row's product with token t.
  HWY_INLINE Vec lanes(size_t t) const {
    constexpr float kFactor = F::kMinimum ? 1.0f : -static_cast<float>(Operand<F>::kZero);
    if constexpr (kFactor == 0) return main[t];
    return hn::Add(main[t], widened(hn::Mul(hn::Set(Eight(), kFactor), offset[t])));
  }

  Vec main[T];
  Scales offset[T];
};

/// The blocks of a row's last runs, fewer than a step: vectors read past them, so they are copied
/// where that would be past the matrix, which ends at `end`.
template <class F>
struct TailBlocks {
  HWY_INLINE TailBlocks(const uint8_t* p, const uint8_t* end, size_t runs) : at(p) {
    if (static_cast<size_t>(end - p) < sizeof(copy)) copy_from(p, runs);
  }
  HWY_NOINLINE void copy_from(const uint8_t* p, size_t runs) {
    std::fill(std::begin(copy), std::end(copy), uint8_t{0});
    std::copy(p, p + runs * F::kBytes, copy);
    at = copy;
  }
  const uint8_t* at;
  uint8_t copy[kStepRuns * F::kBytes];
};

/// Adds the last `runs` runs of a row at p.
template <class F, class Sums>
HWY_INLINE void add_tail(Sums& sums, const uint8_t* p, const uint8_t* end, const Inputs& inputs,
                         size_t step, size_t runs) {
  if constexpr (F::kBlock == 32) {
    const TailBlocks<F> blocks(p, end, runs);
    StepSides<32> s;
    F::sides(blocks.at, s);
    const auto there = hn::FirstN(Eight(), runs);  // what comes after may be anything
    s.scale[0] = hn::IfThenElseZero(there, s.scale[0]);
    if constexpr (F::kMinimum) s.low[0] = hn::IfThenElseZero(there, s.low[0]);
    sums.add(blocks.at, s, inputs, step, runs);
  }
}

/// Rows o, o + apart, ... of streams side by side: what they share of the inputs is loaded once,
/// and sums wait less for each other.
template <class F, size_t kRows, size_t T, bool kWide>
HWY_INLINE void multiply_rows(const BlockProduct& product, const Inputs& inputs, float* out,
                              size_t o, size_t apart) {
  const size_t bytes = product.in / F::kBlock * F::kBytes;
  const size_t steps = product.in / kStep, rest = product.in % kStep / 32;
  constexpr size_t kStepBytes = kStep / F::kBlock * F::kBytes;
  const auto* w = reinterpret_cast<const uint8_t*>(product.w);
  const uint8_t* p = w + o * bytes;
  const size_t skip = apart * bytes;
  // A row ahead, or as many as memory takes to answer.
  const size_t ahead = std::max<size_t>(1, kPrefetchBytes / bytes) * bytes;
  RowSums<F, T, kWide> sums[kRows];
  for (size_t step = 0; step < steps; ++step, p += kStepBytes) {
    HWY_UNROLL(4)
    for (size_t r = 0; r < kRows; ++r) {
      const uint8_t* at = p + r * skip;
      StepSides<F::kSub> s;
      F::sides(at, s);
      HWY_UNROLL(8)
      for (size_t line = 0; line < kStepBytes; line += 64) hwy::Prefetch(at + ahead + line);
      sums[r].add(at, s, inputs, step, kStepRuns);
    }
  }
  const uint8_t* end = w + product.rows * bytes;
  if (rest != 0) {
    HWY_UNROLL(4)
    for (size_t r = 0; r < kRows; ++r) add_tail<F>(sums[r], p + r * skip, end, inputs, steps, rest);
  }
  // Always four at a time: a token's sum is the same in any company.
  constexpr size_t kSums = kRows * T;
  static_assert(kSums <= 4);
  constexpr size_t kSecond = kSums > 1 ? 1 : 0, kThird = kSums > 2 ? 2 : 0,
                   kFourth = kSums > 3 ? 3 : 0;
  const hn::Full128<float> four;
  alignas(16) float all[4];
  // Not by a lambda: to Clang it is of a target without VNNI.
  hn::Store(sum_four(sums[0].lanes(0), sums[kSecond / T].lanes(kSecond % T),
                     sums[kThird / T].lanes(kThird % T), sums[kFourth / T].lanes(kFourth % T)),
            four, all);
  for (size_t i = 0; i < kSums; ++i) out[o + i / T * apart + i % T * product.ld] = all[i];
}

template <class F, size_t T, bool kWide>
void multiply_tokens(const BlockProduct& product, const Inputs& inputs, float* out, size_t first,
                     size_t last) {
  // Sums of four rows end in a third of the shuffles; 16 registers hold two rows.
  constexpr size_t kTogether = T > 1 ? 1 : kManyRegisters ? kBlockStreams : 2;
  const size_t run = (last - first) / kBlockStreams;
  for (size_t i = 0; i < run; ++i) {
    for (size_t s = 0; s < kBlockStreams; s += kTogether)
      multiply_rows<F, kTogether, T, kWide>(product, inputs, out, first + s * run + i, run);
  }
  for (size_t o = first + kBlockStreams * run; o < last; ++o)
    multiply_rows<F, 1, T, kWide>(product, inputs, out, o, 0);
}

template <class F, bool kWide>
void multiply_format(const BlockProduct& product, size_t first, size_t last) {
  const size_t stride = rounded_bytes(product.in, kWide);
  size_t t = 0;
  const auto run = [&]<size_t T>(std::integral_constant<size_t, T>) {
    multiply_tokens<F, T, kWide>(product, {product.x + t * stride, stride},
                                 product.out + t * product.ld, first, last);
    t += T;
  };
  while (t + 4 <= product.tokens) run(std::integral_constant<size_t, 4>());
  if (product.tokens - t >= 2) run(std::integral_constant<size_t, 2>());
  if (product.tokens > t) run(std::integral_constant<size_t, 1>());
}

template <class F>
void multiply_of(const BlockProduct& product, size_t first, size_t last) {
  if (product.wide)
    multiply_format<F, true>(product, first, last);
  else
    multiply_format<F, false>(product, first, last);
}

/// 256 weights whose blocks begin at p.
template <class F>
HWY_INLINE void decode_step(float* out, const uint8_t* p) {
  const F32 d;
  const hn::Rebind<uint8_t, F32> bytes;
  const hn::Rebind<int8_t, F32> signed_bytes;
  const hn::Rebind<int32_t, F32> ints;
  StepSides<F::kSub> s;
  F::sides(p, s);
  alignas(32) float scale[256 / F::kSub], low[256 / F::kSub];
  for (size_t h = 0; h < 32 / F::kSub; ++h) {
    hn::Store(s.scale[h], Eight(), scale + 8 * h);
    if constexpr (F::kMinimum) hn::Store(s.low[h], Eight(), low + 8 * h);
  }
  for (size_t run = 0; run < kStepRuns; run += kRuns) {
    alignas(64) uint8_t codes[32 * kRuns];
    hn::Store(F::codes(p, run), U8(), codes);
    for (size_t i = 0; i < 32 * kRuns; i += kLanes) {
      Vec q;
      if constexpr (F::kSigned) {
        const auto narrow = hn::LoadU(signed_bytes, reinterpret_cast<const int8_t*>(codes + i));
        q = hn::ConvertTo(d, hn::PromoteTo(ints, narrow));
      } else {
        const auto wide = hn::PromoteTo(ints, hn::LoadU(bytes, codes + i));
        q = hn::ConvertTo(d, hn::Sub(wide, hn::Set(ints, F::kZero)));
      }
      const size_t side = (32 * run + i) / F::kSub;
      Vec y = hn::Mul(hn::Set(d, scale[side]), q);
      if constexpr (F::kMinimum) y = hn::Add(y, hn::Set(d, low[side]));
      hn::StoreU(y, d, out + 32 * run + i);
    }
  }
}

template <class F>
void decode_of(float* out, const uint8_t* p, size_t n) {
  constexpr size_t kStepBytes = kStep / F::kBlock * F::kBytes;
  for (; n >= kStep; n -= kStep, out += kStep, p += kStepBytes) decode_step<F>(out, p);
  if (n == 0) return;
  uint8_t blocks[kStepBytes] = {};
  float step[kStep];
  std::copy(p, p + n / F::kBlock * F::kBytes, blocks);
  decode_step<F>(step, blocks);
  std::copy(step, step + n, out);
}

/// The primitives of one format.
struct BlockFunctions {
  void (*multiply)(const BlockProduct& product, size_t first, size_t last);
  void (*decode)(float* out, const uint8_t* p, size_t n);
};
template <class F>
constexpr BlockFunctions functions_of() {
  return {multiply_of<F>, decode_of<F>};
}
BlockFunctions small_functions(WeightType type);
BlockFunctions large_functions(WeightType type);

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#endif  // include guard
