#include "kernels/cuda/matvec.h"

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/matvec_mma.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kBatch = 8;  // 16-byte pieces that a lane asks for at once
constexpr int kBlocksPerProcessor = 2;

/// Sum of 16 bytes of weights times activations.
template <class W>
__device__ inline float dot_piece(const uint4& w, const float* x) {
  float sum = 0;
  if constexpr (sizeof(W) == 4) {
    const float4 a = *reinterpret_cast<const float4*>(x);
    sum = __uint_as_float(w.x) * a.x + __uint_as_float(w.y) * a.y + __uint_as_float(w.z) * a.z +
          __uint_as_float(w.w) * a.w;
  } else {
    const float4 a = reinterpret_cast<const float4*>(x)[0];
    const float4 b = reinterpret_cast<const float4*>(x)[1];
    const auto both = [](uint32_t pair) {
      if constexpr (std::is_same_v<W, __half>) {
        return __half22float2(*reinterpret_cast<const __half2*>(&pair));
      } else {
        return float2{__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
      }
    };
    const float2 p = both(w.x), q = both(w.y), r = both(w.z), s = both(w.w);
    sum = p.x * a.x + p.y * a.y + q.x * a.z + q.y * a.w;
    sum += r.x * b.x + r.y * b.y + s.x * b.z + s.y * b.w;
  }
  return sum;
}

/// A warp's way through its rows, kBatch pieces per lane at a time. A unit is one result: one row,
/// or two if gated.
template <int kParts>
struct Walk {
  size_t unit, part, first;  // which piece comes first

  __device__ Walk next(size_t pieces, size_t warps) const {
    Walk n{unit, part, first + kBatch * kWarp};
    if (n.first < pieces) return n;
    n.first = 0;
    if (++n.part < kParts) return n;
    n.part = 0;
    n.unit += warps;
    return n;
  }
};

/// The activations into shared memory, normalised if asked for.
__device__ inline void load_input(float* shared, float* sums, const MatvecCall& p) {
  float squares = 0;
  for (size_t i = threadIdx.x; i < p.w.in; i += kThreads) {
    const float x = p.x[i];
    shared[i] = x;
    squares += x * x;
  }
  if (p.norm) {
    squares = block_sum<kThreads>(squares, sums);
    const float factor = 1 / sqrtf(squares / static_cast<float>(p.w.in) + p.eps);
    for (size_t i = threadIdx.x; i < p.w.in; i += kThreads) shared[i] *= factor * p.norm[i];
  }
  __syncthreads();
}

/// Bytes: the matrix once. Weights are asked for one batch ahead, the first before the kernel
/// ahead has ended.
template <class W, MatvecEnd kEnd>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    matvec_kernel(const __grid_constant__ MatvecCall p) {
  constexpr int kPerPiece = 16 / sizeof(W), kParts = parts_of(kEnd);
  auto* x = launched_shared<float>();  // [in]
  __shared__ float sums[kWarps];
  const int lane = threadIdx.x % kWarp;
  const size_t warps = static_cast<size_t>(gridDim.x) * kWarps;
  const size_t pieces = p.w.in / kPerPiece, units = p.w.out / kParts;
  const auto load = [&](uint4(&to)[kBatch], const Walk<kParts>& at) {
    const auto* row = static_cast<const uint4*>(p.w.data) + (at.part * units + at.unit) * pieces;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const size_t piece = at.first + i * kWarp + lane;
      to[i] = piece < pieces ? load_once(row + piece) : uint4{0, 0, 0, 0};
    }
  };

  Walk<kParts> at{static_cast<size_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp, 0, 0};
  uint4 now[kBatch], ahead[kBatch];
  if (at.unit < units) load(now, at);
  let_successor_start();
  wait_for_predecessor();
  load_input(x, sums, p);

  float sum = 0, gate = 0;
  while (at.unit < units) {
    const Walk<kParts> then = at.next(pieces, warps);
    if (then.unit < units) load(ahead, then);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const size_t piece = at.first + i * kWarp + lane;
      if (piece < pieces) sum += dot_piece<W>(now[i], x + piece * kPerPiece);
    }
    if (then.first == 0) {  // the row's end
#pragma unroll
      for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
      if (p.bias) sum += p.bias[at.part * units + at.unit];
      if constexpr (kParts == 2) {
        if (at.part == 0) {
          gate = sum;
        } else if (lane == 0) {
          p.y[at.unit] = (kEnd == MatvecEnd::kGate ? silu(gate) : gelu(gate)) * sum;
        }
      } else if (lane == 0) {
        p.y[at.unit] = kEnd == MatvecEnd::kAdd ? p.y[at.unit] + sum : sum;
      }
      sum = 0;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) now[i] = ahead[i];
    at = then;
  }
}

template <class W, MatvecEnd kEnd>
void launch_as(const MatvecCall& call, cudaStream_t stream) {
  const size_t bytes = call.w.in * sizeof(float);
  const size_t units = call.w.out / parts_of(kEnd);
  const size_t most = static_cast<size_t>(device_info().multiprocessors) * kBlocksPerProcessor;
  const auto blocks = static_cast<unsigned>(std::min(most, (units + kWarps - 1) / kWarps));
  launch_early(matvec_kernel<W, kEnd>, {blocks, kThreads, bytes}, call, stream, "matvec");
}

void matvec_alone(const MatvecCall& call, cudaStream_t stream) {
  with_type(call.w.dtype, [&](auto zero) {
    using W = decltype(zero);
    with_end(call.end, [&]<MatvecEnd kEnd> { launch_as<W, kEnd>(call, stream); });
  });
}

}  // namespace

void matvec(const MatvecCall& call, cudaStream_t stream) {
  call.check();
  const bool together = call.together && call.w.dtype != DType::kF32;
  const size_t most = together ? kMostAtOnce : 1;
  MatvecCall some = call;
  for (size_t first = 0; first < call.tokens; first += most) {
    some.y = call.y + first * call.ld;
    some.x = call.x + first * call.w.in;
    some.tokens = std::min(most, call.tokens - first);
    together ? matvec_mma(some, stream) : matvec_alone(some, stream);
  }
}

}  // namespace pith::cuda
