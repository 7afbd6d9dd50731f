// The block formats: a step is 256 weights, and
//   weight = scale (code - kZero) + low,
// with a scale (and, if kMinimum, a low) for each kSub weights. codes() are unsigned, below 128;
// those of kSigned formats are signed bytes. Included once a target.
//
//   format  bytes of a block of 32 (six first) or 256 weights
//   Q8_0    d f16, 32 codes
//   Q4_0    d, 16 pairs of half bytes          Q4_1  d, m, 16 pairs
//   Q5_0    d, 32 fifth bits, 16 pairs         Q5_1  d, m, 32 fifth bits, 16 pairs
//   IQ4_NL  as Q4_0, codes name levels
//   Q2_K    16 scale and minimum of 4 bits, 64 codes of 2 bits, d, dmin
//   Q3_K    32 third bits, 64 codes, 12 bytes of 16 scales of 6 bits, d
//   Q4_K    d, dmin, 12 bytes of 8 scales and minima of 6 bits, 128 pairs
//   Q5_K    the same with 32 bytes of fifth bits before the pairs
//   Q6_K    128 pairs, 64 high pairs of bits, 16 scales i8, d
//   IQ4_XS  d, 8 pairs of high bits of scales, 4 pairs of low ones, 128 pairs

#if defined(PITH_KERNELS_CPU_BLOCK_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PITH_KERNELS_CPU_BLOCK_FORMATS_INL_H_
#undef PITH_KERNELS_CPU_BLOCK_FORMATS_INL_H_
#else
#define PITH_KERNELS_CPU_BLOCK_FORMATS_INL_H_
#endif

#include "kernels/cpu/block_codes-inl.h"

HWY_PUSH_ATTRIBUTES(PITH_BLOCKS_STR)
namespace pith {
namespace HWY_NAMESPACE {

/// Scales of a step, kSub weights each.
template <size_t kSub>
struct StepSides {
  Scales scale[32 / kSub], low[32 / kSub];
};

template <size_t kBlockBytes, int kZeroCode, bool kHasMinimum, bool kSignedCodes>
struct SmallFormat {
  static constexpr size_t kBytes = kBlockBytes, kBlock = 32, kSub = 32;
  static constexpr int kZero = kZeroCode;
  static constexpr bool kMinimum = kHasMinimum, kSigned = kSignedCodes;

  HWY_INLINE static void sides(const uint8_t* p, StepSides<32>& s) {
    const __m256i words = block_words(p, kBytes);
    s.scale[0] = low_halves(words);
    if constexpr (kMinimum) s.low[0] = high_halves(words);
  }
};

struct Q8Zero : SmallFormat<34, 0, false, true> {
  HWY_INLINE static Codes codes(const uint8_t* p, size_t run) {
    return load_runs(p + run * kBytes + 2, kBytes);
  }
};
struct Q4Zero : SmallFormat<18, 8, false, false> {
  HWY_INLINE static Codes codes(const uint8_t* p, size_t run) {
    return load_halves(p + run * kBytes + 2, kBytes);
  }
};
struct Q4One : SmallFormat<20, 0, true, false> {
  HWY_INLINE static Codes codes(const uint8_t* p, size_t run) {
    return load_halves(p + run * kBytes + 4, kBytes);
  }
};
struct Q5Zero : SmallFormat<22, 16, false, false> {
  HWY_INLINE static Codes codes(const uint8_t* p, size_t run) {
    p += run * kBytes;
    return hn::Or(load_halves(p + 6, kBytes), load_fifth(p + 2, kBytes));
  }
};
struct Q5One : SmallFormat<24, 0, true, false> {
  HWY_INLINE static Codes codes(const uint8_t* p, size_t run) {
    p += run * kBytes;
    return hn::Or(load_halves(p + 8, kBytes), load_fifth(p + 4, kBytes));
  }
};
HWY_INLINE Codes levels_of(Codes codes) {
  const Codes levels = hn::LoadDup128(U8(), reinterpret_cast<const uint8_t*>(kIq4Levels));
  return hn::TableLookupBytes(levels, codes);
}
struct Iq4Nl : SmallFormat<18, 0, false, true> {
  HWY_INLINE static Codes codes(const uint8_t* p, size_t run) {
    return levels_of(load_halves(p + run * kBytes + 2, kBytes));
  }
};

/// Two bits of each of four runs, from 32 bytes for every four runs.
HWY_INLINE Codes two_bits(const uint8_t* p, size_t run) {
  const auto shift = static_cast<int64_t>(2 * (run % 4));
  return masked(shift_right(spread(p + run / 4 * 32), shift, shift + 2), 3);
}
/// Half a byte of each of two runs, from 32 bytes for both.
HWY_INLINE Codes half_bytes(const uint8_t* p, size_t run) {
  const auto shift = static_cast<int64_t>(4 * (run % 2));
  return masked(shift_right(spread(p + run / 2 * 32), shift, 4 - shift), 15);
}

template <size_t kBlockBytes, size_t kWeightsOfScale, int kZeroCode, bool kHasMinimum,
          bool kSignedCodes>
struct LargeFormat {
  static constexpr size_t kBytes = kBlockBytes, kBlock = 256, kSub = kWeightsOfScale;
  static constexpr int kZero = kZeroCode;
  static constexpr bool kMinimum = kHasMinimum, kSigned = kSignedCodes;
};

struct Q2K : LargeFormat<84, 16, 0, true, false> {
  HWY_INLINE static void sides(const uint8_t* p, StepSides<16>& s) {
    const float d = half_at(p + 80), dmin = half_at(p + 82);
    constexpr uint64_t kLow = 0x0F0F0F0F0F0F0F0F;
    for (size_t h = 0; h < 2; ++h) {
      const uint64_t pairs = eight_bytes(p + 8 * h);
      s.scale[h] = bytes_times(d, pairs & kLow);
      s.low[h] = bytes_times(-dmin, pairs >> 4 & kLow);
    }
  }
  HWY_INLINE static Codes codes(const uint8_t* p, size_t run) { return two_bits(p + 16, run); }
};

struct Q3K : LargeFormat<110, 16, 4, false, false> {
  HWY_INLINE static void sides(const uint8_t* p, StepSides<16>& s) {
    const float d = half_at(p + 108);
    constexpr uint64_t kLow = 0x0F0F0F0F0F0F0F0F, kHigh = 0x03030303;
    const uint64_t low = eight_bytes(p + 96), high = four_bytes(p + 104);
    for (size_t h = 0; h < 2; ++h) {
      // Four scales' high pairs of bits lie in the same bytes at shifts 2 (j / 4).
      const uint64_t top = (high >> (4 * h) & kHigh) | (high >> (4 * h + 2) & kHigh) << 32;
      const uint64_t six = (low >> (4 * h) & kLow) | top << 4;
      // 6 bits less 32, as a signed byte: no byte borrows from the next.
      constexpr uint64_t kTop = 0x8080808080808080;
      s.scale[h] = signed_times(d, ((six | kTop) - 0x2020202020202020) ^ kTop);
    }
  }
  HWY_INLINE static Codes codes(const uint8_t* p, size_t run) {
    return hn::Or(two_bits(p + 32, run), where_bit(spread(p), run, 4));
  }
};

/// Scales and minima of Q4_K and Q5_K: d s and -dmin m for eight runs.
HWY_INLINE void six_bit_sides(const uint8_t* p, StepSides<32>& s) {
  constexpr uint64_t kSix = 0x3F3F3F3F, kFour = 0x0F0F0F0F, kTwo = 0x03030303;
  const uint64_t a = four_bytes(p + 4), b = four_bytes(p + 8), c = four_bytes(p + 12);
  const uint64_t scales = (a & kSix) | ((c & kFour) | (a >> 6 & kTwo) << 4) << 32;
  const uint64_t minima = (b & kSix) | ((c >> 4 & kFour) | (b >> 6 & kTwo) << 4) << 32;
  s.scale[0] = bytes_times(half_at(p), scales);
  s.low[0] = bytes_times(-half_at(p + 2), minima);
}
struct Q4K : LargeFormat<144, 32, 0, true, false> {
  HWY_INLINE static void sides(const uint8_t* p, StepSides<32>& s) { six_bit_sides(p, s); }
  HWY_INLINE static Codes codes(const uint8_t* p, size_t run) { return half_bytes(p + 16, run); }
};
struct Q5K : LargeFormat<176, 32, 0, true, false> {
  HWY_INLINE static void sides(const uint8_t* p, StepSides<32>& s) { six_bit_sides(p, s); }
  HWY_INLINE static Codes codes(const uint8_t* p, size_t run) {
    return hn::Or(half_bytes(p + 48, run), where_bit(spread(p + 16), run, 16));
  }
};

struct Q6K : LargeFormat<210, 16, 32, false, false> {
  HWY_INLINE static void sides(const uint8_t* p, StepSides<16>& s) {
    const float d = half_at(p + 208);
    for (size_t h = 0; h < 2; ++h) s.scale[h] = signed_times(d, eight_bytes(p + 192 + 8 * h));
  }
  HWY_INLINE static Codes codes(const uint8_t* p, size_t run) {
    const size_t part = run / 4, g = run % 4;
    const uint8_t* at = p + 64 * part + 32 * (g & 1);
    const auto half = static_cast<int64_t>(4 * (g >> 1));
    const Codes low = masked(shift_right(load_runs(at, 32), half, half), 15);
    const Codes pairs = spread(p + 128 + 32 * part);
    const auto left = 4 - 2 * static_cast<int64_t>(g);  // to bits 4 and 5
    const Codes high =
        g < 2 ? shift_left(pairs, left, left - 2) : shift_right(pairs, -left, 2 - left);
    return hn::Or(low, masked(high, 0x30));
  }
};

struct Iq4Xs : LargeFormat<136, 32, 0, false, true> {
  HWY_INLINE static void sides(const uint8_t* p, StepSides<32>& s) {
    alignas(8) int8_t whole[8];
    for (size_t j = 0; j < 8; ++j) {
      const int low = p[4 + j / 2] >> (4 * (j & 1)) & 15;
      const int high = (p[2 + j / 4] >> (2 * (j % 4)) & 3) << 4;
      whole[j] = static_cast<int8_t>(low + high - 32);
    }
    s.scale[0] = signed_times(half_at(p), eight_bytes(reinterpret_cast<const uint8_t*>(whole)));
  }
  HWY_INLINE static Codes codes(const uint8_t* p, size_t run) {
    return levels_of(load_halves(p + 8 + 16 * run, 16));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#endif  // include guard
