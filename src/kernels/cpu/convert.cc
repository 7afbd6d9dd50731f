// Widening, rounding and transposing: how stored rows become f32 tiles and back.

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/convert.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if PITH_SIMD_TARGET
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace {

template <DType K>
void widen(float* HWY_RESTRICT out, const Stored<K>* HWY_RESTRICT in, size_t n) {
  const F32 d;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load_widened<K>(in + i), d, out + i);
  if (i < n) store_part(out + i, load_widened_part<K>(in + i, n - i), n - i);
}

/// kLanes f32 rounded to nearest even and stored.
template <DType K>
HWY_INLINE void store_rounded(Stored<K>* out, Vec v) {
  const F32 d;
  if constexpr (K == DType::kF32) {
    hn::StoreU(v, d, out);
  } else if constexpr (K == DType::kF16) {
    const hn::Rebind<hwy::float16_t, F32> half;
    hn::StoreU(hn::DemoteTo(half, v), half, reinterpret_cast<hwy::float16_t*>(out));
  } else {
    // Highway 1.0.3 truncates to bf16, so the rounding is done here. NaNs must not round to
    // infinity: they are made quiet instead.
    const hn::RebindToUnsigned<F32> wide;
    const hn::RebindToSigned<F32> wide_signed;
    const hn::Rebind<uint16_t, F32> half;
    const auto bits = hn::BitCast(wide, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(wide, 1));
    const auto rounded = hn::Add(bits, hn::Add(hn::Set(wide, 0x7FFF), odd));
    const auto quiet = hn::Or(bits, hn::Set(wide, 0x400000));
    const auto is_nan = hn::RebindMask(wide, hn::Ne(v, v));
    const auto high = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
    hn::StoreU(hn::DemoteTo(half, hn::BitCast(wide_signed, high)), half, out);
  }
}

template <DType K>
void narrow(Stored<K>* HWY_RESTRICT out, const float* HWY_RESTRICT in, size_t n) {
  const F32 d;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_rounded<K>(out + i, hn::LoadU(d, in + i));
  if (i < n) {
    Stored<K> part[kLanes];
    store_rounded<K>(part, load_part(in + i, n - i));
    std::memcpy(out + i, part, (n - i) * sizeof(Stored<K>));
  }
}

void to_f32(float* out, const void* in, DType dtype, size_t n) {
  PITH_VISIT_DTYPE(dtype, widen<K>(out, static_cast<const Stored<K>*>(in), n));
}

void from_f32(void* out, const float* in, DType dtype, size_t n) {
  PITH_VISIT_DTYPE(dtype, narrow<K>(static_cast<Stored<K>*>(out), in, n));
}

/// Stores each 128-bit block of v (four rows of one column) at out, out + 4 ld, out + 8 ld, ...
template <class D, class V>
HWY_INLINE void store_blocks(D d, V v, float* out, size_t ld) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, out);
  } else {
    const hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, v), out, ld);
    store_blocks(half, hn::UpperHalf(half, v), out + hn::MaxLanes(D()) / 2 * ld, ld);
  }
}

/// Four rows by kLanes columns at a time: 4x4 transposes within the 128-bit blocks.
template <DType K>
HWY_INLINE void transpose_four(float* HWY_RESTRICT out, size_t ld, const Stored<K>* HWY_RESTRICT x,
                               size_t dim) {
  const F32 d;
  const hn::Repartition<double, F32> pairs;
  for (size_t c = 0; c < dim; c += kLanes, out += kLanes * ld) {
    const Vec r0 = load_widened<K>(x + c), r1 = load_widened<K>(x + dim + c);
    const Vec r2 = load_widened<K>(x + 2 * dim + c), r3 = load_widened<K>(x + 3 * dim + c);
    const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
    const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
    const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
    const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
    store_blocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), out, ld);
    store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), out + ld, ld);
    store_blocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), out + 2 * ld, ld);
    store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), out + 3 * ld, ld);
  }
}

template <DType K>
void transpose(float* HWY_RESTRICT out, size_t ld, const Stored<K>* HWY_RESTRICT x, size_t dim,
               size_t count) {
  size_t t = 0;
  for (; t + 4 <= count; t += 4) transpose_four<K>(out + t, ld, x + t * dim, dim);
  for (; t < count; ++t) {
    for (size_t c = 0; c < dim; c += kLanes) {
      float part[kLanes];
      hn::StoreU(load_widened<K>(x + t * dim + c), F32(), part);
      for (size_t i = 0; i < kLanes; ++i) out[(c + i) * ld + t] = part[i];
    }
  }
}

void transpose_rows(float* out, size_t ld, const DenseRows& rows, size_t count) {
  PITH_VISIT_DTYPE(rows.dtype, transpose<K>(out, ld, static_cast<const Stored<K>*>(rows.rows),
                                            rows.dim, count));
}

}  // namespace

void fill_convert(Kernels& table) {
  table.to_f32 = to_f32;
  table.from_f32 = from_f32;
  table.transpose_rows = transpose_rows;
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();
#endif  // PITH_SIMD_TARGET
