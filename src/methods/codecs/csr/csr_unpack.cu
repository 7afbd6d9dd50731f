// CSR rows back to dense ones: one thread block per block of 32 rows, keys that were coded before
// RoPE rotated to their positions. Reads a row's codes and writes 2 bytes per number.

#include "kernels/cuda/launch.cuh"
#include "methods/codecs/csr/csr_rows.cuh"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;

struct UnpackParams {
  CsrSide side;
  UnpackRowsCall call;
  const int* positions;  // [G, block_stride, 32] of rows that have one of their own, or null
};

/// Eight numbers as they are stored.
template <class T>
__device__ inline void store(T* to, const float (&x)[CsrSide::kPiece]) {
  __align__(16) T numbers[CsrSide::kPiece];
#pragma unroll
  for (int i = 0; i < CsrSide::kPiece; ++i) numbers[i] = from_float<T>(x[i]);
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(numbers);
}

/// A thread makes eight channels of each half of a row.
template <class T>
__global__ void __launch_bounds__(kThreads) unpack_kernel(const __grid_constant__ UnpackParams p) {
  constexpr int kPiece = CsrSide::kPiece;
  const int half = p.call.head_dim / 2, first = static_cast<int>(blockIdx.x) * kBlockRows;
  const size_t block = blockIdx.y * p.call.block_stride + blockIdx.x;
  const char* codes = static_cast<const char*>(p.call.codes) + block * p.side.layout.block_bytes();
  T* to = static_cast<T*>(p.call.out) + blockIdx.y * p.call.head_stride +
          static_cast<size_t>(first) * p.call.head_dim;
  for (int i = threadIdx.x; i < kBlockRows * half / kPiece; i += kThreads) {
    const int row = i / (half / kPiece), channel = i % (half / kPiece) * kPiece;
    const int64_t position =
        p.positions ? p.positions[block * kBlockRows + row] : p.call.position + first + row;
    float a[kPiece], b[kPiece];
    p.side.build_halves(a, b, codes, blockIdx.y, row, channel, position);
    store(to + row * p.call.head_dim + channel, a);
    store(to + row * p.call.head_dim + channel + half, b);
  }
}

}  // namespace

void unpack_csr(const CsrCoding& coding, const CsrAtoms& atoms, bool keys,
                const UnpackRowsCall& call, cudaStream_t stream) {
  coding.check(call.head_dim, atoms, atoms);
  if (call.blocks == 0) return;
  const UnpackParams p{CsrSide::of(coding, atoms, keys, call.head_dim), call,
                       keys && coding.positions ? static_cast<const int*>(call.side) : nullptr};
  const dim3 grid(call.blocks, call.heads);
  if (call.dtype == DType::kBF16) {
    launch_kernel(unpack_kernel<__nv_bfloat16>, {grid, kThreads}, stream, "unpacking of CSR rows",
                  p);
  } else {
    launch_kernel(unpack_kernel<__half>, {grid, kThreads}, stream, "unpacking of CSR rows", p);
  }
}

}  // namespace pith::cuda
