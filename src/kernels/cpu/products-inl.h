// Byte products (AVX-512 VNNI), and factors for them: whole numbers of 16 bits as two signed bytes.
// Included once a target, as simd-inl.h is, by files that define PITH_VNNI_TARGET.

#if defined(PITH_KERNELS_CPU_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PITH_KERNELS_CPU_PRODUCTS_INL_H_
#undef PITH_KERNELS_CPU_PRODUCTS_INL_H_
#else
#define PITH_KERNELS_CPU_PRODUCTS_INL_H_
#endif

#include "kernels/cpu/words-inl.h"

// Highway 1.0.3 names the 256-bit form of these products for this target, not the 512-bit one.
#define PITH_VNNI_STR HWY_TARGET_STR ",avx512vnni"
#define PITH_VNNI_ATTR __attribute__((target(PITH_VNNI_STR)))  // of lambdas

HWY_PUSH_ATTRIBUTES(PITH_VNNI_STR)
namespace pith {
namespace HWY_NAMESPACE {

static_assert(kLanes == 16);

inline constexpr float kLargest = 32639;  // of factors: 127 * 256 + 127

/// sum + the products of each lane's four codes with the four signed bytes at `factors`.
HWY_INLINE Words add_products(Words sum, Words codes, const int8_t* factors) {
  int32_t four;
  std::memcpy(&four, factors, 4);
  return Words{_mm512_dpbusd_epi32(sum.raw, codes.raw, _mm512_set1_epi32(four))};
}

/// 16 whole numbers as 256 high + low: 16 low bytes, then 16 high ones.
HWY_INLINE void store_bytes(Words whole, int8_t* to) {
  struct Table {
    uint8_t at[64];
    constexpr Table() : at() {
      for (size_t i = 0; i < 16; ++i) {
        at[i] = static_cast<uint8_t>(4 * i);
        at[16 + i] = static_cast<uint8_t>(4 * i + 1);
      }
    }
  };
  alignas(64) static constexpr Table kPick;
  const I32 d;
  // The low byte is signed: what it takes away, the high one has more.
  const Words carried = hn::Add(whole, hn::Set(d, 128));
  const Words both = hn::IfVecThenElse(hn::Set(d, 0xFF), whole, carried);
  const __m512i bytes = _mm512_permutexvar_epi8(_mm512_load_si512(kPick.at), both.raw);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(bytes));
}

struct Larger {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};
struct Plus {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};

/// out[m] <- all lanes of v[m] joined; four vectors at once take a third of the shuffles.
template <class Op, size_t Q>
HWY_INLINE void join_lanes(float* out, const Vec (&v)[Q], const Op& op) {
  const F32 d;
  const hn::Half<F32> half;
  const hn::Half<decltype(half)> quarter;
  const auto join_blocks = [&](Vec x) {
    const auto h = op(hn::LowerHalf(half, x), hn::UpperHalf(half, x));
    return op(hn::LowerHalf(quarter, h), hn::UpperHalf(quarter, h));
  };
  if constexpr (Q >= 3) {
    const Vec third = v[2], fourth = v[Q - 1];
    const Vec ac = op(hn::InterleaveLower(d, v[0], third), hn::InterleaveUpper(d, v[0], third));
    const Vec be = op(hn::InterleaveLower(d, v[1], fourth), hn::InterleaveUpper(d, v[1], fourth));
    const Vec all = op(hn::InterleaveLower(d, ac, be), hn::InterleaveUpper(d, ac, be));
    float four[4];
    hn::StoreU(join_blocks(all), quarter, four);
    std::memcpy(out, four, sizeof(float) * Q);
  } else {
    for (size_t m = 0; m < Q; ++m) {
      const auto x = join_blocks(v[m]);
      const auto y = op(x, hn::Shuffle1032(x));
      out[m] = hn::GetLane(op(y, hn::Shuffle2301(y)));
    }
  }
}

/// Bytes of 32 factors: low and high ones of 16, low and high ones of 16.
inline constexpr size_t kFactorBytes = 64;
/// Where the low bytes of factors n .. n + 3 lie; the high ones are 16 further.
constexpr size_t factor_at(size_t n) { return n / 16 * 32 + n % 16; }
inline constexpr size_t kHigh = 16;

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#endif  // include guard
