#pragma once
// Weights in blocks as the GPU keeps them: the same codes and scales, in the order in which its
// tensor cores take them. A tile is 16 rows and all their inputs, cut into steps of 128 inputs
// (formats of 32) or 256. A step's bytes are those that the lanes of a warp load, plane by plane,
// each lane 16 (or 8, or 4) adjacent bytes: codes' low bits, their high bits, scales.
//
// With r = lane / 4 and c = lane % 4, of each run of 32 inputs a lane has the operand of
// mma.m16n8k32: registers i = 0..3 of four codes each, row r + 8 (i & 1), inputs
// 16 (i >> 1) + 4 c + 0..3. Of scales it has those of rows r and r + 8 of every fourth group of
// kSub inputs, 4 q + c.
//
//   codes of    planes
//   4 bits      a word for two registers: i in the low halves of bytes, i + 2 in the high ones
//   levels      the same word with i's four codes in its low half
//   5           4 bits, and a fifth bit: bit n % 8 of a word's bytes belongs to register n
//   6           4 bits, and a word a run of two high bits: bits 2 i of its bytes
//   2, 3        a word a run, bits 2 i of its bytes; and a third bit as the fifth
//   8           a word a register
//
// Bytes are those of the file but for Q3_K and IQ4_XS, whose scales of 6 bits become bytes
// (114 for 110 and 138 for 136), and for what pads rows to 16 and inputs to a step.

#include <cstddef>
#include <cstring>

#include "kernels/block_layouts.h"

namespace pith {

inline constexpr int kTileRows = 16, kTileLanes = 32;

template <WeightType kType>
struct TileFormat : BlockLayout<kType> {
  using L = BlockLayout<kType>;
  static constexpr int kStep = L::kBlock == 32 ? 128 : 256;
  static constexpr int kRuns = kStep / 32, kSubs = kStep / L::kSub, kQuarter = kSubs / 4;
  static constexpr int kBaseBits = L::kBits == 8 ? 8 : L::kBits >= 4 ? 4 : 2;
  static constexpr int kHighBits = L::kBits - kBaseBits;
  // Words of a lane.
  static constexpr int kBase = kRuns * kBaseBits / 2, kHigh = kRuns * kHighBits / 2;
  static constexpr int kOwn = L::kSides == BlockSides::kHalves    ? (L::kMinimum ? 2 : 1)
                              : L::kSides == BlockSides::kSixBits ? 2
                                                                  : kQuarter / 2;
  /// Words that the four lanes of two rows share.
  static constexpr int kShared = L::kSides == BlockSides::kBytes ? (L::kMinimum ? 2 : 1) : 0;
  static constexpr int kWords = kBase + kHigh + kOwn + kShared;
  static constexpr int kStepBytes = 4 * (kTileLanes * (kBase + kHigh + kOwn) + 8 * kShared);
};

/// Words that a lane loads at once from a plane of `words` a lane.
PITH_BOTH_SIDES constexpr int tile_piece(int words) {
  return words % 4 == 0 ? 4 : words % 2 == 0 ? 2 : 1;
}

/// The part of a step that a lane has. No array is empty, so that there are no special cases.
template <class F>
struct LaneStep {
  uint32_t base[F::kBase];
  uint32_t high[F::kHigh > 0 ? F::kHigh : 1];
  uint32_t own[F::kOwn];
  uint32_t shared[F::kShared > 0 ? F::kShared : 1];
};

/// Scales of rows r and r + 8.
template <class F>
struct LaneSides {
  float scale[F::kQuarter][2];
  float low[F::kQuarter][2];  // only of formats with a minimum
};

/// Shape of a matrix in tiles.
struct TileCounts {
  size_t tiles = 0, steps = 0, step_bytes = 0;
  size_t bytes() const { return tiles * steps * step_bytes; }
};
inline TileCounts tile_counts(WeightType type, size_t out, size_t in) {
  TileCounts n;
  with_block_type(type, [&]<WeightType kType> {
    using F = TileFormat<kType>;
    n = {(out + kTileRows - 1) / kTileRows, (in + F::kStep - 1) / F::kStep, F::kStepBytes};
  });
  return n;
}

/// Calls f(word of the lane's step, its byte in the step) for each, plane by plane.
template <class F, class Visit>
PITH_BOTH_SIDES inline void visit_words(LaneStep<F>& s, int lane, const Visit& f) {
  const auto plane = [&](uint32_t* words, int count, int at, int who, int lanes) {
    const int piece = tile_piece(count);
    for (int w = 0; w < count; ++w) {
      f(words[w], at + 4 * ((w / piece) * lanes * piece + who * piece + w % piece));
    }
    return at + 4 * lanes * count;
  };
  int at = plane(s.base, F::kBase, 0, lane, kTileLanes);
  at = plane(s.high, F::kHigh, at, lane, kTileLanes);
  at = plane(s.own, F::kOwn, at, lane, kTileLanes);
  plane(s.shared, F::kShared, at, lane / 4, 8);
}

/// The lane's step from two rows' blocks, that of row r and that of row r + 8, null past the
/// matrix. `first` is the step's first input; there are `in` of them.
template <class F>
PITH_BOTH_SIDES inline void pack_step(LaneStep<F>& s, const uint8_t* const (&rows)[2], int lane,
                                      size_t first, size_t in) {
  s = {};
  const int c = lane % 4;
  const auto block = [&](int row, size_t input) {
    return rows[row] && input < in ? rows[row] + input / F::kBlock * F::kBytes : nullptr;
  };
  for (int run = 0; run < F::kRuns; ++run) {
    for (int i = 0; i < 4; ++i) {
      const size_t input = first + static_cast<size_t>(32 * run);
      const uint8_t* b = block(i & 1, input);
      if (!b) continue;
      const int n = 4 * run + i, e = static_cast<int>(input % F::kBlock) + 16 * (i >> 1) + 4 * c;
      for (int k = 0; k < 4; ++k) {
        const auto code = static_cast<uint32_t>(F::code(b, e + k));
        const uint32_t low = code & ((1u << F::kBaseBits) - 1), high = code >> F::kBaseBits;
        if constexpr (F::kBaseBits == 8) s.base[n] |= low << (8 * k);
        if constexpr (F::kBaseBits == 2) s.base[run] |= low << (8 * k + 2 * i);
        if constexpr (F::kBaseBits == 4) {
          const int shift = F::kLevels ? 16 * (i >> 1) + 4 * k : 8 * k + 4 * (i >> 1);
          s.base[2 * run + (i & 1)] |= low << shift;
        }
        if constexpr (F::kHighBits == 1) s.high[n / 8] |= high << (8 * k + n % 8);
        if constexpr (F::kHighBits == 2) s.high[run] |= high << (8 * k + 2 * i);
      }
    }
  }
  for (int h = 0; h < 2; ++h) {
    for (int q = 0; q < F::kQuarter; ++q) {
      const int sub = 4 * q + c;
      const size_t input = first + static_cast<size_t>(sub * F::kSub);
      const uint8_t* b = block(h, input);
      if (!b) continue;
      const int j = static_cast<int>(input % F::kBlock) / F::kSub, v = 2 * q + h;
      if constexpr (F::kSides == BlockSides::kHalves) {
        const uint32_t d = F::half_at(b, F::kD);
        if constexpr (F::kMinimum) {
          s.own[h] = d | F::half_at(b, F::kMin) << 16;
        } else {
          s.own[0] |= d << (16 * h);
        }
      } else if constexpr (F::kSides == BlockSides::kSixBits) {
        s.own[0] |= static_cast<uint32_t>(F::scale(b, j)) << (6 * v);
        s.own[1] |= static_cast<uint32_t>(F::minimum(b, j)) << (6 * v);
        if (h == c / 2 && q == 0) {  // a quarter of the two rows' d and dmin
          const uint32_t half = F::half_at(b, c % 2 == 0 ? F::kD : F::kMin);
          s.own[0] |= half << 24;
          s.own[1] |= half >> 8 << 24;
        }
      } else {
        s.own[v / 4] |= (static_cast<uint32_t>(F::side(b, j)) & 255) << (8 * (v % 4));
        if (q == 0) {
          const uint32_t d = F::half_at(b, F::kD);
          if constexpr (F::kMinimum) {
            s.shared[h] = d | F::half_at(b, F::kMin) << 16;
          } else {
            s.shared[0] |= d << (16 * h);
          }
        }
      }
    }
  }
}

/// The lane's share of a kSixBits step's d and dmin: an f16.
template <class F>
PITH_BOTH_SIDES inline uint32_t shared_half(const LaneStep<F>& s) {
  return s.own[0] >> 24 | s.own[1] >> 24 << 8;
}

/// factor x for whole numbers x < 2^22, exactly where the product is a float: without a conversion,
/// of which a multiprocessor makes 16 a cycle.
PITH_BOTH_SIDES inline float times_whole(float factor, uint32_t x) {
#if defined(__CUDA_ARCH__)
  return fmaf(__uint_as_float(0x4B000000u | x), factor, -8388608.0f * factor);
#else
  return factor * static_cast<float>(x);
#endif
}

/// `halves`: shared_half of the four lanes that have the same rows, where the format has it.
template <class F>
PITH_BOTH_SIDES inline void unpack_sides(LaneSides<F>& to, const LaneStep<F>& s,
                                         const uint32_t (&halves)[4]) {
  PITH_UNROLL
  for (int h = 0; h < 2; ++h) {
    if constexpr (F::kSides == BlockSides::kHalves) {
      if constexpr (F::kMinimum) {
        to.scale[0][h] = half_to_float(s.own[h] & 0xFFFFu);
        to.low[0][h] = half_to_float(s.own[h] >> 16);
      } else {
        to.scale[0][h] = half_to_float(s.own[0] >> (16 * h) & 0xFFFFu);
      }
    } else if constexpr (F::kSides == BlockSides::kSixBits) {
      const float d = half_to_float(halves[2 * h]), low = -half_to_float(halves[2 * h + 1]);
      PITH_UNROLL
      for (int q = 0; q < F::kQuarter; ++q) {
        to.scale[q][h] = times_whole(d, s.own[0] >> (6 * (2 * q + h)) & 63);
        to.low[q][h] = times_whole(low, s.own[1] >> (6 * (2 * q + h)) & 63);
      }
    } else {
      const float d =
          half_to_float(F::kMinimum ? s.shared[h] & 0xFFFFu : s.shared[0] >> (16 * h) & 0xFFFFu);
      PITH_UNROLL
      for (int q = 0; q < F::kQuarter; ++q) {
        const int v = 2 * q + h;
        const uint32_t byte = s.own[v / 4] >> (8 * (v % 4)) & 255;
        if constexpr (F::kMinimum) {  // two half bytes
          to.scale[q][h] = times_whole(d, byte & 15);
          to.low[q][h] = times_whole(-half_to_float(s.shared[h] >> 16), byte >> 4);
        } else {
          to.scale[q][h] = d * static_cast<float>(static_cast<int8_t>(byte));
        }
      }
    }
  }
}

/// Levels of the four codes in the low half of `codes`, as bytes.
PITH_BOTH_SIDES inline uint32_t levels_of(uint32_t codes) {
#if defined(__CUDA_ARCH__)
  // Bytes 0-7 and 8-15 of the table, looked up by three bits, and one of the two by the fourth.
  const uint32_t index = codes & 0x7777u;
  const uint32_t low = __byte_perm(0xBFAD9881u, 0xF6EADDCFu, index);
  const uint32_t high = __byte_perm(0x26190D01u, 0x71594535u, index);
  return __byte_perm(low, high, 0x3210u | (codes >> 1 & 0x4444u));
#else
  constexpr int8_t kLevels[16] = PITH_IQ4_LEVELS;
  uint32_t out = 0;
  for (int k = 0; k < 4; ++k) {
    out |= static_cast<uint32_t>(static_cast<uint8_t>(kLevels[codes >> (4 * k) & 15])) << (8 * k);
  }
  return out;
#endif
}

/// x moved by `left` bits, either way.
PITH_BOTH_SIDES constexpr uint32_t moved(uint32_t x, int left) {
  return left >= 0 ? x << left : x >> -left;
}

/// Register i of a run: four codes in a byte each.
template <class F>
PITH_BOTH_SIDES inline uint32_t codes_of(const LaneStep<F>& s, int run, int i) {
  const int n = 4 * run + i;
  uint32_t codes = 0;
  if constexpr (F::kBaseBits == 8) {
    codes = s.base[n];
  } else if constexpr (F::kLevels) {
    codes = levels_of(s.base[2 * run + (i & 1)] >> (16 * (i >> 1)));
  } else if constexpr (F::kBaseBits == 4) {
    codes = s.base[2 * run + (i & 1)] >> (4 * (i >> 1)) & 0x0F0F0F0Fu;
  } else {
    codes = s.base[run] >> (2 * i) & 0x03030303u;
  }
  constexpr uint32_t kMask = 0x01010101u * ((1u << F::kHighBits) - 1) << F::kBaseBits;
  if constexpr (F::kHighBits == 1) codes |= moved(s.high[n / 8], F::kBaseBits - n % 8) & kMask;
  if constexpr (F::kHighBits == 2) codes |= moved(s.high[run], F::kBaseBits - 2 * i) & kMask;
  return codes;
}

}  // namespace pith
