// Rows of codes, transposed in 32-bit words so that a lane holds a row. Included once a target, as
// simd-inl.h is.

#if defined(PITH_KERNELS_CPU_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PITH_KERNELS_CPU_WORDS_INL_H_
#undef PITH_KERNELS_CPU_WORDS_INL_H_
#else
#define PITH_KERNELS_CPU_WORDS_INL_H_
#endif

#include "hwy/cache_control.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {

using I32 = hn::Rebind<int32_t, F32>;
using Words = hn::Vec<I32>;

inline constexpr size_t kWordRows = 64;  // rows transposed at a time

/// Four words of kLanes rows: block b of the vector is from row 4 b.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const uint8_t* const* rows, size_t byte) {
  const hn::Rebind<int32_t, hn::Full128<float>> block;
  const auto at = [&](size_t b) {
    return hn::LoadU(block, reinterpret_cast<const int32_t*>(rows[4 * b] + byte));
  };
  if constexpr (hn::MaxLanes(D()) == 8) {
    return hn::Combine(d, at(1), at(0));
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, hn::Combine(half, at(3), at(2)), hn::Combine(half, at(1), at(0)));
  }
}

/// words[w * kWordRows + t] <- word w of row t, for `count` words of n <= kWordRows rows, `stride`
/// bytes apart. Lanes past n, up to a multiple of 2 kLanes, repeat the last row. `words` is
/// aligned.
inline void transpose_words(int32_t* HWY_RESTRICT words, const uint8_t* HWY_RESTRICT first,
                            size_t stride, size_t count, size_t n) {
  const I32 d;
  const hn::Repartition<int64_t, I32> pairs;
  for (size_t t = 0; t < n; t += kLanes) {
    // Scales of D 64 and 128 are rows of one and two words, without anything between them.
    const auto* near = reinterpret_cast<const int32_t*>(first + t * stride);
    if (t + kLanes <= n && count == 1 && stride == 4) {
      hn::Store(hn::LoadU(d, near), d, words + t);
      continue;
    }
    if (t + kLanes <= n && count == 2 && stride == 8) {
      const Words low = hn::LoadU(d, near), high = hn::LoadU(d, near + kLanes);
      hn::Store(hn::ConcatEven(d, high, low), d, words + t);
      hn::Store(hn::ConcatOdd(d, high, low), d, words + kWordRows + t);
      continue;
    }
    const uint8_t* rows[kLanes];
    for (size_t r = 0; r < kLanes; ++r) rows[r] = first + (t + r < n ? t + r : n - 1) * stride;
    int32_t* to = words + t;
    size_t w = 0;
    for (; w + 4 <= count; w += 4, to += 4 * kWordRows) {
      const Words a = load_blocks(d, rows, 4 * w), b = load_blocks(d, rows + 1, 4 * w);
      const Words c = load_blocks(d, rows + 2, 4 * w), e = load_blocks(d, rows + 3, 4 * w);
      const auto ab = hn::BitCast(pairs, hn::InterleaveLower(d, a, b));
      const auto ce = hn::BitCast(pairs, hn::InterleaveLower(d, c, e));
      const auto up_ab = hn::BitCast(pairs, hn::InterleaveUpper(d, a, b));
      const auto up_ce = hn::BitCast(pairs, hn::InterleaveUpper(d, c, e));
      hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, ab, ce)), d, to);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, ab, ce)), d, to + kWordRows);
      hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, up_ab, up_ce)), d, to + 2 * kWordRows);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, up_ab, up_ce)), d, to + 3 * kWordRows);
    }
    for (; w < count; ++w, to += kWordRows)
      for (size_t r = 0; r < kLanes; ++r) std::memcpy(to + r, rows[r] + 4 * w, 4);
  }
  if (n % (2 * kLanes) == 0 || n % (2 * kLanes) > kLanes) return;
  for (size_t w = 0; w < count; ++w)
    hn::Store(hn::Zero(d), d, words + w * kWordRows + (n + kLanes - 1) / kLanes * kLanes);
}

inline constexpr size_t kMaxSideDim = 512;  // head_dim of rows with sides

/// Scales of a block of rows, transposed: two f16 numbers of a row a word.
struct Sides {
  alignas(64) int32_t words[kMaxSideDim / 32 * kWordRows];

  void fill(const CodeSides& sides, size_t first, size_t groups, size_t n) {
    const size_t numbers = groups * (sides.minima ? 2 : 1);
    transpose_words(words, reinterpret_cast<const uint8_t*>(sides.numbers + first * numbers),
                    2 * numbers, (numbers + 1) / 2, n);
  }
  /// Number i of rows [row, row + kLanes), widened.
  HWY_INLINE Vec at(size_t i, size_t row) const {
    const I32 d;
    const hn::Rebind<uint32_t, F32> unsigned_words;
    const hn::Rebind<uint16_t, F32> narrow;
    const hn::Rebind<hwy::float16_t, F32> half;
    auto v = hn::BitCast(unsigned_words, hn::Load(d, words + i / 2 * kWordRows + row));
    v = i % 2 ? hn::ShiftRight<16>(v) : hn::And(v, hn::Set(unsigned_words, 0xFFFF));
    return hn::PromoteTo(F32(), hn::BitCast(half, hn::TruncateTo(narrow, v)));
  }
};

/// Runs `call` with the code's width as kBits, and kSigned if codes have scales but no minima.
#define PITH_VISIT_CODES(bits, is_signed, call) \
  if (is_signed) {                              \
    constexpr bool kSigned = true;              \
    PITH_VISIT_BITS(bits, call)                 \
  } else {                                      \
    constexpr bool kSigned = false;             \
    PITH_VISIT_BITS(bits, call)                 \
  }

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#endif  // include guard
