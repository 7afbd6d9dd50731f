// CSR rows back to dense ones: one thread block a block of 32 rows, keys that were coded before
// RoPE turned to their positions. Reads 4 s bytes a row and writes 2 bytes a number.

#include "methods/csr/csr_rows.cuh"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;

struct UnpackParams {
  CsrSide side;
  UnpackRowsCall call;
};

/// A thread makes the two channels of a pair.
template <class T>
__global__ void __launch_bounds__(kThreads) unpack_kernel(const __grid_constant__ UnpackParams p) {
  const int half = p.call.head_dim / 2, first = static_cast<int>(blockIdx.x) * kBlockRows;
  const size_t block = blockIdx.y * p.call.block_stride + blockIdx.x;
  T* to = static_cast<T*>(p.call.out) + blockIdx.y * p.call.head_stride +
          static_cast<size_t>(first) * p.call.head_dim;
  for (int i = threadIdx.x; i < kBlockRows * half; i += kThreads) {
    const int row = i / half, channel = i % half;
    const float2 x = p.side.pair(static_cast<const uint32_t*>(p.call.codes), blockIdx.y, block, row,
                                 channel, p.call.position + first + row);
    to[row * p.call.head_dim + channel] = from_float<T>(x.x);
    to[row * p.call.head_dim + channel + half] = from_float<T>(x.y);
  }
}

}  // namespace

void unpack_csr(const CsrCoding& coding, const CsrAtoms& atoms, bool keys,
                const UnpackRowsCall& call, cudaStream_t stream) {
  coding.check(call.head_dim, atoms, atoms);
  if (call.blocks == 0) return;
  const UnpackParams p{CsrSide::of(coding, atoms, keys, call.head_dim, call.side), call};
  const dim3 grid(call.blocks, call.heads);
  if (call.dtype == DType::kBF16) {
    unpack_kernel<__nv_bfloat16><<<grid, kThreads, 0, stream>>>(p);
  } else {
    unpack_kernel<__half><<<grid, kThreads, 0, stream>>>(p);
  }
  check(cudaGetLastError(), "unpacking of CSR rows");
}

}  // namespace pith::cuda
