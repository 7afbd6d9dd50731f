// expected_attention's scores: a row's expected score for each query head, its softmax over the
// body, averaged over the group, times the norm of the value.

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/order_key.cuh"
#include "methods/selectors/expected_attention/expected_attention_cuda.h"

namespace pith::cuda {
namespace {

constexpr int kRows = 64, kThreads = 256, kSumThreads = 1024;

struct ScoreParams {
  CandidateRows rows;
  ExpectedScores how;
  float* logits;   // [H, stride]
  float* peaks;    // [H, 2] the largest logit and the logarithm of the sum
  uint32_t* keys;  // [G, stride]
  size_t stride;

  /// Of a query head.
  __device__ float* logits_of(int head) const {
    const int group = rows.queries.group, own = head / group;
    return logits + rows.beside(own, stride) * group +
           head % group * (rows.ragged.rows ? rows.count(own) : stride);
  }
};

/// Shared memory of a block: some rows of the covariance, all up to D = 128, and the mean, turned,
/// and a tile of keys.
template <int D>
struct Statistics {
  static constexpr int kPitch = D + 4, kPart = D > 128 ? 64 : D;
  float covariance[kPart][D];
  float keys[kRows][kPitch];
  float mean[D];

  /// The channel of row c of a part. Those of a RoPE pair are in one.
  static __device__ int channel(int c, int part) {
    return c / (kPart / 2) * (D / 2) + part * (kPart / 2) + c % (kPart / 2);
  }
  /// All threads; `state` as in expected_attention_cuda.h.
  __device__ void load_mean(const ScoreParams& p, int head) {
    constexpr int kHalf = D / 2;
    const float *cos = p.how.turn.cos, *sin = p.how.turn.sin;
    const float* from = p.rows.queries.state + head * D;
    for (int i = threadIdx.x; i < kHalf; i += kThreads) {
      const float a = from[i], b = from[i + kHalf];
      mean[i] = a * cos[i] - b * sin[i];
      mean[i + kHalf] = b * cos[i] + a * sin[i];
    }
  }
  __device__ void load_part(const ScoreParams& p, int head, int heads, int part) {
    constexpr int kHalf = D / 2, kOwn = kPart / 2;
    const float *cos = p.how.turn.cos, *sin = p.how.turn.sin;
    const float* s = p.rows.queries.state + 2 * heads * D + static_cast<size_t>(head) * D * D;
    const float share = 1 / fmaxf(1, static_cast<float>(p.rows.queries.count));
    for (int n = threadIdx.x; n < kOwn * kHalf; n += kThreads) {
      const int at = n / kHalf, i = channel(at, part), j = n % kHalf;
      const float a = s[i * D + j] * share, b = s[i * D + j + kHalf] * share;
      const float c = s[(i + kHalf) * D + j] * share, d = s[(i + kHalf) * D + j + kHalf] * share;
      // Columns first, then rows.
      const float a1 = a * cos[j] - b * sin[j], b1 = b * cos[j] + a * sin[j];
      const float c1 = c * cos[j] - d * sin[j], d1 = d * cos[j] + c * sin[j];
      covariance[at][j] = a1 * cos[i] - c1 * sin[i];
      covariance[at + kOwn][j] = c1 * cos[i] + a1 * sin[i];
      covariance[at][j + kHalf] = b1 * cos[i] - d1 * sin[i];
      covariance[at + kOwn][j + kHalf] = d1 * cos[i] + b1 * sin[i];
    }
  }
};

/// Blocks (64 rows, query head); a thread has 4 rows and D / 16 channels.
template <class T, int D>
__global__ void __launch_bounds__(kThreads) logits_kernel(const __grid_constant__ ScoreParams p) {
  auto* expected_shared = launched_shared<char>();
  auto& shared = *reinterpret_cast<Statistics<D>*>(expected_shared);
  const int head = blockIdx.y, first = blockIdx.x * kRows, heads = gridDim.y;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const int group = p.rows.queries.group, kv_head = head / group, count = p.rows.count(kv_head);
  if (first >= count) return;
  const T* k = static_cast<const T*>(p.rows.k) + p.rows.numbers_at(kv_head);
  for (int i = threadIdx.x; i < kRows * D; i += kThreads) {
    const auto row = static_cast<size_t>(min(first + i / D, count - 1));
    shared.keys[i / D][i % D] = to_float(k[row * D + i % D]);
  }
  using Shared = Statistics<D>;
  shared.load_mean(p, head);
  if (p.how.covariance) shared.load_part(p, head, heads, 0);
  __syncthreads();
  float product[4][D / 16] = {};
  for (int part = 0; p.how.covariance && part < D / Shared::kPart; ++part) {
    if (part > 0) {
      __syncthreads();
      shared.load_part(p, head, heads, part);
      __syncthreads();
    }
#pragma unroll 4
    for (int c = 0; c < Shared::kPart; ++c) {
      float s[D / 16];
#pragma unroll
      for (int j = 0; j < D / 16; ++j) s[j] = shared.covariance[c][tx + 16 * j];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = shared.keys[ty * 4 + i][Shared::channel(c, part)];
#pragma unroll
        for (int j = 0; j < D / 16; ++j) product[i][j] += x * s[j];
      }
    }
  }
  const float scale = p.how.scale;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float logit = 0;
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      const float x = shared.keys[ty * 4 + i][tx + 16 * j];
      logit += x * (scale * shared.mean[tx + 16 * j] + scale * scale / 2 * product[i][j]);
    }
#pragma unroll
    for (int d = 8; d > 0; d /= 2) logit += __shfl_xor_sync(~0u, logit, d);
    const int row = first + ty * 4 + i;
    if (tx == 0 && row < count) p.logits_of(head)[row] = logit;
  }
}

/// A block per query head.
__global__ void __launch_bounds__(kSumThreads) peaks_kernel(const __grid_constant__ ScoreParams p) {
  __shared__ float shared[kSumThreads / 32];
  const float* logits = p.logits_of(blockIdx.x);
  const int rows = p.rows.count(blockIdx.x / p.rows.queries.group);
  float top = -INFINITY;
  for (int i = threadIdx.x; i < rows; i += kSumThreads) top = fmaxf(top, logits[i]);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = top;
  __syncthreads();
  for (int w = 0; w < kSumThreads / 32; ++w) top = fmaxf(top, shared[w]);
  __syncthreads();
  float sum = 0;
  for (int i = threadIdx.x; i < rows; i += kSumThreads) sum += expf(logits[i] - top);
  sum = block_sum<kSumThreads>(sum, shared);
  if (threadIdx.x > 0) return;
  p.peaks[2 * blockIdx.x] = top;
  p.peaks[2 * blockIdx.x + 1] = logf(sum);
}

/// D / 8 lanes per row. Keys are logarithms: small probabilities do not vanish.
template <class T, int D>
__global__ void __launch_bounds__(kThreads) keys_kernel(const __grid_constant__ ScoreParams p) {
  constexpr int kLanes = D / 8;
  const int row = blockIdx.x * (kThreads / kLanes) + static_cast<int>(threadIdx.x) / kLanes;
  const int head = blockIdx.y, lane = threadIdx.x % kLanes, count = p.rows.count(head);
  if (blockIdx.x * (kThreads / kLanes) >= count) return;
  const auto at = static_cast<size_t>(min(row, count - 1));
  float square = 0;
  if (p.how.vnorm) {
    const T* v = static_cast<const T*>(p.rows.v) + p.rows.numbers_at(head) + at * D;
    const uint4 raw = *(reinterpret_cast<const uint4*>(v) + lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float x = to_float(reinterpret_cast<const T*>(&raw)[i]);
      square += x * x;
    }
  }
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
  if (lane != 0 || row >= count) return;
  const int group = p.rows.queries.group;
  double score = 0;
  for (int h = head * group; h < (head + 1) * group; ++h) {
    score += exp(static_cast<double>(p.logits_of(h)[at] - p.peaks[2 * h]) - p.peaks[2 * h + 1]);
  }
  double key = log(score / group + (p.how.vnorm ? p.how.epsilon : 0));
  if (p.how.vnorm) key += log(static_cast<double>(square)) / 2;
  p.keys[p.rows.beside(head, p.stride) + row] = key_of(static_cast<float>(key));
}

template <class T, int D>
void launch_scores(const ScoreParams& p, cudaStream_t stream) {
  const int heads = p.rows.heads * p.rows.queries.group, rows = p.rows.rows;
  constexpr size_t kBytes = sizeof(Statistics<D>);
  launch_kernel(logits_kernel<T, D>, {dim3((rows + kRows - 1) / kRows, heads), kThreads, kBytes},
                stream, "scores of rows", p);
  launch_kernel(peaks_kernel, {heads, kSumThreads}, stream, "scores of rows", p);
  constexpr int kRowsOfBlock = kThreads / (D / 8);
  const dim3 grid((rows + kRowsOfBlock - 1) / kRowsOfBlock, p.rows.heads);
  launch_kernel(keys_kernel<T, D>, {grid, kThreads}, stream, "scores of rows", p);
}

}  // namespace

void score_expected(const SelectSpace& space, const CandidateRows& rows, const ExpectedScores& how,
                    cudaStream_t stream) {
  const ScoreParams p{rows, how, space.logits, space.sums, space.keys, space.stride};
  with_rows_of<256>(rows.dtype, rows.dim,
                    [&]<class T, int D>() { launch_scores<T, D>(p, stream); });
}

}  // namespace pith::cuda
