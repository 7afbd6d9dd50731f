#pragma once
// Where codes, scales and minima lie in a device block of 32 rows (see grouped_tiles.cuh). One
// definition for the coders, the tests and whoever moves rows between blocks.

#include "core/both_sides.h"

namespace pith::cuda {

inline constexpr int kBlockRows = 32;

/// The bit where a code begins: in 32-bit word `word` of the block, at `bit`.
struct CodePlace {
  int word, bit;
};

/// Bits of codes that lie together.
struct CodePart {
  int width, shift;        ///< the part has `width` bits of a code, from bit `shift` up
  bool top;                ///< they are joined to those of the part before: see fragment()
  bool looked_up = false;  ///< codes name levels of a table: see fragment()
};

namespace layout {

PITH_BOTH_SIDES constexpr CodePlace place(int n, int lane, int low, int bits) {
  const int per_word = 16 / bits, word = n / per_word;
  return {(word / 4 * 32 + lane) * 4 + word % 4, low * 16 + n % per_word * bits};
}

/// Keys: rows are the rows of A.
PITH_BOTH_SIDES constexpr CodePlace key(int row, int channel, int dim, int bits) {
  const int n = (row / 8 * 2 + channel % 16 / 8) * (dim / 16) + channel / 16;
  return place(n, row % 8 * 4 + channel % 8 / 2, channel % 2, bits);
}
/// Values: channels are the rows of A, pairs of rows lie side by side.
PITH_BOTH_SIDES constexpr CodePlace value(int row, int channel, int dim, int bits) {
  const int n = (row / 8 * 2 + channel % 16 / 8) * (dim / 16) + channel / 16;
  return place(n, channel % 8 * 4 + row % 8 / 2, row % 2, bits);
}

// Codes of 1 to 4 bits of which a product takes 16 channels or rows whatever their number, in one
// part or two, each of the width that its products mask: 1 bit | the upper bit, then the lower one
// | two lower bits, then the upper one | 4 bits. Codes that are looked up are in one part but for
// those of 3 bits.

PITH_BOTH_SIDES constexpr int code_parts(int bits, bool looked_up) {
  return bits == 3 || (bits == 2 && !looked_up) ? 2 : 1;
}
PITH_BOTH_SIDES constexpr CodePart code_part(int bits, int part, bool looked_up) {
  if (looked_up) {
    if (bits < 3) return {bits, 0, false, true};
    return part == 0 ? CodePart{2, 0, false, true} : CodePart{1, 2, false, true};
  }
  if (bits == 2) return {1, 1 - part, false};
  if (bits == 3) return part == 0 ? CodePart{2, 0, false} : CodePart{1, 2, true};
  return {bits, 0, false};
}
/// Words of a block before a part.
PITH_BOTH_SIDES constexpr int words_before(int bits, int part, int dim) {
  return part == 0 ? 0 : code_part(bits, 0, false).width * dim;
}
PITH_BOTH_SIDES constexpr CodePlace fragment(int n, int lane, int low, const CodePart& part,
                                             int dim) {
  const int per_word = 16 / part.width, word = n / per_word, slot = n % per_word;
  const int words = part.width * dim / 32, piece = words < 4 ? words : 4;
  const int at = (word / piece * 32 + lane) * piece + word % piece;
  // Four bits of a selector are a code of the lower number, four beside them of the next pair's;
  // the next byte has the upper numbers'. Joined codes lie where a shift brings it
  // there.
  if (part.looked_up)
    return {at, slot % 4 / 2 * 16 + low * 8 + slot % 2 * 4 + slot / 4 * part.width};
  // Bits that are joined to pairs of bits lie two apart, so that one shift serves four.
  const int bit = part.top ? slot / 8 * 8 + slot / 4 % 2 + slot % 4 * 2 : slot * part.width;
  return {at, low * 16 + bit};
}
/// Where a part of a code lies, among keys or among values.
PITH_BOTH_SIDES constexpr CodePlace code_fragment(bool keys, int row, int channel, int dim,
                                                  const CodePart& part) {
  const int n = (row / 8 * 2 + channel % 16 / 8) * (dim / 16) + channel / 16;
  const int lane = keys ? row % 8 * 4 + channel % 8 / 2 : channel % 8 * 4 + row % 8 / 2;
  return fragment(n, lane, (keys ? channel : row) % 2, part, dim);
}
/// Byte `i` of the dim * width / 8 that a row has of a part; of codes that are looked up rows share
/// bytes.
PITH_BOTH_SIDES constexpr int fragment_byte(bool keys, int row, int i, int dim,
                                            const CodePart& part) {
  const int n = row / 8 * (dim / 8) + i / 8 * (8 / part.width);
  const CodePlace at = keys ? fragment(n, row % 8 * 4 + i / 2 % 4, i % 2, part, dim)
                            : fragment(n, i % 8 * 4 + row % 8 / 2, row % 2, part, dim);
  return at.word * 4 + at.bit / 8;
}

// Indices of f16 numbers in a block's side bytes. Lanes that read together read 16-byte pieces side
// by side: no bank of shared memory is asked twice.
PITH_BOTH_SIDES constexpr int piece_of(int n, int c) { return ((n / 4 * 4 + c) * 4 + n % 4) * 2; }
PITH_BOTH_SIDES constexpr int key_channel_scale(int channel) {
  return piece_of(channel / 8, channel % 8 / 2) + channel % 2;
}
PITH_BOTH_SIDES constexpr int key_token_scale(int row, int group) {
  return (group * 8 + row % 8) * 4 + row / 8;
}
PITH_BOTH_SIDES constexpr int value_scale(int row, int group, int dim) {
  return piece_of(row / 8 * (dim / 32) + group, row % 8 / 2) + row % 2;
}

}  // namespace layout
}  // namespace pith::cuda
