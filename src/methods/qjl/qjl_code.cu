// QJL coding on the GPU: a warp a block of 32 rows. The projection stays in shared memory; the
// product runs on tensor cores, whose accumulators hold exactly the signs that a lane must store.
// Cost: 2 (m + 16) D operations a row and side; 2 D bytes read, (m + 128) / 8 + 4 written.

#include "kernels/cuda/mma.cuh"
#include "methods/qjl/qjl_cuda.h"

namespace pith::cuda {
namespace {

inline constexpr int kCoderWarps = 16;

template <class T>
__device__ inline float2 unpack(uint32_t x);
template <>
__device__ inline float2 unpack<__half>(uint32_t x) {
  return __half22float2(*reinterpret_cast<const __half2*>(&x));
}
template <>
__device__ inline float2 unpack<__nv_bfloat16>(uint32_t x) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&x));
}

/// 32 rows as A fragments: row r + 8 i, channels 32 j + 8 c .. + 7.
template <int D>
struct Rows {
  uint4 x[4][D / 32];
};

/// The 8 channels of largest norm over the 32 rows, ties to the lower channel; the same in every
/// lane. Returns this lane's channels among them, bit 8 j + i for channel 32 j + 8 c + i.
template <class T, int D>
__device__ inline uint32_t find_outliers(int (&outliers)[kQjlOutliers], const Rows<D>& rows) {
  const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  constexpr int kMine = D / 4;  // channels a lane holds
  float sums[kMine];
#pragma unroll
  for (int j = 0; j < D / 32; ++j) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float even = 0, odd = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4& x = rows.x[i][j];
        const float2 v = unpack<T>(w == 0 ? x.x : w == 1 ? x.y : w == 2 ? x.z : x.w);
        even += v.x * v.x;
        odd += v.y * v.y;
      }
      sums[8 * j + 2 * w] = even;
      sums[8 * j + 2 * w + 1] = odd;
    }
  }
  // Sum over the lanes of a column while each keeps half: lane r ends with kMine / 8 channels.
#pragma unroll
  for (int step = 0; step < 3; ++step) {
    const int half = kMine >> (step + 1), mask = 16 >> step;
    const bool upper = lane & mask;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? sums[i] : sums[i + half];
      const float kept = upper ? sums[i + half] : sums[i];
      sums[i] = kept + __shfl_xor_sync(~0u, sent, mask);
    }
  }
  constexpr int kLeft = kMine / 8;
  uint32_t mine = 0;
#pragma unroll
  for (int k = 0; k < kQjlOutliers; ++k) {
    float best = -1;
    int at = 0;
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
      if (sums[i] > best) {
        best = sums[i];
        at = i;
      }
    }
    const int e = kLeft * r + at, channel = e / 8 * 32 + 8 * c + e % 8;
    // Sums are not negative, so their bits are in order; NaN's are above all of them.
    const uint32_t bits = __float_as_uint(fmaxf(best, 0));
    const uint32_t most = __reduce_max_sync(~0u, bits);
    const uint32_t winner =
        __reduce_min_sync(~0u, bits == most && best >= 0 ? static_cast<uint32_t>(channel) : ~0u);
    outliers[k] = static_cast<int>(winner);
    if (static_cast<int>(winner) == channel) {
#pragma unroll
      for (int i = 0; i < kLeft; ++i) {
        if (i == at) sums[i] = -1;
      }
    }
    if (static_cast<int>(winner) % 32 / 8 == c) mine |= 1u << (winner / 32 * 8 + winner % 8);
  }
  return mine;
}

template <class T, int D, int kSketch>
struct Coder {
  static constexpr int kStride = D + 32;  // numbers; rows of S fall on different banks
  static constexpr int kInWords = kSketch / 32, kOutWords = kQjlOutlierSketch / 32;
  static constexpr size_t kSharedBytes =
      static_cast<size_t>(kSketch + kQjlOutlierSketch) * kStride * sizeof(T);

  /// Signs of an n-tile's sums, columns 2c and 2c + 1, go to bits s and 16 + s.
  static __device__ uint32_t signs(float even, float odd, int s) {
    return ((~__float_as_uint(even) >> 31) << s) | ((~__float_as_uint(odd) >> 31) << (16 + s));
  }

  static __device__ void inliers(uint32_t (&words)[kInWords], const Rows<D>& rows, const T* s_in) {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < kInWords; ++i) words[i] = 0;
#pragma unroll
    for (int part = 0; part < kSketch / 256; ++part) {
#pragma unroll 1
      for (int s = 0; s < 16; ++s) {
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          // 512 bits: fragment pairs run over all steps of one half before the other.
          const T* row = s_in + (16 * (16 * part + s) + 8 * high + r) * kStride + 8 * c;
          float sum[2][4] = {};
#pragma unroll
          for (int j = 0; j < D / 32; ++j) {
            const uint4 b = *reinterpret_cast<const uint4*>(row + 32 * j);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              const uint4 &x = rows.x[2 * m][j], &y = rows.x[2 * m + 1][j];
              mma<T>(sum[m], x.x, y.x, x.y, y.y, b.x, b.y);
              mma<T>(sum[m], x.z, y.z, x.w, y.w, b.z, b.w);
            }
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            words[(i * 2 + high) * (kSketch / 256) + part] |=
                signs(sum[i / 2][i % 2 * 2], sum[i / 2][i % 2 * 2 + 1], s);
          }
        }
      }
    }
  }

  /// `pairs`: of row r + 8 i, the outlier channels 2c and 2c + 1 of the list.
  static __device__ void outliers(uint32_t (&words)[kOutWords], const uint32_t (&pairs)[4],
                                  int even_channel, int odd_channel, const T* s_out) {
    const int r = threadIdx.x % kWarp / 4;
#pragma unroll
    for (int i = 0; i < kOutWords; ++i) words[i] = 0;
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      const int s = n / 2, high = n % 2;
      const T* row = s_out + (8 * n + r) * kStride;
      const uint32_t b =
          static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(row + even_channel)) |
          static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(row + odd_channel)) << 16;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        float sum[4] = {};
        mma<T>(sum, pairs[2 * m], pairs[2 * m + 1], 0, 0, b, 0);
        // 8 steps a half: both halves' bits share a word.
        words[2 * m] |= signs(sum[0], sum[1], 8 * high + s);
        words[2 * m + 1] |= signs(sum[2], sum[3], 8 * high + s);
      }
    }
  }

  template <int n>
  static __device__ void store(char* block, const uint32_t (&words)[n]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < n / 4; ++i) {
      *reinterpret_cast<uint4*>(block + (i * kWarp + lane) * 16) =
          make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    }
  }
};

template <class T, int D, int kSketch>
__global__ void __launch_bounds__(kCoderWarps* kWarp, 1)
    code_kernel(const T* x, size_t head_stride, size_t row_stride, int blocks, int all_blocks,
                const float* projection, float unbias, char* codes, __half* side) {
  using C = Coder<T, D, kSketch>;
  extern __shared__ __align__(16) char shared[];
  T* s_in = reinterpret_cast<T*>(shared);
  T* s_out = s_in + kSketch * C::kStride;
  for (int i = threadIdx.x; i < (kSketch + kQjlOutlierSketch) * D; i += blockDim.x) {
    s_in[i / D * C::kStride + i % D] = static_cast<T>(projection[i]);
  }
  __syncthreads();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  constexpr size_t kBytes = (C::kInWords + C::kOutWords) * 128;
  for (int b = blockIdx.x * kCoderWarps + warp; b < all_blocks; b += gridDim.x * kCoderWarps) {
    const T* from =
        x + b / blocks * head_stride + static_cast<size_t>(b % blocks) * 32 * row_stride;
    Rows<D> rows;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < D / 32; ++j) {
        rows.x[i][j] =
            *reinterpret_cast<const uint4*>(from + (r + 8 * i) * row_stride + 8 * c + 32 * j);
      }
    }
    int list[kQjlOutliers];
    const uint32_t mine = find_outliers<T, D>(list, rows);
    int even = 0, odd = 0;
#pragma unroll
    for (int k = 0; k < kQjlOutliers; k += 2) {
      if (k / 2 == c) {
        even = list[k];
        odd = list[k + 1];
      }
    }
    uint32_t pairs[4];
    float norms[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto* row = reinterpret_cast<const uint16_t*>(from + (r + 8 * i) * row_stride);
      pairs[i] = static_cast<uint32_t>(row[even]) | static_cast<uint32_t>(row[odd]) << 16;
      const float2 out = unpack<T>(pairs[i]);
      norms[1][i] = out.x * out.x + out.y * out.y;
      norms[0][i] = 0;
    }
#pragma unroll
    for (int j = 0; j < D / 32; ++j) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t two = mine >> (8 * j + 2 * w);
        const uint32_t keep = (two & 1 ? 0 : 0xffffu) | (two & 2 ? 0 : 0xffff0000u);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t& v = w == 0   ? rows.x[i][j].x
                        : w == 1 ? rows.x[i][j].y
                        : w == 2 ? rows.x[i][j].z
                                 : rows.x[i][j].w;
          v &= keep;
          const float2 f = unpack<T>(v);
          norms[0][i] += f.x * f.x + f.y * f.y;
        }
      }
    }
#pragma unroll
    for (int side_of = 0; side_of < 2; ++side_of) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float n = norms[side_of][i];
        n += __shfl_xor_sync(~0u, n, 1);
        n += __shfl_xor_sync(~0u, n, 2);
        norms[side_of][i] = sqrtf(n) * unbias / (side_of ? kQjlOutlierSketch : kSketch);
      }
    }
    char* block = codes + b * kBytes;
    uint32_t in_words[C::kInWords];
    C::inliers(in_words, rows, s_in);
    C::store(block, in_words);
    uint32_t out_words[C::kOutWords];
    C::outliers(out_words, pairs, even, odd, s_out);
    C::store(block + C::kInWords * 128, out_words);
    if (c == 0) {
      uint4 packed = make_uint4(
          pack<__half>(norms[0][0], norms[0][1]), pack<__half>(norms[0][2], norms[0][3]),
          pack<__half>(norms[1][0], norms[1][1]), pack<__half>(norms[1][2], norms[1][3]));
      reinterpret_cast<uint4*>(side)[static_cast<size_t>(b) * 8 + r] = packed;
    }
  }
}

template <class T, int D, int kSketch>
void launch(const QjlProjection& projection, const CodeRowsCall& call, cudaStream_t stream) {
  if (call.rows == 0) return;
  const auto kernel = code_kernel<T, D, kSketch>;
  constexpr size_t kBytes = Coder<T, D, kSketch>::kSharedBytes;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kBytes)),
        "QJL coding's shared memory");
  const int blocks = call.rows / 32, all = blocks * call.heads;
  const int grid = std::min(device_info().multiprocessors, (all + kCoderWarps - 1) / kCoderWarps);
  kernel<<<grid, kCoderWarps * kWarp, kBytes, stream>>>(
      static_cast<const T*>(call.x), call.head_stride, call.row_stride, blocks, all,
      projection.rows, projection.unbias, static_cast<char*>(call.codes),
      static_cast<__half*>(call.side));
  check(cudaGetLastError(), "QJL coding");
}

template <class T, int D>
void launch_for(const QjlProjection& projection, const CodeRowsCall& call, cudaStream_t stream) {
  projection.m == 256 ? launch<T, D, 256>(projection, call, stream)
                      : launch<T, D, 512>(projection, call, stream);
}

template <class T>
void launch_as(const QjlProjection& projection, const CodeRowsCall& call, cudaStream_t stream) {
  call.head_dim == 64 ? launch_for<T, 64>(projection, call, stream)
                      : launch_for<T, 128>(projection, call, stream);
}

}  // namespace

void code_qjl_keys(const QjlProjection& projection, const CodeRowsCall& call, cudaStream_t stream) {
  projection.check();
  call.check();
  call.dtype == DType::kBF16 ? launch_as<__nv_bfloat16>(projection, call, stream)
                             : launch_as<__half>(projection, call, stream);
}

}  // namespace pith::cuda
