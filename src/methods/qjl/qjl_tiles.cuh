#pragma once
// QJL keys as operands of the decode kernel: a sign bit isolated by one AND is a subnormal f16 that
// the tensor cores multiply exactly, so <S q, sign(S k)> = 2 sum over set bits of S q - sum of S q
// costs half an instruction a bit pair. Bytes a row: (m + 128) / 8 + 4.

#include "attend/cuda/grouped_tiles.cuh"
#include "methods/qjl/qjl_cuda.h"

namespace pith::cuda {

inline constexpr int kSketchRaise = 8;  // queries' sketches are raised by 2^8: bits reach down 2^-9

/// One sketch of kSize bits against 32 rows.
template <int kSize>
struct SketchBits {
  using Pairs = CodePairs<1>;
  static constexpr int kSteps = kSize / 16, kWords = kSize / 32, kCodeBytes = kWords * 128;

  // [step][lane] two f16 pairs with the bits' units taken out; then the sums of the numbers
  // that the product uses, [query] and before that [16 warps][query] shares of them.
  static constexpr int kQueryBytes = kSteps * kWarp * 8 + 17 * 8 * 4;

  static __device__ void prepare(char* to, const float* sketch, int stride) {  // sketch [8, stride]
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    auto* sums = reinterpret_cast<float*>(to + kSteps * kWarp * 8);
    float sum = 0;
    for (int s = warp; s < kSteps; s += 16) {
      uint32_t pairs[2];
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const float* x = sketch + r * stride + 16 * s + 8 * high + 2 * c;
        const int unit = Pairs::unit_bits(high * kSteps + s);
        const float fold = power_of_two(kSketchRaise - unit);
        pairs[high] = pack<__half>(x[0] * fold, x[1] * fold);
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
      for (int w = 0; w < 16; ++w) total += sums[8 + w * 8 + threadIdx.x];
      sums[threadIdx.x] = total;
    }
  }

  /// out += norms (2 sum of set bits - sum); norms of rows r + 8 i.
  static __device__ void add_scores(float (&out)[2][4], const char* codes, const char* query,
                                    const float (&norms)[4]) {
    const int lane = threadIdx.x % kWarp;
    const float2 sum = reinterpret_cast<const float2*>(query + kSteps * kWarp * 8)[threadIdx.x % 4];
    uint32_t words[kWords];
    read_words(words, codes);
    float part[2][4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint2 q = reinterpret_cast<const uint2*>(query)[s * kWarp + lane];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto reg = [&](int row, int high) {
          return Pairs::take(words, ((half * 2 + row) * 2 + high) * kSteps + s);
        };
        mma<__half>(part[half], reg(0, 0), reg(1, 0), reg(0, 1), reg(1, 1), q.x, q.y);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float signs =
            part[half][j] * power_of_two(25 - kSketchRaise) - (j % 2 ? sum.y : sum.x);
        out[half][j] += norms[half * 2 + j / 2] * signs;
      }
    }
  }
};

template <int D, int kSketch>
struct QjlKeys {
  using Inliers = SketchBits<kSketch>;
  using Outliers = SketchBits<kQjlOutlierSketch>;
  static constexpr int kCodeBytes = Inliers::kCodeBytes + Outliers::kCodeBytes;
  static constexpr int kSideBytes = 128;  // [r][in | out][4] f16 norms, c / m included

  static constexpr int kQueryBytes = Inliers::kQueryBytes + Outliers::kQueryBytes;

  static __device__ void prepare(char* to, const float*, const float* sketch) {
    constexpr int kStride = kSketch + kQjlOutlierSketch;
    Inliers::prepare(to, sketch, kStride);
    Outliers::prepare(to + Inliers::kQueryBytes, sketch + kSketch, kStride);
  }
  static __device__ void scores(float (&s)[2][4], const char* codes, const char* side,
                                const char* query) {
    const uint4 packed = reinterpret_cast<const uint4*>(side)[threadIdx.x % kWarp / 4];
    const uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
    float norms[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pairs[i]));
      norms[i / 2][i % 2 * 2] = two.x;
      norms[i / 2][i % 2 * 2 + 1] = two.y;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] = 0;
    }
    Inliers::add_scores(s, codes, query, norms[0]);
    Outliers::add_scores(s, codes + Inliers::kCodeBytes, query + Inliers::kQueryBytes, norms[1]);
  }
};

}  // namespace pith::cuda
