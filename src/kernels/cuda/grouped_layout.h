#pragma once
// Where codes, scales and minima lie in a device block of 32 rows (see grouped_tiles.cuh). One
// definition for the coders, the tests and whoever moves rows between blocks.

#ifdef __CUDACC__
#define PITH_BOTH_SIDES __host__ __device__
#else
#define PITH_BOTH_SIDES
#endif

namespace pith::cuda {

inline constexpr int kBlockRows = 32;

/// The bit where a code begins: in 32-bit word `word` of the block, at `bit`.
struct CodePlace {
  int word, bit;
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
