#pragma once
// Rows of f16 or bf16 as they are, in blocks of 32, as keys or values beside another codec's in one
// kernel (GroupedTiles). Pieces of 16 bytes are permuted on their way to shared memory, so that
// lanes that read together find different banks.

#include <type_traits>

#include "attend/cuda/dense_tile.cuh"
#include "attend/cuda/grouped_tiles.cuh"

namespace pith::cuda {

/// Bytes at which piece `at` of a row lies; rows go by their number's lowest bit, or by the next
/// two.
template <int D>
struct RowPieces {
  static constexpr int kRow = D / 8;  // pieces of a row
  static constexpr int kBytes = kBlockRows * D * 2;
  static __device__ int key(int row, int at) { return (row * kRow + (at ^ (row & 1) << 2)) * 16; }
  static __device__ int value(int row, int at) {
    return (row * kRow + (at ^ (row >> 1 & 3) << 1)) * 16;
  }
  template <class Place>
  static __device__ void fetch(char* to, const void* blocks, int tile, const Place& place) {
    const char* from = static_cast<const char*>(blocks) + static_cast<size_t>(tile) * kBytes;
#pragma unroll 4
    for (int i = threadIdx.x % kWarp; i < kBytes / 16; i += kWarp) {
      copy_async(to + place(i / kRow, i % kRow), from + 16 * i);
    }
  }
};

template <class T, int D>
struct RowKeys {
  using Dense = DenseTiles<T, D>;
  using Pieces = RowPieces<D>;
  static constexpr int kCodeBytes = Pieces::kBytes, kSideBytes = 0;
  static constexpr int kQueryBytes = D / 32 * kWarp * 16;  // [D/32][lane] operands

  using Ahead = NothingAhead;
  static __device__ Ahead ask(const void*) { return {}; }

  static __device__ void prepare(char* to, const float* q, int, const void*, Ahead) {  // q [8, D]
    if (threadIdx.x >= kWarp) return;
    const auto query = Dense::prepare(q);
#pragma unroll
    for (int j = 0; j < D / 32; ++j) {
      reinterpret_cast<uint4*>(to)[j * kWarp + threadIdx.x] = make_uint4(
          query.b[2 * j][0], query.b[2 * j][1], query.b[2 * j + 1][0], query.b[2 * j + 1][1]);
    }
  }
  using Query = typename Dense::Query;
  static __device__ Query load_query(const char* shared, const DeviceSpan&) {
    Query out;
#pragma unroll
    for (int j = 0; j < D / 32; ++j) {
      const uint4 x = reinterpret_cast<const uint4*>(shared)[j * kWarp + threadIdx.x % kWarp];
      out.b[2 * j][0] = x.x, out.b[2 * j][1] = x.y;
      out.b[2 * j + 1][0] = x.z, out.b[2 * j + 1][1] = x.w;
    }
    return out;
  }
  static __device__ void fetch_codes(char* to, const void* blocks, int tile) {
    Pieces::fetch(to, blocks, tile, [](int row, int at) { return Pieces::key(row, at); });
  }

  static __device__ void scores(float (&out)[2][4], const char* codes, const char*,
                                const Query& query) {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      typename Dense::Tile tile;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < D / 32; ++j) {
          const int place = Pieces::key(16 * half + 8 * i + r, 4 * j + c);
          tile.k[i][j] = *reinterpret_cast<const uint4*>(codes + place);
        }
      }
      float s[1][4];
      Dense::scores(s, tile, query);
#pragma unroll
      for (int j = 0; j < 4; ++j) out[half][j] = s[0][j];
    }
  }
};

/// Two probabilities as the rows' type.
template <class T>
__device__ inline uint32_t probabilities_as(uint32_t halves) {
  if constexpr (std::is_same_v<T, __half>) return halves;
  const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&halves));
  return pack<T>(x.x, x.y);
}

template <class T, int D>
struct RowValues {
  using Dense = DenseTiles<T, D>;
  using Pieces = RowPieces<D>;
  static constexpr int kCodeBytes = Pieces::kBytes, kSideBytes = 0;
  static constexpr bool kRotated = false;

  static __device__ int channel_of(int t, int u) { return cuda::channel_of(t, u); }
  static __device__ float unit(int, int) { return 1; }
  static __device__ float shift(const float (&)[4], int, int) { return 0; }

  static __device__ void fetch_codes(char* to, const void* blocks, int tile) {
    Pieces::fetch(to, blocks, tile, [](int row, int at) { return Pieces::value(row, at); });
  }
  static __device__ void accumulate(Running<D>& run, const char* codes, const char*,
                                    const uint32_t (&p)[2][2]) {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      typename Dense::Tile tile;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int h = 0; h < D / 64; ++h) {
          const int place = Pieces::value(16 * half + 2 * c + i % 2 + i / 2 * 8, 8 * h + r);
          tile.v[i][h] = *reinterpret_cast<const uint4*>(codes + place);
        }
      }
      const uint32_t probabilities[1][2] = {
          {probabilities_as<T>(p[half][0]), probabilities_as<T>(p[half][1])}};
      Dense::accumulate(run, tile, probabilities);
    }
  }
};

}  // namespace pith::cuda
