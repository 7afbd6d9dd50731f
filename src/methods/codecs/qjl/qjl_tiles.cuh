#pragma once
// QJL keys as operands of the decode kernel. <S q, sign(S k)> = 2 sum over set bits of S q - sum of
// S q; the queries' sketches become whole numbers of 10 bits, cut into planes of one bit, and the
// tensor cores count the bits that a row and a plane have in common: a row's bits go in as they
// lie. The rounding adds 0.3% of the estimator's own noise to a score: with x the sketch's numbers
// of deviation |q| and 3 |q| at most, it is c |k| / m sqrt(m) 3 |q| / 511 / sqrt(12), against
// |k| |q| sqrt((pi / 2 - 1) / m).
// The numbers of the outlying channels (see qjl_cuda.h) meet the queries' in one product more, or,
// where each row names its own channels, lane by lane: a lane has two channels of a row.
// Bytes per row: m / 8 + 18.5; 10 products of 256 bits for 16 rows and 8 queries.

#include "attend/cuda/dense_tile.cuh"
#include "attend/cuda/grouped_tiles.cuh"
#include "kernels/cuda/numbers.cuh"
#include "methods/codecs/qjl/qjl_cuda.h"

namespace pith::cuda {

inline constexpr int kPlanes = 10;  // bits of a sketch's numbers, the last for the sign
inline constexpr float kPlaneTop = (1 << (kPlanes - 1)) - 1;

/// f.operator()<T, D, m>() for rows of `dtype`.
template <class F>
void with_sketch(const QjlProjection& projection, DType dtype, const F& f) {
  with_rows_of(dtype, projection.head_dim, [&]<class T, int D>() {
    projection.m == 2 * D ? f.template operator()<T, D, 2 * D>()
                          : f.template operator()<T, D, 4 * D>();
  });
}

template <int D, int kSketch, bool kRowLists = false>
struct QjlKeys {
  using Pairs = CodePairs<1>;
  static constexpr int kSteps = kSketch / 16, kWords = kSketch / 32, kBitBytes = kWords * 128;
  static constexpr int kRowWords = kSketch / 128;  // words of a row that a lane has
  static constexpr int kCodeBytes = kBitBytes + kQjlApartBytes;
  static constexpr int kSideBytes = kRowLists ? kQjlListsSideBytes : kQjlSideBytes;

  // For the block: the queries' planes [kRowWords, kPlanes][lane]; sums of the numbers that they
  // stand for and largest ones, [2][query]; queries as f16 [query][kStride], [channel][query] where
  // rows name their channels; sketches [query][m].
  static constexpr int kPlaneBytes = kRowWords * kPlanes * kWarp * 4;
  static constexpr int kNumbersAt = kPlaneBytes + 2 * 8 * 4;
  static constexpr int kStride = D + 8;
  static constexpr int kSketchAt = kNumbersAt + 8 * kStride * 2;
  static constexpr int kQueryBytes = kSketchAt + 8 * kSketch * 4;

  /// For a warp, in registers.
  struct Query {
    uint32_t planes[kRowWords][kPlanes];
    int sums[2];      // of queries 2c, 2c + 1
    float scales[2];  // of their whole numbers
    const char* shared;
  };

  /// The number of the sketch that bit `bit` of word `word` of a row in lane c stands for.
  static __device__ int sketch_of(int word, int bit, int c) {
    const int n = word * 16 + bit % 16;
    return 16 * (n % kSteps) + 8 * (n / kSteps) + 2 * c + bit / 16;
  }

  /// A warp's rows of the projection, asked for before the queries are there.
  struct Ahead {
    static constexpr int kTiles = kSteps / 8;  // of eight warps
    typename DenseTiles<__half, D>::Tile tiles[kTiles > 2 ? 2 : kTiles];
  };
  static __device__ DeviceSpan rows_of(const void* projection) {
    DeviceSpan span;
    span.keys = projection;
    span.rows = kSketch;
    span.row_stride = D;
    return span;
  }
  static __device__ Ahead ask(const void* projection) {
    Ahead out;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(out.tiles) / sizeof(out.tiles[0])); ++i) {
      DenseTiles<__half, D>::load_keys(out.tiles[i], rows_of(projection),
                                       threadIdx.x / kWarp + i * (blockDim.x / kWarp));
    }
    return out;
  }

  /// The sketches of the first `queries` of q [8, D] by the projection's f16 rows [m, D], cut into
  /// planes; those of the others are 0.
  static __device__ void prepare(char* to, const float* q, int queries, const void* projection,
                                 const Ahead& ahead) {
    using Dense = DenseTiles<__half, D>;
    const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    auto* sums = reinterpret_cast<int*>(to + kPlaneBytes);
    auto* tops = sums + 8;  // bits of numbers that are not negative, which are in their order
    auto* numbers = reinterpret_cast<__half*>(to + kNumbersAt);
    auto* sketch = reinterpret_cast<float*>(to + kSketchAt);
    if (threadIdx.x < 16) sums[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < 8 * D; i += blockDim.x) {
      numbers[kRowLists ? i % D * kDecodeQueries + i / D : i / D * kStride + i % D] =
          __float2half_rn(q[i]);
    }
    for (int i = threadIdx.x; i < kPlaneBytes / 4; i += blockDim.x) {
      reinterpret_cast<uint32_t*>(to)[i] = 0;
    }
    __syncthreads();
    const auto query = Dense::prepare(q);
    float most[2] = {};
    const auto work = [&](const typename Dense::Tile& tile, int s) {
      float x[1][4];
      Dense::scores(x, tile, query);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sketch[(2 * c + j % 2) * kSketch + 16 * s + 8 * (j / 2) + r] = x[0][j];
        most[j % 2] = fmaxf(most[j % 2], fabsf(x[0][j]));
      }
    };
    constexpr int kAsked = sizeof(ahead.tiles) / sizeof(ahead.tiles[0]);
#pragma unroll
    for (int i = 0; i < kAsked; ++i) work(ahead.tiles[i], warp + i * warps);
    for (int s = warp + kAsked * warps; s < kSteps; s += warps) {
      typename Dense::Tile tile;
      Dense::load_keys(tile, rows_of(projection), s);
      work(tile, s);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      most[j] = max_over_rows(most[j]);
      if (r == 0) atomicMax(tops + 2 * c + j, __float_as_int(most[j]));
    }
    __syncthreads();
    // A warp per query, word and lane column; several in flight hide what one waits for.
    const int columns = queries * 4;
#pragma unroll 4
    for (int i = warp; i < columns * kRowWords; i += warps) {
      const int of = i % columns / 4, column = i % 4, word = i / columns;
      const float top = __int_as_float(tops[of]);
      const float x = sketch[of * kSketch + sketch_of(word, lane, column)];
      const int n = top > 0 ? __float2int_rn(x * __fdividef(kPlaneTop, top)) : 0;
      uint32_t mine = 0;
#pragma unroll
      for (int p = 0; p < kPlanes; ++p) {
        const uint32_t plane = __ballot_sync(~0u, n >> p & 1);
        if (lane == p) mine = plane;
      }
      if (lane < kPlanes) {
        reinterpret_cast<uint32_t*>(to)[(word * kPlanes + lane) * kWarp + of * 4 + column] = mine;
      }
      const int sum = __reduce_add_sync(~0u, n);
      if (lane == 0) atomicAdd(sums + of, sum);
    }
  }

  static __device__ Query load_query(const char* shared, const DeviceSpan&) {
    const int lane = threadIdx.x % kWarp, c = lane % 4;
    Query out;
#pragma unroll
    for (int w = 0; w < kRowWords; ++w) {
#pragma unroll
      for (int p = 0; p < kPlanes; ++p) {
        out.planes[w][p] =
            reinterpret_cast<const uint32_t*>(shared)[(w * kPlanes + p) * kWarp + lane];
      }
    }
    const auto* sums = reinterpret_cast<const int*>(shared + kPlaneBytes) + 2 * c;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      out.sums[j] = sums[j];
      out.scales[j] = __int_as_float(sums[8 + j]) * (1.0f / kPlaneTop);
    }
    out.shared = shared;
    return out;
  }

  /// The share of outlying channels: their numbers times the queries'.
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

  /// The same where each row has a list of its own. A lane multiplies its two channels of four rows
  /// by all queries, and the lanes of a row then share out the sums.
  static __device__ void add_apart_by_rows(float (&out)[2][4], const char* apart,
                                           const char* channels, const char* query) {
    const int lane = threadIdx.x % kWarp;
    const uint4 four = reinterpret_cast<const uint4*>(apart)[lane];
    const uint2 lists = reinterpret_cast<const uint2*>(channels)[lane];
    const uint32_t numbers[4] = {four.x, four.y, four.z, four.w};
    const auto* q = reinterpret_cast<const uint4*>(query + kNumbersAt);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 u = __half22float2(*reinterpret_cast<const __half2*>(&numbers[i]));
      const uint32_t two = (i < 2 ? lists.x : lists.y) >> i % 2 * 16;
      const uint4 first = q[two & 0xff], second = q[two >> 8 & 0xff];
      float sums[kDecodeQueries];
#pragma unroll
      for (int n = 0; n < kDecodeQueries / 2; ++n) {
        const float2 x = __half22float2(reinterpret_cast<const __half2*>(&first)[n]);
        const float2 y = __half22float2(reinterpret_cast<const __half2*>(&second)[n]);
        sums[2 * n] = u.x * x.x + u.y * y.x;
        sums[2 * n + 1] = u.x * x.y + u.y * y.y;
      }
#pragma unroll
      for (int left = kDecodeQueries / 2; left > 1; left /= 2) {
        const bool upper = lane & left / 2;
#pragma unroll
        for (int n = 0; n < left; ++n) {
          const float sent = upper ? sums[n] : sums[n + left];
          const float kept = upper ? sums[n + left] : sums[n];
          sums[n] = kept + __shfl_xor_sync(~0u, sent, left / 2);
        }
      }
      out[i / 2][i % 2 * 2] += sums[0];
      out[i / 2][i % 2 * 2 + 1] += sums[1];
    }
  }

  /// Numbers of the sketch at set bits, summed: rows r, r + 8 of 16 and queries 2c, 2c + 1.
  static __device__ void sum_bits(int (&out)[4], const uint32_t* rows, const Query& query) {
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
      int part[4] = {};
      if constexpr (kRowWords == 1) {
        mma_bits_k128(part, rows[0], rows[1], query.planes[0][p]);
      } else {
#pragma unroll
        for (int w = 0; w < kRowWords; w += 2) {
          const uint32_t a[4] = {rows[w], rows[kRowWords + w], rows[w + 1],
                                 rows[kRowWords + w + 1]};
          mma_bits(part, a, query.planes[w][p], query.planes[w + 1][p]);
        }
      }
      // Two's complement: the last plane counts against the others.
      const int weight = p == kPlanes - 1 ? -(1 << p) : 1 << p;
#pragma unroll
      for (int j = 0; j < 4; ++j) out[j] = p == 0 ? part[j] : out[j] + part[j] * weight;
    }
  }

  static __device__ void scores(float (&s)[2][4], const char* codes, const char* side,
                                const Query& query) {
    uint32_t words[kWords];
    read_words(words, codes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[half][j] = 0;
    }
    if constexpr (kRowLists) {
      add_apart_by_rows(s, codes + kBitBytes, side + kQjlNormBytes, query.shared);
    } else {
      add_apart(s, codes + kBitBytes, side + kQjlNormBytes, query.shared);
    }
    const uint2 packed = reinterpret_cast<const uint2*>(side)[threadIdx.x % kWarp / 4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int set[4];
      sum_bits(set, words + half * 2 * kRowWords, query);
      const uint32_t pair = half ? packed.y : packed.x;
      const float2 norms = __half22float2(*reinterpret_cast<const __half2*>(&pair));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto signs = static_cast<float>(2 * set[j] - query.sums[j % 2]);
        s[half][j] += (j / 2 ? norms.y : norms.x) * query.scales[j % 2] * signs;
      }
    }
  }
};

}  // namespace pith::cuda
