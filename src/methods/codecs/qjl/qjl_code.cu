// QJL coding on the GPU: a warp per block of 32 rows. The projection stays in shared memory; the
// product runs on tensor cores, whose accumulators hold exactly the signs that a lane must store;
// packed as +-1 they are A of the next product, with the outlying channels' columns of S.
// Cost: 2 (m + 16) D operations per row; 2 D bytes read, m / 8 + 18.5 written.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/mma.cuh"
#include "methods/codecs/qjl/qjl_tiles.cuh"

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

/// The `count` channels of largest norm over the 32 rows, ties to the lower channel, then zeros;
/// the same in every lane. Returns this lane's channels among them, bit 8 j + i for channel 32 j +
/// 8 c + i.
template <class T, int D>
__device__ inline uint32_t find_outliers(int (&outliers)[kQjlOutliers], const Rows<D>& rows,
                                         int count) {
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
  // Sum over the lanes of a column while each keeps half: lane r ends with kMine / 8 channels. One
  // instance a step: a loop over steps was not unrolled, and the sums went to memory.
  const auto halve = [&]<int kHalf>(int mask) {
    const bool upper = lane & mask;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float sent = upper ? sums[i] : sums[i + kHalf];
      const float kept = upper ? sums[i + kHalf] : sums[i];
      sums[i] = kept + __shfl_xor_sync(~0u, sent, mask);
    }
  };
  halve.template operator()<kMine / 2>(16);
  halve.template operator()<kMine / 4>(8);
  halve.template operator()<kMine / 8>(4);
  constexpr int kLeft = kMine / 8;
  uint32_t mine = 0;
#pragma unroll
  for (int k = 0; k < kQjlOutliers; ++k) {
    outliers[k] = 0;
    if (k >= count) continue;
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

/// A pair of +-1 by the signs of two sums.
template <class T>
__device__ inline uint32_t sign_pair(float low, float high) {
  const uint32_t signs = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
  return (signs & 0x80008000u) | pack<T>(1, 1);
}
/// t += signs of the sums of two n-tiles, 16 rows of S, times b.
template <class T>
__device__ inline void add_signs(float (&t)[2][4], const float (&sum)[2][2][4], uint32_t b0,
                                 uint32_t b1) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const auto pair = [&](int high, int row) {
      return sign_pair<T>(sum[high][m][2 * row], sum[high][m][2 * row + 1]);
    };
    mma<T>(t[m], pair(0, 0), pair(0, 1), pair(1, 0), pair(1, 1), b0, b1);
  }
}

template <class T, int D, int kSketch>
struct Coder {
  static constexpr int kStride = D + 32;  // numbers; rows of S fall on different banks
  static constexpr int kWords = kSketch / 32, kSteps = kSketch / 16;
  static constexpr int kBytes = kWords * 128 + kQjlApartBytes;

  static size_t shared_bytes(int m_out) {
    return static_cast<size_t>(kSketch + m_out) * kStride * sizeof(T);
  }

  /// Signs of an n-tile's sums, columns 2c and 2c + 1, go to bits s and 16 + s.
  static __device__ uint32_t signs(float even, float odd, int s) {
    return ((~__float_as_uint(even) >> 31) << s) | ((~__float_as_uint(odd) >> 31) << (16 + s));
  }
  /// Two numbers of a column of S.
  static __device__ uint32_t column_pair(const T* s) {
    return static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(s)) |
           static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(s + kStride)) << 16;
  }

  /// Bits of the rows without their outlying channels, and t = S^T sign(S k) at those: rows and
  /// columns as in C; `apart` is the channel of column lane / 4.
  static __device__ void inliers(uint32_t (&words)[kWords], float (&t)[2][4], const Rows<D>& rows,
                                 const T* s_in, int apart) {
    constexpr int kRun = kSteps < 16 ? kSteps : 16;  // steps whose bits share words
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
#pragma unroll
    for (int part = 0; part < kSteps / kRun; ++part) {
#pragma unroll(kSketch <= 256 ? 2 : 1)
      for (int s = 0; s < kRun; ++s) {
        float sum[2][2][4] = {};
        const T* first = s_in + 16 * (kRun * part + s) * kStride;
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          const T* row = first + (8 * high + r) * kStride + 8 * c;
#pragma unroll
          for (int j = 0; j < D / 32; ++j) {
            const uint4 b = *reinterpret_cast<const uint4*>(row + 32 * j);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              const uint4 &x = rows.x[2 * m][j], &y = rows.x[2 * m + 1][j];
              mma<T>(sum[high][m], x.x, y.x, x.y, y.y, b.x, b.y);
              mma<T>(sum[high][m], x.z, y.z, x.w, y.w, b.z, b.w);
            }
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            // Fragment pairs run over all steps of one half before the other.
            constexpr bool kShort = kSteps < 16;
            const int word = kShort ? i : (i * 2 + high) * (kSteps / 16) + part;
            words[word] |= signs(sum[high][i / 2][i % 2 * 2], sum[high][i / 2][i % 2 * 2 + 1],
                                 kShort ? 8 * high + s : s);
          }
        }
        const T* column = first + 2 * c * kStride + apart;
        add_signs<T>(t, sum, column_pair(column), column_pair(column + 8 * kStride));
      }
    }
  }

  /// The same t of the outliers' sketch. `pairs`: of row r + 8 i, the channels 2c and 2c + 1 of the
  /// list, which are `even` and `odd`.
  static __device__ void outliers(float (&t)[2][4], const uint32_t (&pairs)[4], int even, int odd,
                                  const T* s_out, int m_out) {
    const int r = threadIdx.x % kWarp / 4;
#pragma unroll 1
    for (int n = 0; n < m_out / 8; n += 2) {
      float sum[2][2][4] = {};
      uint32_t b[2];
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const T* row = s_out + (8 * (n + high) + r) * kStride;
        b[high] = static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(row + even)) |
                  static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(row + odd)) << 16;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma<T>(sum[high][m], pairs[2 * m], pairs[2 * m + 1], 0, 0, b[high], 0);
        }
      }
      add_signs<T>(t, sum, transpose_tile(b[0]), transpose_tile(b[1]));
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

struct CodeParams {
  CodeJob job;
  QjlProjection s;
  int blocks, all_blocks;  // of a head, of all heads
};

template <class T, int D, int kSketch>
__global__ void __launch_bounds__(kCoderWarps* kWarp, 1)
    code_kernel(const __grid_constant__ CodeParams p) {
  using C = Coder<T, D, kSketch>;
  auto* shared = launched_shared<char>();
  T* s_in = reinterpret_cast<T*>(shared);
  T* s_out = s_in + kSketch * C::kStride;
#pragma unroll 8
  for (int i = threadIdx.x; i < (kSketch + p.s.m_out) * D; i += blockDim.x) {
    s_in[i / D * C::kStride + i % D] = static_cast<T>(p.s.rows[i]);
  }
  __syncthreads();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  for (int b = blockIdx.x * kCoderWarps + warp; b < p.all_blocks; b += gridDim.x * kCoderWarps) {
    const int head = b / p.blocks, block = b % p.blocks;
    const T* from = static_cast<const T*>(p.job.x) + head * p.job.head_stride +
                    static_cast<size_t>(block) * 32 * D;
    Rows<D> rows;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < D / 32; ++j) {
        rows.x[i][j] = *reinterpret_cast<const uint4*>(from + (r + 8 * i) * D + 8 * c + 32 * j);
      }
    }
    int list[kQjlOutliers];
    const uint32_t mine = find_outliers<T, D>(list, rows, p.s.outliers);
    int even = 0, odd = 0, apart = 0;
#pragma unroll
    for (int k = 0; k < kQjlOutliers; ++k) {
      if (k == 2 * c) even = list[k];
      if (k == 2 * c + 1) odd = list[k];
      if (k == r) apart = list[k];
    }
    const uint32_t known = (2 * c < p.s.outliers ? 0xffffu : 0) |
                           (2 * c + 1 < p.s.outliers ? 0xffff0000u : 0);  // of the pair of channels
    uint32_t pairs[4];
    float norms[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto* row = reinterpret_cast<const uint16_t*>(from + (r + 8 * i) * D);
      pairs[i] = (static_cast<uint32_t>(row[even]) | static_cast<uint32_t>(row[odd]) << 16) & known;
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
        const float n = sum_over_columns(norms[side_of][i]);
        norms[side_of][i] =
            sqrtf(n) * p.s.unbias / static_cast<float>(side_of ? p.s.m_out : kSketch);
      }
    }
    const size_t place = head * p.job.block_stride + block;
    char* codes = static_cast<char*>(p.job.codes) + place * C::kBytes;
    uint32_t words[C::kWords];
    float t_in[2][4] = {}, t_out[2][4] = {};
    C::inliers(words, t_in, rows, s_in, apart);
    C::store(codes, words);
    C::outliers(t_out, pairs, even, odd, s_out, p.s.m_out);
    uint32_t packed[2], numbers[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) packed[i] = pack<__half>(norms[0][2 * i], norms[0][2 * i + 1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // The inliers' norm as it will be read, so that what it multiplies cancels.
      const float2 in = __half22float2(*reinterpret_cast<const __half2*>(&packed[i / 2]));
      const float norm = i % 2 ? in.y : in.x;
      const auto apart_number = [&](int j) {
        return norms[1][i] * t_out[i / 2][i % 2 * 2 + j] - norm * t_in[i / 2][i % 2 * 2 + j];
      };
      numbers[i] = pack<__half>(apart_number(0), apart_number(1)) & known;
    }
    reinterpret_cast<uint4*>(codes + C::kWords * 128)[lane] =
        make_uint4(numbers[0], numbers[1], numbers[2], numbers[3]);
    char* side = static_cast<char*>(p.job.side) +
                 place * (p.s.row_lists ? kQjlListsSideBytes : kQjlSideBytes);
    if (c == 0) reinterpret_cast<uint2*>(side)[r] = make_uint2(packed[0], packed[1]);
    if (p.s.row_lists) {
      const uint32_t two = (even | odd << 8) * 0x10001u;
      reinterpret_cast<uint2*>(side + kQjlNormBytes)[lane] = make_uint2(two, two);
    } else if (lane == 1) {
      uint32_t bytes[2] = {0, 0};
#pragma unroll
      for (int k = 0; k < kQjlOutliers; ++k) {
        bytes[k / 4] |= static_cast<uint32_t>(list[k]) << (k % 4 * 8);
      }
      *reinterpret_cast<uint4*>(side + kQjlNormBytes) = make_uint4(bytes[0], bytes[1], 0, 0);
    }
  }
}

}  // namespace

void code_qjl_keys(const QjlProjection& projection, const CodeBatch& batch, const CodeJob& job,
                   cudaStream_t stream) {
  projection.check();
  if (batch.rows == 0) return;
  const int blocks = batch.rows / 32;
  const CodeParams p{job, projection, blocks, blocks * batch.heads};
  with_sketch(projection, batch.dtype, [&]<class T, int D, int kSketch>() {
    const int grid =
        std::min(device_info().multiprocessors, (p.all_blocks + kCoderWarps - 1) / kCoderWarps);
    const size_t bytes = Coder<T, D, kSketch>::shared_bytes(p.s.m_out);
    launch_kernel(code_kernel<T, D, kSketch>, {grid, kCoderWarps * kWarp, bytes}, stream,
                  "QJL coding", p);
  });
}

}  // namespace pith::cuda
