// Vectors of codes of weights in blocks: how a format's codes and scales are unpacked. A vector
// holds the codes of one run of 32 weights (AVX2), or of two (AVX-512). Included once a target.

#if defined(PITH_KERNELS_CPU_BLOCK_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PITH_KERNELS_CPU_BLOCK_CODES_INL_H_
#undef PITH_KERNELS_CPU_BLOCK_CODES_INL_H_
#else
#define PITH_KERNELS_CPU_BLOCK_CODES_INL_H_
#endif

#include "kernels/cpu/block_tables.h"
#include "kernels/cpu/simd-inl.h"

// Highway 1.0.3 names the 256-bit form of byte products for AVX3_DL, not the 512-bit one.
#undef PITH_BLOCKS_STR
#if HWY_TARGET == HWY_AVX2
#define PITH_BLOCKS_STR HWY_TARGET_STR
#else
#define PITH_BLOCKS_STR HWY_TARGET_STR ",avx512vnni"
#endif

HWY_PUSH_ATTRIBUTES(PITH_BLOCKS_STR)
namespace pith {
namespace HWY_NAMESPACE {

using U8 = hn::ScalableTag<uint8_t>;
using Codes = hn::Vec<U8>;
using Ints = hn::Vec<hn::Rebind<int32_t, F32>>;
/// Scales of eight runs of 32 weights.
using Eight = hn::CappedTag<float, 8>;
using Scales = hn::Vec<Eight>;

inline constexpr size_t kRuns = HWY_LANES(uint8_t) / 32;  // runs of 32 codes in a vector
inline constexpr size_t kStep = 256;                      // weights between looks at scales
inline constexpr size_t kStepRuns = kStep / 32;

#if HWY_TARGET == HWY_AVX2
HWY_INLINE Codes wrap(__m256i v) { return Codes{v}; }
/// 64-bit lanes: `a` in the first run, `b` in the second.
HWY_INLINE __m256i of_runs(int64_t a, int64_t) { return _mm256_set1_epi64x(a); }
HWY_INLINE Codes shift_right(Codes x, int64_t a, int64_t b) {
  return wrap(_mm256_srlv_epi64(x.raw, of_runs(a, b)));
}
HWY_INLINE Codes shift_left(Codes x, int64_t a, int64_t b) {
  return wrap(_mm256_sllv_epi64(x.raw, of_runs(a, b)));
}
/// 32 bytes, the same for each run.
HWY_INLINE Codes spread(const uint8_t* p) {
  return wrap(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
/// Each run's 32 bytes.
HWY_INLINE Codes load_runs(const uint8_t* p, size_t) { return spread(p); }
/// Each run's 32 half bytes, from 16: the low halves first.
HWY_INLINE Codes load_halves(const uint8_t* p, size_t) {
  const __m256i twice =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i apart = _mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4));
  return wrap(_mm256_and_si256(apart, _mm256_set1_epi8(15)));
}
/// 16 where a bit of the run's 32 is set.
HWY_INLINE Codes load_fifth(const uint8_t* p, size_t) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  const __m256i bytes =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i wanted = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i all = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), bytes);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(all, wanted), wanted);
  return wrap(_mm256_and_si256(set, _mm256_set1_epi8(16)));
}
#else
HWY_INLINE Codes wrap(__m512i v) { return Codes{v}; }
HWY_INLINE __m512i of_runs(int64_t a, int64_t b) {
  return _mm512_setr_epi64(a, a, a, a, b, b, b, b);
}
HWY_INLINE Codes shift_right(Codes x, int64_t a, int64_t b) {
  return wrap(_mm512_srlv_epi64(x.raw, of_runs(a, b)));
}
HWY_INLINE Codes shift_left(Codes x, int64_t a, int64_t b) {
  return wrap(_mm512_sllv_epi64(x.raw, of_runs(a, b)));
}
HWY_INLINE Codes spread(const uint8_t* p) {
  return wrap(_mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
HWY_INLINE Codes load_runs(const uint8_t* p, size_t stride) {
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + stride));
  return wrap(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
}
HWY_INLINE Codes load_halves(const uint8_t* p, size_t stride) {
  const auto at = [&](size_t i)
                      HWY_ATTR { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i)); };
  const __m512i twice =
      _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(at(0)), 0xFF00, at(stride));
  const __m512i apart = _mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
  return wrap(_mm512_and_si512(apart, _mm512_set1_epi8(15)));
}
HWY_INLINE Codes load_fifth(const uint8_t* p, size_t stride) {
  uint32_t first, second;
  std::memcpy(&first, p, 4);
  std::memcpy(&second, p + stride, 4);
  return wrap(_mm512_maskz_set1_epi8(first | static_cast<uint64_t>(second) << 32, 16));
}
#endif

HWY_INLINE Codes masked(Codes x, uint8_t bits) { return hn::And(x, hn::Set(U8(), bits)); }

/// `value` where bit `run` (of the vector's first run, the next in the second) of a byte is set.
HWY_INLINE Codes where_bit(Codes x, size_t run, uint8_t value) {
  const auto repeated = [](size_t bit) {
    return static_cast<int64_t>(0x0101010101010101ull << (bit & 7));
  };
  const Codes bits = wrap(of_runs(repeated(run), repeated(run + 1)));
  return hn::IfThenElseZero(hn::TestBit(x, bits), hn::Set(U8(), value));
}

/// The first four bytes of eight blocks. Put together in registers: compilers make a general list
/// of eight on the stack, and a vector that is loaded behind narrower stores waits for all of them.
HWY_INLINE __m256i block_words(const uint8_t* p, size_t stride) {
  const auto four = [&](const uint8_t* at) HWY_ATTR {
    const auto word = [&](size_t i) {
      int32_t bytes;
      std::memcpy(&bytes, at + i * stride, 4);
      return bytes;
    };
    __m128i words = _mm_cvtsi32_si128(word(0));
    words = _mm_insert_epi32(words, word(1), 1);
    words = _mm_insert_epi32(words, word(2), 2);
    return _mm_insert_epi32(words, word(3), 3);
  };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(four(p)), four(p + 4 * stride), 1);
}
/// Eight f16 numbers in the low halves of words.
HWY_INLINE Scales low_halves(__m256i words) {
  const __m256i pick = _mm256_setr_epi64x(0x0D0C090805040100, -1, 0x0D0C090805040100, -1);
  const __m256i packed = _mm256_shuffle_epi8(words, pick);
  return Scales{_mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000)))};
}
HWY_INLINE Scales high_halves(__m256i words) { return low_halves(_mm256_srli_epi32(words, 16)); }

HWY_INLINE float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}
/// factor * eight bytes, unsigned or signed.
HWY_INLINE Scales bytes_times(float factor, uint64_t bytes) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes)));
  return Scales{_mm256_mul_ps(_mm256_set1_ps(factor), _mm256_cvtepi32_ps(wide))};
}
HWY_INLINE Scales signed_times(float factor, uint64_t bytes) {
  const __m256i wide = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes)));
  return Scales{_mm256_mul_ps(_mm256_set1_ps(factor), _mm256_cvtepi32_ps(wide))};
}

HWY_INLINE uint64_t eight_bytes(const uint8_t* p) {
  uint64_t bytes;
  std::memcpy(&bytes, p, 8);
  return bytes;
}
HWY_INLINE uint64_t four_bytes(const uint8_t* p) {
  uint32_t bytes;
  std::memcpy(&bytes, p, 4);
  return bytes;
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#endif  // include guard
