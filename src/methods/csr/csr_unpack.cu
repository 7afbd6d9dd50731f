// CSR rows back to dense ones: one thread block a block of 32 rows, atoms from L2; keys that were
// coded before RoPE are turned to their positions. Reads 4 s bytes a row and writes 2 bytes a
// number; s multiply-adds a number.

#include "kernels/cuda/turn.cuh"
#include "methods/csr/csr_cuda.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256, kRows = 32;

struct UnpackParams {
  const uint32_t* codes;
  size_t block_stride, head_stride;
  const __half* atoms;
  bool common;
  int count, dim, chunks, pairs;
  bool keys;
  const double* turns;  // [D/2] or null
  int64_t position;
};

/// Channel `channel` of a row of a block.
__device__ inline float built(const UnpackParams& p, const uint32_t* codes, const __half* atoms,
                              int row, int channel) {
  const int d = p.dim / p.chunks, of_chunk = p.pairs / p.chunks;
  float x = 0;
  for (int k = 0; k < of_chunk; ++k) {
    const uint32_t word = codes[csr_word(p.keys, p.pairs, row, channel / d * of_chunk + k)];
    const float c = __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
    x += c * __half2float(atoms[static_cast<size_t>(word & 0xffff) / 16 * d + channel % d]);
  }
  return x;
}

/// A thread makes the two channels of a pair.
template <class T>
__global__ void __launch_bounds__(kThreads)
    unpack_kernel(T* out, const __grid_constant__ UnpackParams p) {
  const int d = p.dim / p.chunks, half = p.dim / 2;
  const uint32_t* codes =
      p.codes + (blockIdx.y * p.block_stride + blockIdx.x) * kRows * static_cast<size_t>(p.pairs);
  const __half* atoms = p.atoms + (p.common ? 0 : static_cast<size_t>(blockIdx.y) * p.count * d);
  T* to = out + blockIdx.y * p.head_stride + static_cast<size_t>(blockIdx.x) * kRows * p.dim;
  for (int i = threadIdx.x; i < kRows * half; i += kThreads) {
    const int row = i / half, channel = i % half;
    float a = built(p, codes, atoms, row, channel);
    float b = built(p, codes, atoms, row, channel + half);
    if (p.turns) {
      const float2 angle =
          turn_at(p.turns[channel], p.position + static_cast<int64_t>(blockIdx.x) * kRows + row);
      const float turned = a * angle.x - b * angle.y;
      b = b * angle.x + a * angle.y;
      a = turned;
    }
    to[row * p.dim + channel] = from_float<T>(a);
    to[row * p.dim + channel + half] = from_float<T>(b);
  }
}

}  // namespace

void unpack_csr(const CsrCoding& coding, const CsrAtoms& atoms, bool keys,
                const UnpackRowsCall& call, cudaStream_t stream) {
  coding.check(call.head_dim, atoms, atoms);
  if (call.blocks == 0) return;
  const UnpackParams p{static_cast<const uint32_t*>(call.codes),
                       call.block_stride,
                       call.head_stride,
                       static_cast<const __half*>(atoms.rows),
                       atoms.common,
                       atoms.count,
                       call.head_dim,
                       coding.chunks(keys),
                       coding.pairs,
                       keys,
                       keys ? coding.turns : nullptr,
                       call.position};
  const dim3 grid(call.blocks, call.heads);
  if (call.dtype == DType::kBF16) {
    unpack_kernel<<<grid, kThreads, 0, stream>>>(static_cast<__nv_bfloat16*>(call.out), p);
  } else {
    unpack_kernel<<<grid, kThreads, 0, stream>>>(static_cast<__half*>(call.out), p);
  }
  check(cudaGetLastError(), "unpacking of CSR rows");
}

}  // namespace pith::cuda
