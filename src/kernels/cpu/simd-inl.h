// Shared by the SIMD files: vectors of f32, loads that widen, sums across lanes. Per target.

#if defined(PITH_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PITH_KERNELS_CPU_SIMD_INL_H_
#undef PITH_KERNELS_CPU_SIMD_INL_H_
#else
#define PITH_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using Vec = hn::Vec<F32>;
inline constexpr size_t kLanes = HWY_LANES(float);
/// 32 registers allow blocks of 24 sums; 16 registers half of that.
inline constexpr bool kManyRegisters = HWY_TARGET != HWY_AVX2;

/// f.operator()<Q>(m) for queries m .. m + Q: as many of kMost as there are, then the rest in one.
template <size_t kMost, class F>
HWY_INLINE void for_query_blocks(size_t queries, const F& f) {
  static_assert(kMost >= 1 && kMost <= 4);
  size_t m = 0;
  for (; m + kMost <= queries; m += kMost) f.template operator()<kMost>(m);
  const size_t left = queries - m;
  if constexpr (kMost > 3) {
    if (left == 3) return f.template operator()<3>(m);
  }
  if constexpr (kMost > 2) {
    if (left == 2) return f.template operator()<2>(m);
  }
  if constexpr (kMost > 1) {
    if (left == 1) f.template operator()<1>(m);
  }
}

/// A number as it lies in memory.
template <DType K>
using Stored = std::conditional_t<K == DType::kF32, float, uint16_t>;

/// kLanes stored numbers, widened.
template <DType K>
HWY_INLINE Vec load_widened(const Stored<K>* p) {
  const F32 d;
  if constexpr (K == DType::kF32) {
    return hn::LoadU(d, p);
  } else if constexpr (K == DType::kF16) {
    const hn::Rebind<hwy::float16_t, F32> half;
    return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(p)));
  } else {
    const hn::Rebind<uint16_t, F32> half;
    const hn::RebindToUnsigned<F32> wide;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(half, p))));
  }
}

/// The first n < kLanes numbers at p, widened; zeros in the other lanes. Reads nothing past them.
template <DType K>
HWY_INLINE Vec load_widened_part(const Stored<K>* p, size_t n) {
  if constexpr (K == DType::kF32) {
    const F32 d;
    return hn::MaskedLoad(hn::FirstN(d, n), d, p);
  } else {
    Stored<K> part[kLanes] = {};
    std::memcpy(part, p, n % kLanes * sizeof(Stored<K>));  // n < kLanes: for the compiler
    return load_widened<K>(part);
  }
}

HWY_INLINE Vec load_part(const float* p, size_t n) { return load_widened_part<DType::kF32>(p, n); }

HWY_INLINE void store_part(float* p, Vec v, size_t n) {
  const F32 d;
  hn::BlendedStore(v, hn::FirstN(d, n), d, p);
}

HWY_INLINE float sum_lanes(Vec v) {
  const F32 d;
  return hn::GetLane(hn::SumOfLanes(d, v));
}

/// Adds a vector's 128-bit blocks: four sums.
template <class D, class V>
HWY_INLINE hn::Vec<hn::Full128<float>> sum_blocks(D d, V v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return sum_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

/// {sum a, sum b, sum c, sum d}, with six shuffles where four separate sums take sixteen.
HWY_INLINE hn::Vec<hn::Full128<float>> sum_four(Vec a, Vec b, Vec c, Vec e) {
  const F32 d;
  const Vec ac = hn::Add(hn::InterleaveLower(d, a, c), hn::InterleaveUpper(d, a, c));
  const Vec be = hn::Add(hn::InterleaveLower(d, b, e), hn::InterleaveUpper(d, b, e));
  return sum_blocks(d, hn::Add(hn::InterleaveLower(d, ac, be), hn::InterleaveUpper(d, ac, be)));
}

/// Runs `call` with the storage type as the constant K.
#define PITH_VISIT_DTYPE(dtype, call)   \
  switch (dtype) {                      \
    case DType::kF32: {                 \
      constexpr DType K = DType::kF32;  \
      call;                             \
      break;                            \
    }                                   \
    case DType::kF16: {                 \
      constexpr DType K = DType::kF16;  \
      call;                             \
      break;                            \
    }                                   \
    case DType::kBF16: {                \
      constexpr DType K = DType::kBF16; \
      call;                             \
      break;                            \
    }                                   \
  }

/// Runs `call` with the code's width as the constant kBits.
#define PITH_VISIT_BITS(bits, call) \
  switch (bits) {                   \
    case 2: {                       \
      constexpr int kBits = 2;      \
      call;                         \
      break;                        \
    }                               \
    case 4: {                       \
      constexpr int kBits = 4;      \
      call;                         \
      break;                        \
    }                               \
    default: {                      \
      constexpr int kBits = 8;      \
      call;                         \
      break;                        \
    }                               \
  }

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#endif  // include guard
