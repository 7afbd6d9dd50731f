#pragma once
// Numbers of the storage types in kernels, and the choice of a kernel by a dtype known at run time.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

#include "pith/dtype.h"
#include "pith/error.h"

namespace pith::cuda {

template <class T>
__device__ inline T from_float(float x) {
  return static_cast<T>(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <class T>
__device__ inline float to_float(T x) {
  return static_cast<float>(x);
}

/// Calls f(T{}) with the type that `dtype` names.
template <class F>
void with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF32: return f(float{});
    case DType::kF16: return f(__half{});
    case DType::kBF16: return f(__nv_bfloat16{});
  }
}

[[noreturn]] inline void refuse_head_dim(int head_dim) {
  throw Error(ErrorCode::kUnsupported,
              "rows of " + std::to_string(head_dim) +
                  " numbers have no kernel of this kind on the GPU; it takes head_dim 64 and 128; "
                  "use --device cpu");
}

/// Calls f.template operator()<T, D>() for rows of 16-bit numbers of type `dtype`, head_dim 64,
/// 128 or, if kMost says so, 256.
template <int kMost = 128, class F>
void with_rows_of(DType dtype, int head_dim, const F& f) {
  const auto with = [&]<int D>() {
    dtype == DType::kBF16 ? f.template operator()<__nv_bfloat16, D>()
                          : f.template operator()<__half, D>();
  };
  if (head_dim == 64) return with.template operator()<64>();
  if (head_dim == 128) return with.template operator()<128>();
  if constexpr (kMost == 256) {
    if (head_dim == 256) return with.template operator()<256>();
  }
  refuse_head_dim(head_dim);
}

/// x / (1 + e^-x); 0 for very negative x.
__device__ inline float silu(float x) { return x / (1 + __expf(-x)); }
/// By its tanh form: x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
__device__ inline float gelu(float x) {
  return x / (1 + __expf(-1.5957691216f * x * (1 + 0.044715f * x * x)));
}

/// The sum of x over the threads of a block of `kThreads`; all threads get it. `shared`: one float
/// a warp.
template <int kThreads>
__device__ inline float block_sum(float x, float* shared) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) sum += shared[w];
  __syncthreads();
  return sum;
}

/// The largest x of the block, likewise; each use of `shared` needs its own, or a barrier before.
template <int kThreads>
__device__ inline float block_max(float x, float* shared) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) x = fmaxf(x, shared[w]);
  return x;
}

}  // namespace pith::cuda
