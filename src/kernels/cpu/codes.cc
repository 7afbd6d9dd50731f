// Codes to numbers, and the Walsh-Hadamard transform. A byte widened to 32 bits is shifted and
// masked once for each code that it holds; the codes of a slot are neighbouring channels, so
// nothing is shuffled. About 3 instructions for kLanes numbers beside the load, fma and store.

#include <cmath>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/codes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if PITH_SIMD_TARGET
#include "core/dtype.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace {

/// One group of kWidth channels: out[c] = scale(c) code + low(c); `at(d, c)` gives both vectors.
template <int kBits, size_t kWidth, class At>
HWY_INLINE void unpack_group(float* HWY_RESTRICT out, const uint8_t* HWY_RESTRICT bytes,
                             const At& at) {
  constexpr size_t kBytes = kWidth * kBits / 8;
  const hn::CappedTag<float, kBytes> d;
  const hn::Rebind<int32_t, decltype(d)> wide;
  const hn::Rebind<uint8_t, decltype(d)> narrow;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(wide, (1 << kBits) - 1);
  for (size_t i = 0; i < kBytes; i += lanes) {
    auto codes = hn::PromoteTo(wide, hn::LoadU(narrow, bytes + i));
    HWY_UNROLL(4)
    for (size_t slot = 0; slot < 8 / kBits; ++slot) {
      const size_t c = slot * kBytes + i;
      const auto [scale, low] = at(d, c);
      const auto code = hn::ConvertTo(d, kBits == 8 ? codes : hn::And(codes, mask));
      hn::StoreU(hn::MulAdd(scale, code, low), d, out + c);
      if constexpr (kBits < 8) codes = hn::ShiftRight<kBits>(codes);
    }
  }
}

template <class V>
struct ScaleLow {
  V scale, low;
};

template <int kBits>
HWY_INLINE void unpack_token_row(float* out, const uint8_t* codes, size_t dim,
                                 const CodeSides& sides) {
  const uint16_t* side = sides.numbers;
  for (size_t first = 0; first < dim; first += 32) {
    const float scale = f16_to_f32(*side++);
    const float low =
        sides.minima ? f16_to_f32(*side++) : -scale * static_cast<float>(1 << (kBits - 1));
    const auto at = [&](auto d, size_t) {
      return ScaleLow<hn::Vec<decltype(d)>>{hn::Set(d, scale), hn::Set(d, low)};
    };
    if (dim - first >= 32) {
      unpack_group<kBits, 32>(out + first, codes, at);
      codes += 4 * kBits;
    } else {
      unpack_group<kBits, 16>(out + first, codes, at);
    }
  }
}

template <int kBits>
HWY_INLINE void unpack_channel_row(float* out, const uint8_t* codes, size_t dim, const float* scale,
                                   const float* low) {
  for (size_t first = 0; first < dim; first += 32) {
    const auto at = [&](auto d, size_t c) {
      return ScaleLow<hn::Vec<decltype(d)>>{hn::LoadU(d, scale + first + c),
                                            hn::LoadU(d, low + first + c)};
    };
    if (dim - first >= 32) {
      unpack_group<kBits, 32>(out + first, codes, at);
      codes += 4 * kBits;
    } else {
      unpack_group<kBits, 16>(out + first, codes, at);
    }
  }
}

void unpack_tokens(float* out, const CodeRows& rows, const CodeSides& sides, size_t count) {
  const size_t numbers = (rows.dim + 31) / 32 * (sides.minima ? 2 : 1);
  const size_t row_bytes = rows.dim * static_cast<size_t>(rows.bits) / 8;
  PITH_VISIT_BITS(rows.bits, for (size_t t = 0; t < count; ++t) unpack_token_row<kBits>(
                                 out + t * rows.dim, rows.codes + t * row_bytes, rows.dim,
                                 {sides.numbers + t * numbers, sides.minima}));
}

void unpack_channels(float* out, const CodeRows& rows, const float* scale, const float* low,
                     size_t count) {
  const size_t row_bytes = rows.dim * static_cast<size_t>(rows.bits) / 8;
  PITH_VISIT_BITS(rows.bits,
                  for (size_t t = 0; t < count; ++t) unpack_channel_row<kBits>(
                      out + t * rows.dim, rows.codes + t * row_bytes, rows.dim, scale, low));
}

/// v <- the sums and differences of lanes kHalf apart: lane j gets v[j ^ kHalf] +- v[j].
template <size_t kHalf>
HWY_INLINE Vec add_pairs(Vec v) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const auto second = hn::Ne(hn::And(hn::Iota(di, 0), hn::Set(di, kHalf)), hn::Zero(di));
  const Vec own = hn::IfThenElse(hn::RebindMask(d, second), hn::Neg(v), v);
  if constexpr (kHalf == 1) return hn::Add(hn::Shuffle2301(v), own);
  if constexpr (kHalf == 2) return hn::Add(hn::Shuffle1032(v), own);
  if constexpr (kHalf == 4) return hn::Add(hn::SwapAdjacentBlocks(v), own);
  return hn::Add(hn::SwapAdjacentBlocks(hn::ReverseBlocks(d, v)), own);
}

/// The stages of pairs nearer than a vector.
HWY_INLINE Vec transform_lanes(Vec v) {
  v = add_pairs<2>(add_pairs<1>(v));
  if constexpr (kLanes > 4) v = add_pairs<4>(v);
  if constexpr (kLanes > 8) v = add_pairs<8>(v);
  return v;
}

/// All of it in kVecs registers.
template <size_t kVecs>
HWY_INLINE void hadamard_of(float* x) {
  const F32 d;
  Vec v[kVecs];
  for (size_t i = 0; i < kVecs; ++i) v[i] = transform_lanes(hn::LoadU(d, x + i * kLanes));
  for (size_t half = 1; half < kVecs; half *= 2)
    for (size_t i = 0; i < kVecs; ++i) {
      if (i & half) continue;
      const Vec a = v[i], b = v[i + half];
      v[i] = hn::Add(a, b);
      v[i + half] = hn::Sub(a, b);
    }
  const Vec norm = hn::Set(d, 1 / std::sqrt(static_cast<float>(kVecs * kLanes)));
  for (size_t i = 0; i < kVecs; ++i) hn::StoreU(hn::Mul(v[i], norm), d, x + i * kLanes);
}

void hadamard(float* x, size_t n) {
  const F32 d;
  if (n == 4 * kLanes) return hadamard_of<4>(x);
  if (n == 8 * kLanes) return hadamard_of<8>(x);
  size_t half = 1;
  if (n >= kLanes) {
    for (size_t i = 0; i < n; i += kLanes)
      hn::StoreU(transform_lanes(hn::LoadU(d, x + i)), d, x + i);
    half = kLanes;
  }
  for (; half < kLanes && half < n; half *= 2) {
    for (size_t i = 0; i < n; i += 2 * half)
      for (size_t j = i; j < i + half; ++j) {
        const float a = x[j], b = x[j + half];
        x[j] = a + b;
        x[j + half] = a - b;
      }
  }
  for (; half < n; half *= 2) {
    for (size_t i = 0; i < n; i += 2 * half)
      for (size_t j = i; j < i + half; j += kLanes) {
        const Vec a = hn::LoadU(d, x + j), b = hn::LoadU(d, x + j + half);
        hn::StoreU(hn::Add(a, b), d, x + j);
        hn::StoreU(hn::Sub(a, b), d, x + j + half);
      }
  }
  const float norm = 1 / std::sqrt(static_cast<float>(n));
  for (size_t i = 0; i < n; ++i) x[i] *= norm;
}

}  // namespace

void fill_codes(Kernels& table) {
  table.unpack_tokens = unpack_tokens;
  table.unpack_channels = unpack_channels;
  table.hadamard = hadamard;
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();
#endif  // PITH_SIMD_TARGET
