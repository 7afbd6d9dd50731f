// 16-bit weights times up to kMostAtOnce tokens' activations on the tensor cores. An activation is
// the sum of two bf16 numbers (it loses 2^-18 of itself), a weight in f16 of two exactly; sums are
// f32. Numbers of a token go through the same sums in the same order whatever the other tokens are
// and however many: a warp of eight adds up every eighth piece of a row, then the eight are added
// in order. Columns of the tensor cores beyond the tokens, up to 8, are zero.

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/matvec_mma.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kPiece = 64;  // numbers of a row that a warp takes at a time: 128 bytes
constexpr int kColumns = 8;

/// Two numbers as bf16 pairs: their upper parts and what these lack.
struct Halves {
  uint32_t high, low;
};
__device__ inline Halves halve(float a, float b) {
  const uint32_t high = pack<__nv_bfloat16>(a, b);
  const float above_a = __uint_as_float(high << 16);
  const float above_b = __uint_as_float(high & 0xffff0000u);
  return {high, pack<__nv_bfloat16>(a - above_a, b - above_b)};
}

/// A lane's eight activations of one token: of both steps of 16 numbers, as B's registers.
struct Column {
  uint32_t high[4], low[4];
};

/// Sums of kM tiles of 16 rows and kN tiles of 8 tokens.
template <int kM, int kN>
struct Sums {
  float c[kM][kN][4] = {};
};

__device__ inline void read_eight(float (&to)[8], const float* from) {
  const float4 a = reinterpret_cast<const float4*>(from)[0];
  const float4 b = reinterpret_cast<const float4*>(from)[1];
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
  to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

/// c += the tile's two rows of this lane times a column's eight numbers.
template <class W>
__device__ inline void multiply_tile(float (&c)[4], const uint4& upper, const uint4& lower,
                                     const Column& x) {
  using B = __nv_bfloat16;
  const uint32_t up[4] = {upper.x, upper.y, upper.z, upper.w};
  const uint32_t down[4] = {lower.x, lower.y, lower.z, lower.w};
#pragma unroll
  for (int s = 0; s < 4; s += 2) {
    if constexpr (std::is_same_v<W, B>) {
      mma<B>(c, up[s], down[s], up[s + 1], down[s + 1], x.high[s], x.high[s + 1]);
      mma<B>(c, up[s], down[s], up[s + 1], down[s + 1], x.low[s], x.low[s + 1]);
    } else {
      const auto split = [](uint32_t pair) {
        const float2 w = __half22float2(*reinterpret_cast<const __half2*>(&pair));
        return halve(w.x, w.y);
      };
      const Halves a = split(up[s]), b = split(down[s]);
      const Halves d = split(up[s + 1]), e = split(down[s + 1]);
      mma<B>(c, a.high, b.high, d.high, e.high, x.high[s], x.high[s + 1]);
      mma<B>(c, a.low, b.low, d.low, e.low, x.high[s], x.high[s + 1]);
      mma<B>(c, a.high, b.high, d.high, e.high, x.low[s], x.low[s + 1]);
    }
  }
}

/// The compiled form of a launch: tiles of 16 rows per block, tiles of 8 tokens, and how many
/// pieces of its rows each warp requests ahead.
template <int kM_, int kN_, int kDepth_, int kBlocks_>
struct Size {
  static constexpr int kM = kM_, kN = kN_, kDepth = kDepth_;
  static constexpr int kBlocks = kBlocks_;  // that a multiprocessor has room for
};

/// If gated, the upper half of a tile's rows are of the first half of w, the lower half what they
/// gate. Bytes: the weights once, the activations once a block.
template <class W, MatvecEnd kEnd, class Size>
__global__ void __launch_bounds__(kThreads, Size::kBlocks)
    matvec_mma_kernel(const __grid_constant__ MatvecCall p) {
  constexpr int kM = Size::kM, kN = Size::kN, kDepth = Size::kDepth;
  constexpr int kParts = parts_of(kEnd);
  constexpr int kUnitsOfTile = 16 / kParts, kUnits = kM * kUnitsOfTile;  // results a token
  constexpr int kTokens = kN * kColumns;
  auto* shared = launched_shared<float>();
  float* parts = shared;                                // [kWarps, kM 16, kTokens]
  float* squares = parts + kWarps * kM * 16 * kTokens;  // [kWarps, kTokens]
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, c = lane % 4;
  const size_t units = p.w.out / kParts;
  const size_t first_unit = static_cast<size_t>(blockIdx.x) * kUnits;
  const auto* weights = static_cast<const std::byte*>(p.w.data);

  // Rows g and g + 8 of each tile, from number 8 c of a piece's half on.
  using Piece = uint4[2][kM][2];
  const auto load = [&](Piece& to, size_t k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const size_t at = k + half * (kPiece / 2) + 8 * c;
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const size_t unit = first_unit + m * kUnitsOfTile + (kParts == 2 ? 0 : r * 8) + g;
          const size_t row = kParts == 2 ? r * units + unit : unit;
          to[half][m][r] = unit < units && at < p.w.in
                               ? load_once(weights + (row * p.w.in + at) * sizeof(W))
                               : uint4{0, 0, 0, 0};
        }
      }
    }
  };

  constexpr size_t kStride = size_t{kWarps} * kPiece;
  const size_t first = static_cast<size_t>(warp) * kPiece;
  Piece pieces[kDepth];
#pragma unroll
  for (int d = 0; d < kDepth; ++d) load(pieces[d], first + d * kStride);
  let_successor_start();
  wait_for_predecessor();

  Sums<kM, kN> sums;
  float own_squares[kN] = {};
  const auto multiply = [&](const Piece& piece, size_t k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const size_t at = k + half * (kPiece / 2) + 8 * c;
      const bool there = at < p.w.in;
      float x[kN][8] = {};
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const size_t token = n * kColumns + g;
        if (token < p.tokens && there) read_eight(x[n], p.x + token * p.w.in + at);
      }
      if (p.norm) {
        float norm[8] = {};
        if (there) read_eight(norm, p.norm + at);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            own_squares[n] = fmaf(x[n][i], x[n][i], own_squares[n]);
            x[n][i] *= norm[i];
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        Column column;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const Halves h = halve(x[n][2 * i], x[n][2 * i + 1]);
          column.high[i] = h.high;
          column.low[i] = h.low;
        }
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          multiply_tile<W>(sums.c[m][n], piece[half][m][0], piece[half][m][1], column);
        }
      }
    }
  };
  for (size_t k = first; k < p.w.in; k += kDepth * kStride) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const size_t at = k + d * kStride;
      if (at < p.w.in) {
        multiply(pieces[d], at);
        if (at + kDepth * kStride < p.w.in) load(pieces[d], at + kDepth * kStride);
      }
    }
  }

#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = m * 16 + i / 2 * 8 + g, token = n * kColumns + 2 * c + i % 2;
        parts[(warp * kM * 16 + row) * kTokens + token] = sums.c[m][n][i];
      }
    }
    const float sum = sum_over_columns(own_squares[n]);
    if (c == 0) squares[warp * kTokens + n * kColumns + g] = sum;
  }
  __syncthreads();
  const auto total = [&](const float* from, int apart) {
    float sum = from[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += from[w * apart];
    return sum;
  };
  for (int i = threadIdx.x; i < kUnits * kTokens; i += kThreads) {
    const int token = i / kUnits, in_block = i % kUnits;
    const size_t unit = first_unit + in_block;
    if (static_cast<size_t>(token) >= p.tokens || unit >= units) continue;
    float factor = 1;
    if (p.norm) {
      const float mean = total(squares + token, kTokens) / static_cast<float>(p.w.in);
      factor = 1 / sqrtf(mean + p.eps);
    }
    float s[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int row = in_block / kUnitsOfTile * 16 + part * 8 + in_block % kUnitsOfTile;
      s[part] = factor * total(parts + row * kTokens + token, kM * 16 * kTokens);
      if (p.bias) s[part] += p.bias[part * units + unit];
    }
    float* y = p.y + token * p.ld + unit;
    if constexpr (kParts == 2) {
      *y = (kEnd == MatvecEnd::kGate ? silu(s[0]) : gelu(s[0])) * s[1];
    } else {
      *y = kEnd == MatvecEnd::kAdd ? *y + s[0] : s[0];
    }
  }
}

template <class W, MatvecEnd kEnd, class Size>
void launch_as(const MatvecCall& call, cudaStream_t stream) {
  constexpr size_t kRows = Size::kM * 16, kTokens = Size::kN * kColumns;
  constexpr size_t kBytes = sizeof(float) * kWarps * (kRows + 1) * kTokens;
  launch_early(matvec_mma_kernel<W, kEnd, Size>,
               {static_cast<unsigned>((call.w.out + kRows - 1) / kRows), kThreads, kBytes}, call,
               stream, "matvec");
}

/// Sizes by measurement on an H200 (docs/lab/gpu-notes.md).
template <class W, MatvecEnd kEnd>
void launch(const MatvecCall& call, cudaStream_t stream) {
  const auto processors = static_cast<size_t>(device_info().multiprocessors);
  const bool many = call.w.out >= 40 * processors;
  if (call.tokens <= 8) {
    return many ? launch_as<W, kEnd, Size<2, 1, 2, 2>>(call, stream)
                : launch_as<W, kEnd, Size<1, 1, 4, 2>>(call, stream);
  }
  if (call.tokens <= 16) {
    return many ? launch_as<W, kEnd, Size<2, 2, 1, 2>>(call, stream)
                : launch_as<W, kEnd, Size<2, 2, 2, 1>>(call, stream);
  }
  // Blocks of twice the rows, unless these leave multiprocessors without work for longer.
  const auto rounds = [&](size_t rows) { return (call.w.out / rows + processors) / processors; };
  return 2 * rounds(64) <= rounds(32) ? launch_as<W, kEnd, Size<4, 4, 2, 1>>(call, stream)
                                      : launch_as<W, kEnd, Size<2, 4, 2, 1>>(call, stream);
}

}  // namespace

void matvec_mma(const MatvecCall& call, cudaStream_t stream) {
  static_assert(kMostAtOnce == 4 * kColumns);
  with_end(call.end, [&]<MatvecEnd kEnd> {
    call.w.dtype == DType::kBF16 ? launch<__nv_bfloat16, kEnd>(call, stream)
                                 : launch<__half, kEnd>(call, stream);
  });
}

}  // namespace pith::cuda
