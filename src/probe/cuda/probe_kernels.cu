#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "probe/cuda/probe_kernels.h"
#include "probe/probe_tiles.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr size_t kCopies = 120;  // rows a launch: what its parameters have room for

struct CopyParams {
  RowCopy rows[kCopies];
  int pieces = 0;  // of 16 bytes, a row
};

/// A block per row; the first half of its threads copy the key.
__global__ void copy_kernel(const __grid_constant__ CopyParams p) {
  const RowCopy& row = p.rows[blockIdx.x];
  const int piece = static_cast<int>(threadIdx.x) % p.pieces;
  const bool key = static_cast<int>(threadIdx.x) < p.pieces;
  static_cast<uint4*>(key ? row.to_k : row.to_v)[piece] =
      static_cast<const uint4*>(key ? row.k : row.v)[piece];
}

/// A block a tile (x) and query of its group (y).
template <class T, int D>
__global__ void __launch_bounds__(kThreads) sum_kernel(const __grid_constant__ ProbeSumsCall call) {
  constexpr int kParts = 2 * kThreads / D;  // threads that share a pair of channels
  __shared__ float p[ProbeTile::kMostRows], q[D], reduced[kWarps];
  __shared__ float parts[kParts][2][D];  // of p v and p^2 v
  const ProbeTile tile = call.tiles[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const size_t query = static_cast<size_t>(tile.head) * call.group + blockIdx.y;
  if (thread < D) {
    const size_t at = query * D + thread;
    q[thread] = call.q_dtype == DType::kBF16
                    ? to_float(static_cast<const __nv_bfloat16*>(call.q)[at])
                    : to_float(static_cast<const __half*>(call.q)[at]);
  }
  __syncthreads();

  const float scale = rsqrtf(static_cast<float>(D));
  float top = -INFINITY;
  for (int row = thread / 32; row < tile.rows; row += kWarps) {
    const T* key = static_cast<const T*>(tile.keys) + static_cast<size_t>(row) * D;
    float score = 0;
#pragma unroll
    for (int c = 0; c < D / 32; ++c) score += q[lane + 32 * c] * to_float(key[lane + 32 * c]);
    for (int d = 16; d > 0; d /= 2) score += __shfl_xor_sync(~0u, score, d);
    score *= scale;
    if (lane == 0) p[row] = score;
    top = fmaxf(top, score);
  }
  top = block_max<kThreads>(top, reduced);
  __syncthreads();
  float sum = 0, squares = 0;
  for (int row = thread; row < tile.rows; row += kThreads) {
    const float x = expf(p[row] - top);
    p[row] = x;
    sum += x;
    squares += x * x;
  }
  sum = block_sum<kThreads>(sum, reduced);
  squares = block_sum<kThreads>(squares, reduced);

  const int pair = thread % (D / 2), part = thread / (D / 2);
  float2 first{}, second{};
  float lengths = 0;
  for (int row = part; row < tile.rows; row += kParts) {
    const T* value = static_cast<const T*>(tile.values) + static_cast<size_t>(row) * D + 2 * pair;
    const float x = to_float(value[0]), y = to_float(value[1]), weight = p[row];
    const float square = weight * weight;
    first.x += weight * x;
    first.y += weight * y;
    second.x += square * x;
    second.y += square * y;
    lengths += square * (x * x + y * y);
  }
  lengths = block_sum<kThreads>(lengths, reduced);
  parts[part][0][2 * pair] = first.x;
  parts[part][0][2 * pair + 1] = first.y;
  parts[part][1][2 * pair] = second.x;
  parts[part][1][2 * pair + 1] = second.y;
  __syncthreads();
  constexpr size_t kNumbers = TileSums::kScalars + 2 * D;
  float* out = call.out + (static_cast<size_t>(blockIdx.x) * call.group + blockIdx.y) * kNumbers;
  for (int i = thread; i < 2 * D; i += kThreads) {
    float x = 0;
    for (int from = 0; from < kParts; ++from) x += parts[from][i / D][i % D];
    out[TileSums::kScalars + i] = x;
  }
  if (thread == 0) {
    out[0] = top;
    out[1] = sum;
    out[2] = squares;
    out[3] = lengths;
  }
}

}  // namespace

void sum_probe_tiles(const ProbeSumsCall& call, cudaStream_t stream) {
  if (call.count == 0) return;
  with_rows_of<256>(call.dtype, call.dim, [&]<class T, int D>() {
    launch_kernel(sum_kernel<T, D>, {dim3(call.count, call.group), kThreads}, stream,
                  "the error probe's sums", call);
  });
}

void copy_rows(std::span<const RowCopy> rows, size_t dim, cudaStream_t stream) {
  CopyParams params;
  params.pieces = static_cast<int>(dim / 8);
  for (size_t first = 0; first < rows.size(); first += kCopies) {
    const size_t count = std::min(kCopies, rows.size() - first);
    std::copy_n(rows.begin() + static_cast<ptrdiff_t>(first), count, params.rows);
    launch_kernel(copy_kernel, {static_cast<unsigned>(count), 2 * params.pieces}, stream,
                  "rows of the error probe", params);
  }
}

}  // namespace pith::cuda
