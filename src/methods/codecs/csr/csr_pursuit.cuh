#pragma once
// A warp codes one row from its correlations with all N atoms (see pursuit.h): matching pursuit and
// orthogonal matching pursuit. Lanes share the atoms: lane l has numbers 128 i + 4 l + e.

#include "kernels/cuda/mma.cuh"

namespace pith::cuda {

// As on the CPU: an atom that adds less (squared) to the span of those chosen adds rounding.
inline constexpr float kDependent = 1e-5f;

/// The largest |x| over the warp's N numbers.
template <int kMine>
struct Largest {
  int atom;
  float value;  // with its sign

  static __device__ Largest find(const float (&x)[kMine]) {
    float best = 0, mine = 0;
    int at = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (fabsf(x[i]) > best) {
        best = fabsf(x[i]);
        mine = x[i];
        at = i;
      }
    }
    const int lane = threadIdx.x % kWarp, atom = at / 4 * 128 + 4 * lane + at % 4;
    const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(best));
    const bool winner = __float_as_uint(best) == most;
    const int first =
        static_cast<int>(__reduce_min_sync(~0u, winner ? static_cast<uint32_t>(atom) : ~0u));
    return {first, __shfl_sync(~0u, mine, first % 128 / 4)};
  }
};

/// The pairs of one row: lane j has the j-th.
struct Pairs {
  int count = 0;
  int atom = -1;
  float coefficient = 0;

  __device__ uint32_t word() const {
    if (static_cast<int>(threadIdx.x % kWarp) >= count) return 0;
    const auto bits = static_cast<uint32_t>(__half_as_ushort(__float2half_rn(coefficient)));
    return bits << 16 | static_cast<uint32_t>(atom) * 16;
  }
};

template <int kMine>
__device__ inline void read_row(float (&x)[kMine], const float* row, int count) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kMine / 4; ++i) {
    const int n = 128 * i + 4 * lane;
    if (count % 4 == 0) {
      const float4 v = n < count ? *reinterpret_cast<const float4*>(row + n) : float4{0, 0, 0, 0};
      x[4 * i] = v.x;
      x[4 * i + 1] = v.y;
      x[4 * i + 2] = v.z;
      x[4 * i + 3] = v.w;
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[4 * i + e] = n + e < count ? row[n + e] : 0;
    }
  }
}

/// Matching pursuit: an atom chosen again adds to its coefficient.
template <int kMine>
__device__ inline Pairs pursue(float (&left)[kMine], const float* gram, int count, int pairs) {
  const int lane = threadIdx.x % kWarp;
  Pairs chosen;
  for (int step = 0; step < pairs; ++step) {
    const auto best = Largest<kMine>::find(left);
    if (best.value == 0) break;
    const float* row = gram + static_cast<size_t>(best.atom) * count;
    const float coefficient = best.value / row[best.atom];
    const bool again = __any_sync(~0u, lane < chosen.count && chosen.atom == best.atom);
    if (!again && lane == chosen.count) chosen.atom = best.atom;
    if (chosen.atom == best.atom) chosen.coefficient += coefficient;
    if (!again) ++chosen.count;
    if (step + 1 == pairs) break;
    float g[kMine];
    read_row(g, row, count);
#pragma unroll
    for (int i = 0; i < kMine; ++i) left[i] = fmaf(-coefficient, g[i], left[i]);
  }
  return chosen;
}

/// Orthogonal matching pursuit. With u_k the correlations of all atoms with the k-th direction that
/// the chosen atoms add (Gram and Schmidt), the residual's correlations are D^T x - sum z_k u_k,
/// z_k being the best one's share; coefficients come from L^T c = z, L[k][j] = u_j[atom k].
/// `space` [pairs, 32 kMine] is the warp's.
template <int kMine>
__device__ inline Pairs pursue_orthogonal(float (&left)[kMine], const float* gram, int count,
                                          int pairs, float* space) {
  constexpr int kWide = kMine * kWarp;
  const int lane = threadIdx.x % kWarp;
  Pairs chosen;
  float z = 0;  // lane k has z_k
  for (int k = 0; k < pairs; ++k) {
    const auto best = Largest<kMine>::find(left);
    const bool again = __any_sync(~0u, lane < k && chosen.atom == best.atom);
    if (best.value == 0 || again) break;
    float u[kMine];
    read_row(u, gram + static_cast<size_t>(best.atom) * count, count);
    float outside = gram[static_cast<size_t>(best.atom) * count + best.atom];
    for (int j = 0; j < k; ++j) {
      const float along = space[j * kWide + best.atom];
      outside = fmaf(-along, along, outside);
      float before[kMine];
      read_row(before, space + j * kWide, kWide);
#pragma unroll
      for (int i = 0; i < kMine; ++i) u[i] = fmaf(-along, before[i], u[i]);
    }
    if (!(outside > kDependent)) break;
    const float inverse = rsqrtf(outside), share = best.value * inverse;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      u[i] *= inverse;
      left[i] = fmaf(-share, u[i], left[i]);
    }
#pragma unroll
    for (int i = 0; i < kMine / 4; ++i) {
      reinterpret_cast<float4*>(space + k * kWide)[32 * i + lane] =
          make_float4(u[4 * i], u[4 * i + 1], u[4 * i + 2], u[4 * i + 3]);
    }
    if (lane == k) {
      chosen.atom = best.atom;
      z = share;
    }
    chosen.count = k + 1;
    __syncwarp();
  }
  for (int i = chosen.count - 1; i >= 0; --i) {  // lane j keeps what is left of its equation
    const int atom = __shfl_sync(~0u, chosen.atom, i);
    const float c = __shfl_sync(~0u, z, i) / space[i * kWide + atom];
    if (lane == i) chosen.coefficient = c;
    if (lane < i) z = fmaf(-space[lane * kWide + atom], c, z);
  }
  __syncwarp();
  return chosen;
}

}  // namespace pith::cuda
