// kvquant's tables on the GPU: a thread block per head. Ranges of channels by counting, levels by
// Lloyd's rounds from the quantiles (codebook.h), with sums in f64 in a fixed order.

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "methods/codecs/kvquant/kvquant_cuda.h"
#include "rows/cuda/level_coder.cuh"

namespace pith::cuda {
namespace {

constexpr int kThreads = kCoderThreads, kWarps = kCoderWarps, kRounds = 100;
constexpr int kMost = LevelSide::kMostLevels;

struct LearnParams {
  HeadSample sample;
  PlacedSide side;
  float* levels;     // [heads, 16]
  uint16_t* ranges;  // [heads, 2, D]
};

/// Of all numbers those that count: in [0, 1], mostly; the others are kOut.
constexpr float kOut = 3e38f;

template <int D>
struct Learner {
  using Lane = LevelLane<D>;
  static constexpr int kMine = Lane::kMine;
  const LearnParams& p;
  float *rows, *weights;  // [n, D] numbers, and [n] or [D] how much their errors count
  int n;

  /// Each channel's range without the `cut` least and largest of its numbers.
  __device__ void find_ranges(__half* ranges, int cut) const {
    for (int c = threadIdx.x; c < D; c += kThreads) {
      float least = 0, most = 0;
      for (int t = 0; t < n; ++t) {
        const float x = rows[t * D + c];
        int below = 0;
        for (int i = 0; i < n; ++i) {
          const float y = rows[i * D + c];
          below += y < x || (y == x && i < t);
        }
        if (below == cut) least = x;
        if (below == n - 1 - cut) most = x;
      }
      ranges[c] = __float2half_rn(least);
      ranges[D + c] = __float2half_rn(most - least);
      const float low = __half2float(ranges[c]), scale = __half2float(ranges[D + c]);
      weights[c] = scale * scale;
      for (int t = 0; t < n; ++t) {
        float& x = rows[t * D + c];
        x = scale > 0 ? (x - low) / scale : kOut;
      }
    }
  }
  /// Values: each row's own range.
  __device__ void find_row_ranges() const {
    const Coder<D, LevelForm::kRows> coder{p.side, {}, {}, 0};
    for (int row = threadIdx.x / kWarp; row < n; row += kWarps) {
      float x[kMine];
#pragma unroll
      for (int e = 0; e < kMine; ++e) x[e] = rows[row * D + Lane::channel(e)];
      uint32_t mask;
      int list[LevelSide::kMostApart];
      const float2 range = coder.row_range(mask, list, x);
      if (threadIdx.x % kWarp == 0) weights[row] = range.y * range.y;
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        rows[row * D + Lane::channel(e)] =
            range.y > 0 && !(mask >> e & 1) ? (x[e] - range.x) / range.y : kOut;
      }
    }
  }

  __device__ double block_sum(double x, double* shared) const {
#pragma unroll
    for (int d = kWarp / 2; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += shared[w];
    return sum;
  }
  /// How many numbers are at most x.
  __device__ int count_to(float x, double* shared) const {
    int count = 0;
    for (int i = threadIdx.x; i < n * D; i += kThreads) count += rows[i] <= x;
    return static_cast<int>(block_sum(count, shared));
  }
  /// Bits of floats in an order that integers follow.
  static __device__ float at_key(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
  }
  /// The number that stands at `rank` of all that count.
  __device__ float number_at(int rank, double* shared) const {
    uint32_t low = 0, high = 0xff000000u;  // below are those above all that count
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (count_to(at_key(middle), shared) > rank) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return at_key(low);
  }

  /// levels [2^b] <- Lloyd's, begun at the quantiles.
  __device__ void fit(double* levels, double* shared) const {
    const int count = count_to(kOut / 2, shared), size = 1 << p.side.bits;
    for (int i = 0; i < size; ++i) {
      const int rank = min(count - 1, static_cast<int>(int64_t{2 * i + 1} * count / (2 * size)));
      const double level = count > 0 ? number_at(rank, shared) : 0;
      if (threadIdx.x == 0) levels[i] = level;
    }
    __syncthreads();
    for (int round = 0; round < kRounds && move(levels, shared); ++round) {
    }
  }
  /// One round; whether a level moved.
  __device__ bool move(double* levels, double* shared) const {
    const int size = 1 << p.side.bits;
    const bool by_channel = p.side.scale == LevelScale::kHeadChannel;
    double weight[kMost] = {}, product[kMost] = {};
    for (int i = threadIdx.x; i < n * D; i += kThreads) {
      const float x = rows[i];
      if (x >= kOut / 2) continue;
      int cell = 0;
      for (int k = 0; k + 1 < size; ++k) cell += x > (levels[k] + levels[k + 1]) / 2;
      const double w = weights[by_channel ? i % D : i / D];
#pragma unroll
      for (int k = 0; k < kMost; ++k) {
        weight[k] += k == cell ? w : 0;
        product[k] += k == cell ? w * x : 0;
      }
    }
    bool moved = false;
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (k >= size) continue;
      const double all = block_sum(weight[k], shared), sum = block_sum(product[k], shared);
      __syncthreads();
      if (!(all > 0)) continue;
      moved |= sum / all != levels[k];
      __syncthreads();
      if (threadIdx.x == 0) levels[k] = sum / all;
    }
    __syncthreads();
    return moved;
  }
};

template <class T, int D>
__global__ void __launch_bounds__(kThreads) learn_kernel(const __grid_constant__ LearnParams p) {
  auto* shared = launched_shared<char>();
  const HeadSample& sample = p.sample;
  const int head = blockIdx.x, n = sample.count;
  auto* rows = reinterpret_cast<float*>(shared);
  auto* weights = rows + n * D;
  __shared__ double levels[kMost], sums[kWarps];
  const T* from = static_cast<const T*>(sample.rows) + head * sample.head_stride;
  for (int i = threadIdx.x; i < n * D; i += kThreads) {
    const float x = turned_back(from + static_cast<size_t>(i / D) * D, i % D, D, p.side.turns,
                                sample.positions.of(head, i / D));
    rows[i] = __half2float(__float2half_rn(x));  // as they wait on the CPU
  }
  __syncthreads();
  const Learner<D> learner{p, rows, weights, n};
  if (p.side.scale == LevelScale::kHeadChannel) {
    const int cut = static_cast<int>(
        lround(static_cast<double>(n * p.side.apart) / static_cast<double>(2 * D)));
    learner.find_ranges(reinterpret_cast<__half*>(p.ranges) + head * 2 * D, cut);
  } else {
    learner.find_row_ranges();
  }
  __syncthreads();
  learner.fit(levels, sums);
  if (threadIdx.x != 0) return;
  const int size = 1 << p.side.bits;
  for (int i = 0; i < kMost; ++i) {
    p.levels[head * kMost + i] =
        i < size ? __half2float(__float2half_rn(static_cast<float>(levels[i]))) : 0;
  }
}

}  // namespace

void learn_kvquant(float* levels, uint16_t* ranges, const LevelSide& side, const HeadSample& sample,
                   cudaStream_t stream) {
  const auto n = static_cast<size_t>(sample.count), dim = static_cast<size_t>(sample.dim);
  const size_t bytes = sizeof(float) * (n * dim + std::max(n, dim));
  check_level_room("kvquant's sample of rows", bytes);
  with_rows_of<256>(sample.dtype, sample.dim, [&]<class T, int D>() {
    launch_kernel(learn_kernel<T, D>, {sample.heads, kThreads, bytes}, stream, "kvquant's tables",
                  LearnParams{sample, {side, D}, levels, ranges});
  });
}

}  // namespace pith::cuda
