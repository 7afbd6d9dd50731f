#pragma once
// QJL keys as operands of the decode kernel: a sign bit isolated by one AND is a subnormal f16 that
// the tensor cores multiply exactly, so <S q, sign(S k)> = 2 sum over set bits of S q - sum of S q
// costs half an instruction a bit pair. The numbers of the outlying channels (see qjl_cuda.h) meet
// the queries' in one product more. Bytes a row: m / 8 + 18.5.

#include "attend/cuda/dense_tile.cuh"
#include "attend/cuda/grouped_tiles.cuh"
#include "methods/qjl/qjl_cuda.h"

namespace pith::cuda {

inline constexpr int kSketchRaise = 8;  // queries' sketches are raised by 2^8: bits reach down 2^-9

/// c += a b of eight k alone.
__device__ inline void mma_k8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

template <int D, int kSketch>
struct QjlKeys {
  using Pairs = CodePairs<1>;
  static constexpr int kSteps = kSketch / 16, kWords = kSketch / 32, kBitBytes = kWords * 128;
  static constexpr int kCodeBytes = kBitBytes + kQjlApartBytes, kSideBytes = kQjlSideBytes;

  // [step][lane] two f16 pairs of S q with the bits' units taken out; the sums of the numbers that
  // the product uses, [query] and then [16 warps][query] shares of them; the queries as f16.
  static constexpr int kSumsAt = kSteps * kWarp * 8;
  static constexpr int kNumbersAt = kSumsAt + 17 * 8 * 4;
  static constexpr int kStride = D + 8;
  static constexpr int kQueryBytes = kNumbersAt + 8 * kStride * 2;

  /// The sketch of q [8, D] by the projection's f16 rows [m, D], one step of 16 rows a warp.
  static __device__ void prepare(char* to, const float* q, const void* projection) {
    using Dense = DenseTiles<__half, D>;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    auto* sums = reinterpret_cast<float*>(to + kSumsAt);
    auto* numbers = reinterpret_cast<__half*>(to + kNumbersAt);
    for (int i = threadIdx.x; i < 8 * D; i += blockDim.x) {
      numbers[i / D * kStride + i % D] = __float2half_rn(q[i]);
    }
    DeviceSpan span;
    span.keys = projection;
    span.rows = kSketch;
    span.row_stride = D;
    const auto query = Dense::prepare(q);
    float sum = 0;
    for (int s = warp; s < kSteps; s += blockDim.x / kWarp) {
      typename Dense::Tile tile;
      Dense::load_keys(tile, span, s);
      float x[1][4];
      Dense::scores(x, tile, query);
      uint32_t pairs[2];
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const int unit = Pairs::unit_bits(high * kSteps + s);
        const float fold = power_of_two(kSketchRaise - unit);
        pairs[high] = transpose_tile(pack<__half>(x[0][2 * high] * fold, x[0][2 * high + 1] * fold));
        const float2 back = __half22float2(*reinterpret_cast<const __half2*>(&pairs[high]));
        sum += (back.x + back.y) * power_of_two(unit - kSketchRaise);
      }
      reinterpret_cast<uint2*>(to)[s * kWarp + lane] = make_uint2(pairs[0], pairs[1]);
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (c == 0) sums[8 + warp * 8 + r] = sum;
    __syncthreads();
    if (threadIdx.x < 8) {  // in a fixed order
      float total = 0;
      for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
        total += sums[8 + w * 8 + threadIdx.x];
      }
      sums[threadIdx.x] = total;
    }
  }

  /// What outlying channels add: their numbers times the queries'.
  static __device__ void add_apart(float (&out)[2][4], const char* apart, const char* channels,
                                   const char* query) {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    const uint4 numbers = reinterpret_cast<const uint4*>(apart)[lane];
    const uint32_t two = reinterpret_cast<const uint16_t*>(channels)[c];
    const auto* q = reinterpret_cast<const uint16_t*>(query + kNumbersAt) + r * kStride;
    const uint32_t b = q[two & 0xff] | static_cast<uint32_t>(q[two >> 8]) << 16;
    mma_k8(out[0], numbers.x, numbers.y, b);
    mma_k8(out[1], numbers.z, numbers.w, b);
  }

  static __device__ void scores(float (&s)[2][4], const char* codes, const char* side,
                                const char* query) {
    const int lane = threadIdx.x % kWarp;
    const float2 sum = reinterpret_cast<const float2*>(query + kSumsAt)[lane % 4];
    uint32_t words[kWords];
    read_words(words, codes);
    float part[2][4] = {};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const uint2 q = reinterpret_cast<const uint2*>(query)[i * kWarp + lane];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto reg = [&](int row, int high) {
          return Pairs::take(words, ((half * 2 + row) * 2 + high) * kSteps + i);
        };
        mma<__half>(part[half], reg(0, 0), reg(1, 0), reg(0, 1), reg(1, 1), q.x, q.y);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[half][j] = 0;
    }
    add_apart(s, codes + kBitBytes, side + 64, query);
    const uint2 packed = reinterpret_cast<const uint2*>(side)[lane / 4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pair = half ? packed.y : packed.x;
      const float2 norms = __half22float2(*reinterpret_cast<const __half2*>(&pair));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float signs =
            part[half][j] * power_of_two(25 - kSketchRaise) - (j % 2 ? sum.y : sum.x);
        s[half][j] += (j / 2 ? norms.y : norms.x) * signs;
      }
    }
  }
};

}  // namespace pith::cuda
