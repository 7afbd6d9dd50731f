#pragma once
// Pairs of csr codes as words, whichever way a block has them (see csr_cuda.h). A packed pair's
// coefficient is its steps times the row's scale, rounded to f16: the number that the CPU reads.

#include <cuda_fp16.h>

#include "methods/codecs/csr/csr_cuda.h"

namespace pith::cuda {

__device__ inline float coefficient_of(uint32_t word) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
}
/// Where the atoms of KV head `head` begin, whose atoms have `d` numbers.
__device__ inline const __half* atoms_of(const CsrAtoms& atoms, int head, int d) {
  return static_cast<const __half*>(atoms.rows) +
         static_cast<size_t>(atoms.common ? 0 : head) * atoms.count * d;
}

__device__ inline uint32_t word_of_packed(uint32_t code, uint32_t scale, int bits) {
  const float factor = __half2float(__ushort_as_half(static_cast<unsigned short>(scale)));
  const int steps = static_cast<int16_t>(code) >> bits;
  const auto coefficient = __half_as_ushort(__float2half_rn(static_cast<float>(steps) * factor));
  return static_cast<uint32_t>(coefficient) << 16 | (code & ((1u << bits) - 1)) * 16;
}

/// The word of pair j of a row in the block that begins at `block`.
__device__ inline uint32_t word_of_pair(const CsrLayout& layout, const void* block, int row,
                                        int j) {
  const int at = layout.at(row, j);
  if (!layout.packed) return static_cast<const uint32_t*>(block)[at];
  const auto* codes = static_cast<const uint16_t*>(block);
  return word_of_packed(codes[at], codes[32 * layout.pairs + row], layout.bits);
}

/// to [32 pairs] <- the words of a block, in their order: `threads` threads, of which this is
/// `thread`, take four at a time, those of one row or of four.
__device__ inline void read_words(uint32_t* to, const CsrLayout& layout, const void* block,
                                  int thread, int threads) {
  auto* out = reinterpret_cast<uint4*>(to);
  for (int i = thread; i < 8 * layout.pairs; i += threads) {
    if (!layout.packed) {
      out[i] = static_cast<const uint4*>(block)[i];
      continue;
    }
    const auto* codes = static_cast<const uint16_t*>(block);
    const uint16_t* scales = codes + 32 * layout.pairs;
    const uint2 four = static_cast<const uint2*>(block)[i];
    const bool one_row = layout.keys && layout.pairs % 4 == 0;
    const int row = one_row ? i % 32 : 4 * (layout.keys ? i % 8 : i / layout.pairs);
    const int step = one_row ? 0 : 1;
    out[i] = {word_of_packed(four.x & 0xffff, scales[row], layout.bits),
              word_of_packed(four.x >> 16, scales[row + step], layout.bits),
              word_of_packed(four.y & 0xffff, scales[row + 2 * step], layout.bits),
              word_of_packed(four.y >> 16, scales[row + 3 * step], layout.bits)};
  }
}

/// A warp packs a row whose words are words [pairs], pairs at most 32, into a block: as PackedPairs
/// does, number for number.
__device__ inline void pack_row(void* block, const CsrLayout& layout, int row,
                                const uint32_t* words) {
  const int lane = threadIdx.x % 32;
  const uint32_t word = lane < layout.pairs ? words[lane] : 0;
  const auto half = static_cast<unsigned short>(word >> 16);
  const auto most = static_cast<float>((1 << (15 - layout.bits)) - 1);
  const auto top = static_cast<unsigned short>(__reduce_max_sync(~0u, half & 0x7fffu));
  const float exact = __fdiv_rn(__half2float(__ushort_as_half(top)), most);
  unsigned short stored = __half_as_ushort(__float2half_rn(exact));
  if (__half2float(__ushort_as_half(stored)) < exact) ++stored;
  const float scale = __half2float(__ushort_as_half(stored));
  float steps = 0;
  if (scale > 0) {
    const float limit = fminf(most, floorf(__fdiv_rn(65504.0f, scale)));
    steps = roundf(__fdiv_rn(__half2float(__ushort_as_half(half)), scale));
    steps = fminf(fmaxf(steps, -limit), limit);
  }
  auto* codes = static_cast<uint16_t*>(block);
  if (lane < layout.pairs) {
    codes[layout.at(row, lane)] = static_cast<uint16_t>(
        static_cast<uint32_t>(static_cast<int>(steps)) << layout.bits | (word & 0xffff) / 16);
  }
  if (lane == 0) codes[32 * layout.pairs + row] = stored;
}

}  // namespace pith::cuda
