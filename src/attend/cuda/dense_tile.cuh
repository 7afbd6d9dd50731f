#pragma once
// Dense f16 or bf16 rows, 16 at a time, as operands of the decode kernel. Every lane loads 16
// consecutive bytes; which channel sits at which k of the product is free as long as queries follow
// the same order, and which channel is which row of out^T is put right when results are written.

#include "attend/cuda/running.cuh"
#include "kernels/cuda/mma.cuh"

namespace pith::cuda {

template <class T, int D>
struct DenseTiles {
  static constexpr int kRows = 16;
  using Number = T;

  struct Query {
    uint32_t b[D / 16][2];
  };
  struct Tile {
    uint4 k[2][D / 32];  // row r | r + 8; channels 32 j + 8 c ..
    uint4 v[4][D / 64];  // rows 2c, 2c + 1, 2c + 8, 2c + 9; channels 64 h + 8 r ..
  };

  static __device__ Query prepare(const float* q) {  // q [8, D], scaled
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    Query out;
#pragma unroll
    for (int j = 0; j < D / 32; ++j) {
      const float* x = q + r * D + 32 * j + 8 * c;
      out.b[2 * j][0] = pack<T>(x[0], x[1]);
      out.b[2 * j][1] = pack<T>(x[2], x[3]);
      out.b[2 * j + 1][0] = pack<T>(x[4], x[5]);
      out.b[2 * j + 1][1] = pack<T>(x[6], x[7]);
    }
    return out;
  }

  static __device__ const T* row(const void* rows, const DeviceSpan& span, int tile, int i) {
    const size_t at = min(kRows * tile + i, span.rows - 1);
    return static_cast<const T*>(rows) + at * span.row_stride;
  }
  static __device__ void load_keys(Tile& out, const DeviceSpan& span, int tile) {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const T* from = row(span.keys, span, tile, r + 8 * i) + 8 * c;
#pragma unroll
      for (int j = 0; j < D / 32; ++j) out.k[i][j] = load_once(from + 32 * j);
    }
  }
  static __device__ void load_values(Tile& out, const DeviceSpan& span, int tile) {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const T* from = row(span.values, span, tile, 2 * c + (i & 1) + 8 * (i >> 1)) + 8 * r;
#pragma unroll
      for (int h = 0; h < D / 64; ++h) out.v[i][h] = load_once(from + 64 * h);
    }
  }
  static __device__ Tile load(const DeviceSpan& span, int tile) {
    Tile out;
    load_keys(out, span, tile);
    load_values(out, span, tile);
    return out;
  }

  static __device__ void scores(float (&s)[1][4], const Tile& tile, const Query& q) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[0][j] = 0;
#pragma unroll
    for (int j = 0; j < D / 32; ++j) {
      const uint4 &x = tile.k[0][j], &y = tile.k[1][j];
      mma<T>(s[0], x.x, y.x, x.y, y.y, q.b[2 * j][0], q.b[2 * j][1]);
      mma<T>(s[0], x.z, y.z, x.w, y.w, q.b[2 * j + 1][0], q.b[2 * j + 1][1]);
    }
  }

  static __device__ void accumulate(Running<D>& run, const Tile& tile, const uint32_t (&p)[1][2]) {
#pragma unroll
    for (int h = 0; h < D / 64; ++h) {
      const auto* v0 = reinterpret_cast<const uint32_t*>(&tile.v[0][h]);
      const auto* v1 = reinterpret_cast<const uint32_t*>(&tile.v[1][h]);
      const auto* v2 = reinterpret_cast<const uint32_t*>(&tile.v[2][h]);
      const auto* v3 = reinterpret_cast<const uint32_t*>(&tile.v[3][h]);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        // Two rows of one channel side by side: the even channel is row r, the odd one row r + 8.
        mma<T>(run.acc[4 * h + w], __byte_perm(v0[w], v1[w], 0x5410),
               __byte_perm(v0[w], v1[w], 0x7632), __byte_perm(v2[w], v3[w], 0x5410),
               __byte_perm(v2[w], v3[w], 0x7632), p[0][0], p[0][1]);
      }
    }
  }
};

/// The same rows, loaded when they are needed: for kernels that keep their registers for codes.
template <class T, int D>
struct DenseTilesOnDemand : DenseTiles<T, D> {
  using Base = DenseTiles<T, D>;
  struct Tile {
    const DeviceSpan* span;
    int tile;
  };
  static __device__ Tile load(const DeviceSpan& span, int tile) { return {&span, tile}; }
  static __device__ void scores(float (&s)[1][4], const Tile& tile, const typename Base::Query& q) {
    typename Base::Tile rows;
    Base::load_keys(rows, *tile.span, tile.tile);
    Base::scores(s, rows, q);
  }
  static __device__ void accumulate(Running<D>& run, const Tile& tile, const uint32_t (&p)[1][2]) {
    typename Base::Tile rows;
    Base::load_values(rows, *tile.span, tile.tile);
    Base::accumulate(run, rows, p);
  }
};

}  // namespace pith::cuda
