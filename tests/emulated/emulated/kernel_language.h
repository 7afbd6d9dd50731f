#pragma once
// CUDA C++ as g++ reads it: what nvcc knows by itself, for sources of kernels that are compiled for
// the CPU. Included before all else (-include).

#include <cuda_runtime_api.h>
#include <vector_functions.h>
// The toolkit's own marks, then ours.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#include "emulated/block.h"
#include "emulated/runtime.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ static  // one block runs at a time
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (emulated::current->thread)

inline const uint3& blockIdx = emulated::block_index;
inline const dim3 &blockDim = emulated::block, &gridDim = emulated::grid;
using std::isfinite, std::isnan;

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* shape, void (*kernel)(P...),
                               A&&... arguments) {
  return emulated::launch(
      *shape, [kernel, all = std::tuple<P...>(arguments...)] { std::apply(kernel, all); });
}
template <class... P>
cudaError_t cudaFuncSetAttribute(void (*)(P...), cudaFuncAttribute what, int value) {
  return emulated::allow(what, value);
}

// ---- Meetings of a warp's lanes.

namespace emulated {

template <class T>
struct Passed {
  T given, taken;
  int from;
};
/// Each lane takes what lane `from` gave; its own where that lane is not here.
template <class T>
T pass(uint32_t mask, T x, int from) {
  Passed<T> mine{x, x, from};
  meet(
      mask,
      [](Warp& warp, uint32_t who) {
        for (uint32_t left = who; left; left &= left - 1) {
          auto& to = *static_cast<Passed<T>*>(warp.lane[std::countr_zero(left)]->slot);
          if (to.from < 0 || to.from >= kLanes || !(who >> to.from & 1)) continue;
          to.taken = static_cast<const Passed<T>*>(warp.lane[to.from]->slot)->given;
        }
      },
      &mine);
  return mine.taken;
}

/// All lanes take `F` over what all gave.
template <class T, class F>
T reduce(uint32_t mask, T x) {
  T mine = x;
  meet(
      mask,
      [](Warp& warp, uint32_t who) {
        const auto slot = [&](uint32_t left) {
          return static_cast<T*>(warp.lane[std::countr_zero(left)]->slot);
        };
        T all = *slot(who);
        for (uint32_t left = who & (who - 1); left; left &= left - 1) all = F{}(all, *slot(left));
        for (uint32_t left = who; left; left &= left - 1) *slot(left) = all;
      },
      &mine);
  return mine;
}
struct Largest {
  template <class T>
  T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};
struct Smallest {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

}  // namespace emulated

template <class T>
T __shfl_sync(unsigned mask, T x, int lane, int width = 32) {
  const int own = emulated::current->lane;
  return emulated::pass(mask, x, own / width * width + lane % width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32) {
  const int own = emulated::current->lane, from = own ^ bits;
  return emulated::pass(mask, x, from / width > own / width ? own : from);
}
template <class T>
T __shfl_up_sync(unsigned mask, T x, unsigned n, int width = 32) {
  const int own = emulated::current->lane, in = own % width, by = static_cast<int>(n);
  return emulated::pass(mask, x, in >= by ? own - by : own);
}
template <class T>
T __shfl_down_sync(unsigned mask, T x, unsigned n, int width = 32) {
  const int own = emulated::current->lane, in = own % width, by = static_cast<int>(n);
  return emulated::pass(mask, x, in + by < width ? own + by : own);
}
inline unsigned __ballot_sync(unsigned mask, int yes) {
  return emulated::reduce<unsigned, std::bit_or<>>(mask, yes ? 1u << emulated::current->lane : 0u);
}
inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, !yes) == 0; }
template <class T>
T __reduce_max_sync(unsigned mask, T x) {
  return emulated::reduce<T, emulated::Largest>(mask, x);
}
template <class T>
T __reduce_min_sync(unsigned mask, T x) {
  return emulated::reduce<T, emulated::Smallest>(mask, x);
}
template <class T>
T __reduce_add_sync(unsigned mask, T x) {
  return emulated::reduce<T, std::plus<>>(mask, x);
}
inline void __syncwarp(unsigned mask = ~0u) {
  emulated::meet(
      mask, [](emulated::Warp&, uint32_t) {}, nullptr);
}
inline void __syncthreads() { emulated::barrier(0); }
inline int __syncthreads_count(int yes) { return emulated::barrier(yes != 0); }
inline int __syncthreads_or(int yes) { return emulated::barrier(yes != 0) > 0; }

// ---- Memory. One thread runs at a time: what is atomic on a card is so here by itself.

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldcv(const T* p) {
  return *p;
}
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> x) {
  return std::exchange(*p, *p + x);
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> x) {
  return std::exchange(*p, *p > x ? *p : x);
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> x) {
  return std::exchange(*p, *p | x);
}
inline void __threadfence() {}

// ---- Numbers.

inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) {
  volatile float product = a * b;  // not contracted into a sum
  return product;
}
inline float __fadd_rn(float a, float b) {
  volatile float sum = a + b;
  return sum;
}
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline void sincospif(float x, float* sine, float* cosine) {
  const double angle = 3.14159265358979323846 * std::fmod(x, 2.0);
  *sine = static_cast<float>(std::sin(angle));
  *cosine = static_cast<float>(std::cos(angle));
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(unsigned x) { return std::countl_zero(x); }
inline int __ffs(unsigned x) { return x ? std::countr_zero(x) + 1 : 0; }
inline int __ffsll(unsigned long long x) { return x ? std::countr_zero(x) + 1 : 0; }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (by & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned to = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned n = which >> 4 * i & 15;
    unsigned byte = bytes >> 8 * (n & 7) & 255;
    if (n & 8) byte = byte & 128 ? 255 : 0;
    to |= byte << 8 * i;
  }
  return to;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i)
    c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  const float2 x = __half22float2(a), y = __half22float2(b), z = __half22float2(c);
  return __floats2half2_rn(std::fma(x.x, y.x, z.x), std::fma(x.y, y.y, z.y));
}
inline size_t __cvta_generic_to_shared(const void* p) { return emulated::shared_address(p); }

#define PITH_EMULATED_ORDER(T)                        \
  constexpr T min(T a, T b) { return b < a ? b : a; } \
  constexpr T max(T a, T b) { return a < b ? b : a; }
PITH_EMULATED_ORDER(int)
PITH_EMULATED_ORDER(unsigned)
PITH_EMULATED_ORDER(long)
PITH_EMULATED_ORDER(unsigned long)
PITH_EMULATED_ORDER(long long)
PITH_EMULATED_ORDER(unsigned long long)
PITH_EMULATED_ORDER(float)
PITH_EMULATED_ORDER(double)
#undef PITH_EMULATED_ORDER
constexpr unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
constexpr unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
constexpr unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
constexpr unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
