#pragma once
// Where a block of a weight format has its codes and scales, for code that runs on the host and on
// the device (kernels/cpu/block_formats-inl.h draws the bytes; its vectors read them eight blocks
// at a time). A weight is
//   scale (code - kZero) + low,
// with scale = d s and low = -dmin m (or m) for each kSub weights; codes of kSigned formats are
// signed, those of kLevels name kIq4Levels.

#include <cstdint>

#include "core/both_sides.h"
#include "core/dtype.h"
#include "core/weight_type.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

namespace pith {

/// The levels of IQ4_NL and IQ4_XS by their codes.
#define PITH_IQ4_LEVELS \
  { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 }

PITH_BOTH_SIDES inline float half_to_float(uint32_t bits) {
#if defined(__CUDACC__)
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
#else
  return f16_to_f32(static_cast<uint16_t>(bits));
#endif
}

/// How a block's scales are written.
enum class BlockSides : uint8_t {
  kHalves,   ///< f16 d, and m of those with a minimum, for each 32
  kSixBits,  ///< f16 d and dmin, and for each 32 a scale and a minimum of 6 bits
  kBytes,    ///< f16 d, and dmin of those with a minimum, and for each kSub a byte
};

struct BlockBase {
  static constexpr int kBlock = 32, kSub = 32, kZero = 0;
  static constexpr bool kMinimum = false, kSigned = false, kLevels = false;
  static constexpr BlockSides kSides = BlockSides::kHalves;
  static constexpr int kD = 0, kMin = 2;  ///< where d and its minimum (m or dmin) lie

  PITH_BOTH_SIDES static uint32_t half_at(const uint8_t* b, int at) {
    return b[at] | static_cast<uint32_t>(b[at + 1]) << 8;
  }
  /// Code e of 32 in 16 bytes: the low halves first.
  PITH_BOTH_SIDES static int nibble(const uint8_t* codes, int e) {
    return e < 16 ? codes[e] & 15 : codes[e - 16] >> 4;
  }
  PITH_BOTH_SIDES static int bit(const uint8_t* bits, int e) { return bits[e / 8] >> (e % 8) & 1; }
  /// Two bits of each of four runs of 32, from 32 bytes for every four runs.
  PITH_BOTH_SIDES static int two_bits(const uint8_t* codes, int e) {
    return codes[e / 128 * 32 + e % 32] >> (2 * (e % 128 / 32)) & 3;
  }
};

template <WeightType kType>
struct BlockLayout;

template <>
struct BlockLayout<WeightType::kQ8Zero> : BlockBase {
  static constexpr int kBytes = 34, kBits = 8;
  static constexpr bool kSigned = true;
  PITH_BOTH_SIDES static int code(const uint8_t* b, int e) { return b[2 + e]; }
};
template <>
struct BlockLayout<WeightType::kQ4Zero> : BlockBase {
  static constexpr int kBytes = 18, kBits = 4, kZero = 8;
  PITH_BOTH_SIDES static int code(const uint8_t* b, int e) { return nibble(b + 2, e); }
};
template <>
struct BlockLayout<WeightType::kQ4One> : BlockBase {
  static constexpr int kBytes = 20, kBits = 4;
  static constexpr bool kMinimum = true;
  PITH_BOTH_SIDES static int code(const uint8_t* b, int e) { return nibble(b + 4, e); }
};
template <>
struct BlockLayout<WeightType::kQ5Zero> : BlockBase {
  static constexpr int kBytes = 22, kBits = 5, kZero = 16;
  PITH_BOTH_SIDES static int code(const uint8_t* b, int e) {
    return nibble(b + 6, e) | bit(b + 2, e) << 4;
  }
};
template <>
struct BlockLayout<WeightType::kQ5One> : BlockBase {
  static constexpr int kBytes = 24, kBits = 5;
  static constexpr bool kMinimum = true;
  PITH_BOTH_SIDES static int code(const uint8_t* b, int e) {
    return nibble(b + 8, e) | bit(b + 4, e) << 4;
  }
};
template <>
struct BlockLayout<WeightType::kIq4Nl> : BlockBase {
  static constexpr int kBytes = 18, kBits = 4;
  static constexpr bool kSigned = true, kLevels = true;
  PITH_BOTH_SIDES static int code(const uint8_t* b, int e) { return nibble(b + 2, e); }
};

/// Of 256 weights.
struct LargeBlock : BlockBase {
  static constexpr int kBlock = 256;
  /// Half bytes of pairs of runs, 32 bytes per pair.
  PITH_BOTH_SIDES static int half_byte(const uint8_t* codes, int e) {
    return codes[e / 64 * 32 + e % 32] >> (4 * (e / 32 & 1)) & 15;
  }
};

template <>
struct BlockLayout<WeightType::kQ2K> : LargeBlock {
  static constexpr int kBytes = 84, kBits = 2, kSub = 16, kD = 80, kMin = 82;
  static constexpr bool kMinimum = true;
  static constexpr BlockSides kSides = BlockSides::kBytes;
  PITH_BOTH_SIDES static int code(const uint8_t* b, int e) { return two_bits(b + 16, e); }
  /// The scale in the low half of a byte, the minimum in the high one.
  PITH_BOTH_SIDES static int side(const uint8_t* b, int j) { return b[j]; }
};
template <>
struct BlockLayout<WeightType::kQ3K> : LargeBlock {
  static constexpr int kBytes = 110, kBits = 3, kSub = 16, kZero = 4, kD = 108;
  static constexpr BlockSides kSides = BlockSides::kBytes;
  PITH_BOTH_SIDES static int code(const uint8_t* b, int e) {
    return two_bits(b + 32, e) | (b[e % 32] >> (e / 32) & 1) << 2;
  }
  PITH_BOTH_SIDES static int side(const uint8_t* b, int j) {
    const uint8_t* t = b + 96;
    return (t[j % 8] >> (4 * (j / 8)) & 15) + ((t[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32;
  }
};

/// The 6-bit scales and minima of Q4_K and Q5_K, 12 bytes for 8 runs.
struct SixBitBlock : LargeBlock {
  static constexpr bool kMinimum = true;
  static constexpr BlockSides kSides = BlockSides::kSixBits;
  PITH_BOTH_SIDES static int scale(const uint8_t* b, int j) {
    const uint8_t* t = b + 4;
    return j < 4 ? t[j] & 63 : (t[j + 4] & 15) | (t[j - 4] >> 6) << 4;
  }
  PITH_BOTH_SIDES static int minimum(const uint8_t* b, int j) {
    const uint8_t* t = b + 4;
    return j < 4 ? t[j + 4] & 63 : (t[j + 4] >> 4) | (t[j] >> 6) << 4;
  }
};
template <>
struct BlockLayout<WeightType::kQ4K> : SixBitBlock {
  static constexpr int kBytes = 144, kBits = 4;
  PITH_BOTH_SIDES static int code(const uint8_t* b, int e) { return half_byte(b + 16, e); }
};
template <>
struct BlockLayout<WeightType::kQ5K> : SixBitBlock {
  static constexpr int kBytes = 176, kBits = 5;
  PITH_BOTH_SIDES static int code(const uint8_t* b, int e) {
    return half_byte(b + 48, e) | (b[16 + e % 32] >> (e / 32) & 1) << 4;
  }
};

template <>
struct BlockLayout<WeightType::kQ6K> : LargeBlock {
  static constexpr int kBytes = 210, kBits = 6, kSub = 16, kZero = 32, kD = 208;
  static constexpr BlockSides kSides = BlockSides::kBytes;
  PITH_BOTH_SIDES static int code(const uint8_t* b, int e) {
    const int part = e / 128, g = e % 128 / 32, l = e % 32;
    const int low = b[64 * part + 32 * (g & 1) + l] >> (4 * (g >> 1)) & 15;
    return low | (b[128 + 32 * part + l] >> (2 * g) & 3) << 4;
  }
  PITH_BOTH_SIDES static int side(const uint8_t* b, int j) {
    return static_cast<int8_t>(b[192 + j]);
  }
};
template <>
struct BlockLayout<WeightType::kIq4Xs> : LargeBlock {
  static constexpr int kBytes = 136, kBits = 4;
  static constexpr bool kSigned = true, kLevels = true;
  static constexpr BlockSides kSides = BlockSides::kBytes;
  PITH_BOTH_SIDES static int code(const uint8_t* b, int e) {
    return nibble(b + 8 + 16 * (e / 32), e % 32);
  }
  PITH_BOTH_SIDES static int side(const uint8_t* b, int j) {
    const int low = b[4 + j / 2] >> (4 * (j & 1)) & 15;
    return low + ((b[2 + j / 4] >> (2 * (j % 4)) & 3) << 4) - 32;
  }
};

/// Calls f.template operator()<type>() for a type that has blocks; false for the others.
template <class F>
bool with_block_type(WeightType type, const F& f) {
  switch (type) {
    case WeightType::kQ8Zero: return f.template operator()<WeightType::kQ8Zero>(), true;
    case WeightType::kQ4Zero: return f.template operator()<WeightType::kQ4Zero>(), true;
    case WeightType::kQ4One: return f.template operator()<WeightType::kQ4One>(), true;
    case WeightType::kQ5Zero: return f.template operator()<WeightType::kQ5Zero>(), true;
    case WeightType::kQ5One: return f.template operator()<WeightType::kQ5One>(), true;
    case WeightType::kIq4Nl: return f.template operator()<WeightType::kIq4Nl>(), true;
    case WeightType::kQ2K: return f.template operator()<WeightType::kQ2K>(), true;
    case WeightType::kQ3K: return f.template operator()<WeightType::kQ3K>(), true;
    case WeightType::kQ4K: return f.template operator()<WeightType::kQ4K>(), true;
    case WeightType::kQ5K: return f.template operator()<WeightType::kQ5K>(), true;
    case WeightType::kQ6K: return f.template operator()<WeightType::kQ6K>(), true;
    case WeightType::kIq4Xs: return f.template operator()<WeightType::kIq4Xs>(), true;
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16: break;
  }
  return false;
}

}  // namespace pith
