#pragma once
// A row of CSR back from its atoms, a channel at a time; atoms come from L2. Cost: s multiply-adds
// a number.

#include "kernels/cuda/turn.cuh"
#include "methods/csr/csr_cuda.h"

namespace pith::cuda {

struct CsrSide {
  const __half* atoms = nullptr;  // [G or 1, N, d]
  bool common = false;            ///< one dictionary for all heads
  int count = 0, dim = 0, chunks = 1, pairs = 0;
  bool keys = false;
  const double* turns = nullptr;   // [D/2] or null
  const int* positions = nullptr;  // [G, block_stride, 32] of rows with one of their own, or null

  static CsrSide of(const CsrCoding& coding, const CsrAtoms& atoms, bool keys, int dim,
                    const void* side) {
    CsrSide of;
    of.atoms = static_cast<const __half*>(atoms.rows);
    of.common = atoms.common;
    of.count = atoms.count;
    of.dim = dim;
    of.chunks = coding.chunks(keys);
    of.pairs = coding.pairs;
    of.keys = keys;
    if (keys) of.turns = coding.turns;
    if (keys && coding.positions) of.positions = static_cast<const int*>(side);
    return of;
  }

  /// Channel `channel` of a row of the block that begins at `codes`.
  __device__ float built(const uint32_t* codes, const __half* of_head, int row, int channel) const {
    const int d = dim / chunks, of_chunk = pairs / chunks;
    float x = 0;
    for (int k = 0; k < of_chunk; ++k) {
      const uint32_t word = codes[csr_word(keys, pairs, row, channel / d * of_chunk + k)];
      const float c = __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
      x += c * __half2float(of_head[static_cast<size_t>(word & 0xffff) / 16 * d + channel % d]);
    }
    return x;
  }
  /// Channels `channel` and channel + D/2 of a row of block `block` [of all heads' blocks] of head
  /// `head`, keys turned to their positions. `position`: of the row where rows have none.
  __device__ float2 pair(const uint32_t* codes, int head, size_t block, int row, int channel,
                         int64_t position) const {
    const __half* of_head =
        atoms + (common ? 0 : static_cast<size_t>(head) * count * (dim / chunks));
    const uint32_t* words = codes + block * kBlockRows * pairs;
    const float a = built(words, of_head, row, channel);
    const float b = built(words, of_head, row, channel + dim / 2);
    if (!turns) return {a, b};
    if (positions) position = positions[block * kBlockRows + row];
    const float2 angle = turn_at(turns[channel], position);
    return {a * angle.x - b * angle.y, b * angle.x + a * angle.y};
  }
};

}  // namespace pith::cuda
