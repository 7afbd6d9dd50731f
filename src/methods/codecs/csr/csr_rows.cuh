#pragma once
// A row of CSR back from its atoms, eight channels at a time; atoms come from L2. Cost: s
// multiply-adds per number.

#include "kernels/cuda/turn.cuh"
#include "methods/codecs/csr/csr_pairs.cuh"

namespace pith::cuda {

struct CsrSide {
  static constexpr int kPiece = 8;  // channels that a thread builds together

  CsrAtoms atoms;
  int dim = 0, chunks = 1;
  CsrLayout layout;
  const double* turns = nullptr;  // [D/2] or null

  static CsrSide of(const CsrCoding& coding, const CsrAtoms& atoms, bool keys, int dim) {
    return {atoms, dim, coding.chunks(keys), coding.layout(keys), keys ? coding.turns : nullptr};
  }

  /// Channels first, ..., of a row of the block that begins at `block`; first is a multiple of 8,
  /// which are all of one chunk.
  __device__ void build(float (&x)[kPiece], const void* block, const __half* of_head, int row,
                        int first) const {
    const int d = dim / chunks, of_chunk = layout.pairs / chunks;
#pragma unroll
    for (float& number : x) number = 0;
#pragma unroll 4
    for (int k = 0; k < of_chunk; ++k) {
      const uint32_t word = word_of_pair(layout, block, row, first / d * of_chunk + k);
      const float c = coefficient_of(word);
      const uint4 piece = *reinterpret_cast<const uint4*>(
          of_head + static_cast<size_t>(word & 0xffff) / 16 * d + first % d);
      const auto* atom = reinterpret_cast<const __half*>(&piece);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) x[i] += c * __half2float(atom[i]);
    }
  }
  /// The same of channels first, ... and of those D/2 behind them, of head `head`; keys before RoPE
  /// are rotated to `position`.
  __device__ void build_halves(float (&a)[kPiece], float (&b)[kPiece], const void* block, int head,
                               int row, int first, int64_t position) const {
    const __half* of_head = atoms_of(atoms, head, dim / chunks);
    build(a, block, of_head, row, first);
    build(b, block, of_head, row, first + dim / 2);
    if (!turns) return;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      const float2 angle = turn_at(turns[first + i], position);
      const float x = a[i];
      a[i] = x * angle.x - b[i] * angle.y;
      b[i] = x * angle.y + b[i] * angle.x;
    }
  }
};

}  // namespace pith::cuda
