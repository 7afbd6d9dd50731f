// The statistics of queries before RoPE (see expected_attention.cc): means and scatters, merged
// step by step (Chan et al. 1983). Sums run in a fixed order.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "methods/selectors/expected_attention/expected_attention_cuda.h"

namespace pith::cuda {
namespace {

constexpr int kTokenThreads = 1024, kTurnThreads = 256, kMeanThreads = 1024;
constexpr int kTile = 64, kTileThreads = 256, kAtOnce = 16;  // tokens of a tile in shared memory

/// Where a query head's numbers lie.
template <int D>
struct HeadState {
  float *mean, *last, *scatter;  // [D], [D], [D, D]
  __device__ HeadState(float* state, int heads, int head)
      : mean(state + head * D),
        last(state + (heads + head) * D),
        scatter(state + 2 * heads * D + static_cast<size_t>(head) * D * D) {}
};

/// x [D] <- q [D] turned back by its position; `pair` < D / 2.
template <class T, int D>
__device__ inline void turn_back(float* x, const T* q, int pair, float2 turn) {
  const float a = to_float(q[pair]), b = to_float(q[pair + D / 2]);
  x[pair] = a * turn.x + b * turn.y;
  x[pair + D / 2] = b * turn.x - a * turn.y;
}

__device__ inline float2 turn_of(const double* frequencies, int pair, int64_t position) {
  if (!frequencies) return {1, 0};
  double sin, cos;
  sincos(static_cast<double>(position) * frequencies[pair], &sin, &cos);
  return {static_cast<float>(cos), static_cast<float>(sin)};
}

struct TokenParams {
  StepQueries queries;
  const QueryNote* note;
  bool covariance;
};

/// A block per query head.
template <class T, int D>
__global__ void __launch_bounds__(kTokenThreads)
    token_kernel(const __grid_constant__ TokenParams params) {
  constexpr int kPieces = D * D / 4 / kTokenThreads;  // of 16 bytes per thread
  static_assert(D * D / 4 % kTokenThreads == 0);
  __shared__ float x[D], shift[D];
  const StepQueries& p = params.queries;
  const int head = blockIdx.x;
  const HeadState<D> state(p.state, p.query_heads, head);
  auto* const scatter = reinterpret_cast<float4*>(state.scatter);
  let_successor_start();
  const QueryNote note = *params.note;  // there since the step began, as is the scatter
  float4 pieces[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (params.covariance) pieces[i] = scatter[i * kTokenThreads + threadIdx.x];
  }
  wait_for_predecessor();
  if (note.skip > 0) return;
  if (threadIdx.x < D / 2) {
    turn_back<T, D>(x, static_cast<const T*>(p.q) + static_cast<size_t>(head) * D, threadIdx.x,
                    turn_of(p.frequencies, threadIdx.x, note.position));
  }
  __syncthreads();
  const auto before = static_cast<float>(note.seen);
  if (threadIdx.x < D) {
    shift[threadIdx.x] = x[threadIdx.x] - state.mean[threadIdx.x];
    state.mean[threadIdx.x] += shift[threadIdx.x] / (before + 1);
  }
  __syncthreads();
  if (!params.covariance || note.seen == 0) return;
  const float weight = before / (before + 1);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int n = i * kTokenThreads + static_cast<int>(threadIdx.x);
    const float left = weight * shift[n / (D / 4)];
    const float* right = shift + n % (D / 4) * 4;
    float4 sum = pieces[i];
    sum.x += left * right[0];
    sum.y += left * right[1];
    sum.z += left * right[2];
    sum.w += left * right[3];
    scatter[n] = sum;
  }
}

/// A block per token: scratch [T - skip, H, D] <- queries before RoPE.
template <class T, int D>
__global__ void __launch_bounds__(kTurnThreads)
    turn_kernel(const __grid_constant__ StepQueries p, QueryNote note) {
  __shared__ float2 turns[D / 2];
  const auto token = static_cast<size_t>(blockIdx.x);
  if (threadIdx.x < D / 2) {
    turns[threadIdx.x] =
        turn_of(p.frequencies, threadIdx.x, note.position + note.skip + static_cast<int>(token));
  }
  __syncthreads();
  const size_t heads = p.query_heads;
  const T* q = static_cast<const T*>(p.q) + (token + note.skip) * heads * D;
  float* x = p.scratch + token * heads * D;
  for (int i = threadIdx.x; i < p.query_heads * D / 2; i += kTurnThreads) {
    const int head = i / (D / 2), pair = i % (D / 2);
    turn_back<T, D>(x + head * D, q + head * D, pair, turns[pair]);
  }
}

/// A block per query head: the chunk's mean, and what it makes of the mean of all.
template <int D>
__global__ void __launch_bounds__(kMeanThreads)
    mean_kernel(const __grid_constant__ StepQueries p, QueryNote note) {
  constexpr int kParts = kMeanThreads / D;
  __shared__ double parts[kParts][D];
  const int head = blockIdx.x, c = threadIdx.x % D, part = threadIdx.x / D;
  const int count = p.tokens - note.skip;
  double sum = 0;
  for (int t = part; t < count; t += kParts) {
    sum += p.scratch[(static_cast<size_t>(t) * p.query_heads + head) * D + c];
  }
  parts[part][c] = sum;
  __syncthreads();
  if (threadIdx.x >= D) return;
  for (int i = 1; i < kParts; ++i) sum += parts[i][c];
  const HeadState<D> state(p.state, p.query_heads, head);
  const auto mean = static_cast<float>(sum / count);
  state.last[c] = mean;
  const auto before = static_cast<float>(note.seen), added = static_cast<float>(count);
  state.mean[c] += (mean - state.mean[c]) * (added / (before + added));
}

/// Blocks (query head, tile of 64 x 64 of its scatter); a thread has 4 x 4.
template <int D>
__global__ void __launch_bounds__(kTileThreads)
    scatter_kernel(const __grid_constant__ StepQueries p, QueryNote note) {
  __shared__ float left[kAtOnce][kTile], right[kAtOnce][kTile];
  const int head = blockIdx.x, rows = blockIdx.y / (D / kTile), columns = blockIdx.y % (D / kTile);
  const int count = p.tokens - note.skip, ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const HeadState<D> state(p.state, p.query_heads, head);
  const float* last_rows = state.last + rows * kTile;
  const float* last_columns = state.last + columns * kTile;
  float acc[4][4] = {};
  for (int first = 0; first < count; first += kAtOnce) {
    __syncthreads();
    for (int i = threadIdx.x; i < kAtOnce * kTile; i += kTileThreads) {
      const int t = i / kTile, c = i % kTile;
      const bool there = first + t < count;
      const float* x =
          p.scratch + (static_cast<size_t>(min(first + t, count - 1)) * p.query_heads + head) * D;
      left[t][c] = there ? x[rows * kTile + c] - last_rows[c] : 0;
      right[t][c] = there ? x[columns * kTile + c] - last_columns[c] : 0;
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      float a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = left[t][ty * 4 + i];
        b[i] = right[t][tx + 16 * i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[i][j] += a[i] * b[j];
      }
    }
  }
  // Of both means only the new one is there: last - old = (last - new) (before + n) / before.
  const auto before = static_cast<float>(note.seen), added = static_cast<float>(count);
  const float back = note.seen > 0 ? (before + added) / before : 0;
  const float weight = before * added / (before + added) * back * back;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = rows * kTile + ty * 4 + i;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = columns * kTile + tx + 16 * j;
      const float shift =
          (state.last[row] - state.mean[row]) * (state.last[column] - state.mean[column]);
      state.scatter[row * D + column] += acc[i][j] + weight * shift;
    }
  }
}

}  // namespace

void observe_token_queries(const StepQueries& queries, const QueryNote* note, bool covariance,
                           cudaStream_t stream) {
  with_rows_of<256>(queries.dtype, queries.dim, [&]<class T, int D>() {
    const LaunchShape shape{dim3(queries.query_heads), dim3(kTokenThreads), 0};
    launch_early(token_kernel<T, D>, shape, TokenParams{queries, note, covariance}, stream,
                 "statistics of queries");
  });
}

void observe_chunk_queries(const StepQueries& queries, const QueryNote& note, bool covariance,
                           cudaStream_t stream) {
  const int count = queries.tokens - note.skip;
  if (count == 0) return;
  with_rows_of<256>(queries.dtype, queries.dim, [&]<class T, int D>() {
    launch_kernel(turn_kernel<T, D>, {count, kTurnThreads}, stream, "statistics of queries",
                  queries, note);
    launch_kernel(mean_kernel<D>, {queries.query_heads, kMeanThreads}, stream,
                  "statistics of queries", queries, note);
    if (!covariance) return;
    const dim3 tiles(queries.query_heads, D / kTile * (D / kTile));
    launch_kernel(scatter_kernel<D>, {tiles, kTileThreads}, stream, "statistics of queries",
                  queries, note);
  });
}

}  // namespace pith::cuda
