// kvtc's coder on the GPU: a thread block per block of 32 rows, a warp per row. The steps are the
// CPU's (transform_rows.h): the scale that misses least, then coordinate by coordinate along what
// those before left.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/turn.cuh"
#include "methods/codecs/kvtc/kvtc_cuda.h"
#include "rows/cuda/level_group.cuh"
#include "rows/cuda/level_vectors.cuh"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

struct WaitParams {
  HeadSample sample;
  const double* turns;  // [D/2], or null
  __half* out;          // [heads, count, D]
};

template <class T, int D>
__global__ void __launch_bounds__(kThreads) wait_kernel(const __grid_constant__ WaitParams p) {
  const HeadSample& sample = p.sample;
  const int head = blockIdx.y, i = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= sample.count * D) return;
  const T* rows = static_cast<const T*>(sample.rows) + head * sample.head_stride;
  const float x =
      turned_back(rows + i / D * D, i % D, D, p.turns, sample.positions.of(head, i / D));
  p.out[static_cast<size_t>(head) * sample.count * D + i] = __float2half_rn(x);
}

struct EnergyParams {
  FirstQueries queries;
  int group;    // query heads per KV head
  float* sums;  // [heads, D/2]
};

/// A block per KV head.
template <class T, int D>
__global__ void __launch_bounds__(kThreads) energy_kernel(const __grid_constant__ EnergyParams p) {
  constexpr int kPairs = D / 2, kParts = kThreads / kPairs;
  __shared__ float parts[kParts][kPairs];
  const int head = blockIdx.x, pair = threadIdx.x % kPairs, part = threadIdx.x / kPairs;
  const T* first = static_cast<const T*>(p.queries.q) + static_cast<size_t>(head) * p.group * D;
  float sum = 0;
  for (int i = part; i < p.queries.tokens * p.group; i += kParts) {
    const size_t at = static_cast<size_t>(i / p.group) * p.queries.query_heads + i % p.group;
    const float a = to_float(first[at * D + pair]), b = to_float(first[at * D + pair + kPairs]);
    sum += a * a + b * b;
  }
  parts[part][pair] = sum;
  __syncthreads();
  if (part > 0) return;
  for (int i = 1; i < kParts; ++i) sum += parts[i][pair];
  p.sums[head * kPairs + pair] += sum;
}

/// One row, at the hands of a warp: lane l has channels l, l + 32, ...
template <int D>
struct VectorCoder {
  static constexpr int kMine = D / kWarp;

  const PlacedSide& f;
  const float* levels;   // [LevelVectors::kLevels] in shared memory
  float* along;          // [D] of the warp: coordinates, in deviations
  const float* squares;  // [heads, D/2] or null
  int head, count;

  static __device__ int lane() { return threadIdx.x % kWarp; }
  __device__ float deviation(int i) const { return f.along.deviations[head * f.along.room + i]; }
  __device__ int width(int i) const {
    return static_cast<int>(f.along.places[head * f.along.room + i] >> 16);
  }
  /// Numbers of coordinates 2 k and 2 k + 1.
  __device__ float2 pair_at(int k, int e) const {
    const size_t row = static_cast<size_t>(head) * f.along.room / 2 + k;
    const uint32_t two = f.along.vectors[row * D + lane() + kWarp * e];
    return __half22float2(*reinterpret_cast<const __half2*>(&two));
  }
  /// The nearest level's number among those of `bits` bits.
  __device__ int nearest(float x, int bits) const {
    const float* of = levels + (1 << bits) - 1;
    int code = 0;
    for (int step = 1 << bits >> 1; step > 0; step /= 2)
      if (x > (of[code + step - 1] + of[code + step]) / 2) code += step;
    return code;
  }
  __device__ float level(int code, int bits) const { return levels[(1 << bits) - 1 + code]; }

  /// Of this lane's channel e.
  __device__ float square(int e) const {
    if (!squares) return 1;
    return squares[head * (D / 2) + (lane() + kWarp * e) % (D / 2)];
  }

  /// Of x times the squares of their weights.
  __device__ void find_along(const float (&x)[kMine]) const {
    for (int k = 0; 2 * k < count; ++k) {
      float2 sum{};
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        const float2 v = pair_at(k, e);
        sum.x += v.x * x[e];
        sum.y += v.y * x[e];
      }
      sum = {sum_of_warp(sum.x), sum_of_warp(sum.y)};
      if (lane() > 0) continue;
      const float first = deviation(2 * k);
      along[2 * k] = sum.x / (first * first);
      if (2 * k + 1 == count) continue;
      const float second = deviation(2 * k + 1);
      along[2 * k + 1] = sum.y / (second * second);
    }
    __syncwarp();
  }
  /// The squared error of the coordinates under a scale, as it is stored.
  __device__ float error_at(int stored) const {
    const float scale = VectorRows<D>::scale_of(static_cast<char>(stored));
    float error = 0;
    for (int i = lane(); i < count; i += kWarp) {
      const int bits = width(i);
      const float x = scale > 0 ? scale * level(nearest(along[i] / scale, bits), bits) : 0;
      const float missed = (along[i] - x) * deviation(i);
      error += missed * missed;
    }
    return sum_of_warp(error);
  }
  static __device__ int near(float square_of_scale) {
    const float scale = fminf(sqrtf(square_of_scale), 65504);
    return tight_of_half(__half_as_ushort(__float2half_rn(scale)));
  }
  /// The scale, as it is stored, under which codes miss the coordinates by least: see the CPU's.
  __device__ int best_scale() const {
    float shares = 0, square = 0, usual = 0;
    for (int i = lane(); i < count; i += kWarp) {
      const float length = deviation(i) * deviation(i);
      shares += along[i] * along[i];
      square += along[i] * along[i] * length;
      usual += length;
    }
    shares = sum_of_warp(shares), square = sum_of_warp(square), usual = sum_of_warp(usual);
    int first = near(shares / static_cast<float>(max(count, 1)));
    float least = error_at(first);
    if (const int other = near(usual > 0 ? square / usual : 0); other != first) {
      const float error = error_at(other);
      if (error < least) first = other, least = error;
    }
    int best = first;
    for (int step = 1; step >= -1; step -= 2) {
      for (int code = first + step; code >= 0 && code <= kLargestTightScale; code += step) {
        const float error = error_at(code);
        if (error >= least) break;
        least = error;
        best = code;
      }
    }
    return best;
  }
  /// Codes `x`, times squares too, of which is left over what they miss, from bit `row` of `words`
  /// on.
  __device__ void write_codes(uint32_t* words, int row, float (&x)[kMine], float scale) const {
    for (int i = 0; i < count; ++i) {
      float own[kMine], sum = 0;
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        const float2 two = pair_at(i / 2, e);
        own[e] = i % 2 == 0 ? two.x : two.y;
        sum += own[e] * x[e];
      }
      const int bits = width(i);
      const float length = deviation(i);
      const int code = nearest(sum_of_warp(sum) / (length * length * scale), bits);
      const float part = scale * level(code, bits);
#pragma unroll
      for (int e = 0; e < kMine; ++e) x[e] -= part * own[e] * square(e);
      if (lane() > 0) continue;
      const int bit = row + static_cast<int>(f.along.places[head * f.along.room + i] & 0xffff);
      const auto low = static_cast<uint32_t>(code);
      atomicOr(words + bit / 32, low << bit % 32);
      if (bit % 32 + bits > 32) atomicOr(words + bit / 32 + 1, low >> (32 - bit % 32));
    }
  }
};

template <class T, int D>
__global__ void __launch_bounds__(kThreads)
    code_kernel(const __grid_constant__ LevelJobs jobs, const __grid_constant__ PlacedSide f,
                const float* squares) {
  __shared__ float levels[LevelVectors::kLevels];
  __shared__ float along[kWarps][D];
  __shared__ __align__(16) uint32_t codes[kBlockRows * D / 4];  // at most 8 bits per number
  const CodeJob& job = jobs.of[blockIdx.z];
  const int head = blockIdx.y, block = blockIdx.x, warp = threadIdx.x / kWarp;
  const GroupTarget to = target_of<D>(job, f, block);
  const int bytes = f.code_bytes(D), row_bits = 8 * f.along.row_bytes;
  for (int i = threadIdx.x; i < LevelVectors::kLevels; i += kThreads) levels[i] = f.along.levels[i];
  for (int i = threadIdx.x; i < bytes / 4; i += kThreads) codes[i] = 0;
  __syncthreads();
  const VectorCoder<D> coder{f, levels, along[warp], squares, head, f.along.counts[head]};
  const T* from = static_cast<const T*>(job.x) + head * job.head_stride;
  for (int row = warp; row < kBlockRows; row += kWarps) {
    const int at = block * kBlockRows + row;
    const int64_t position = job.positions.of(head, at);
    float x[VectorCoder<D>::kMine];
#pragma unroll
    for (int e = 0; e < VectorCoder<D>::kMine; ++e) {
      const int c = VectorCoder<D>::lane() + kWarp * e;
      const float own = turned_back(from + static_cast<size_t>(at) * D, c, D, f.turns, position);
      x[e] = (own - head_mean<D>(f, head, c)) * coder.square(e);
    }
    coder.find_along(x);
    const int scale = coder.best_scale();
    if (scale > 0)
      coder.write_codes(codes, row * row_bits, x,
                        VectorRows<D>::scale_of(static_cast<char>(scale)));
    __syncwarp();  // nobody reads its coordinates any more
    if (VectorCoder<D>::lane() > 0) continue;
    to.side(row)[row] = static_cast<char>(scale);
    if (f.positions)
      reinterpret_cast<int*>(to.sides + f.at.positions)[row] = static_cast<int>(position);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < bytes / 16; i += kThreads)
    reinterpret_cast<uint4*>(to.codes)[i] = reinterpret_cast<const uint4*>(codes)[i];
}

}  // namespace

void wait_as_halves(uint16_t* out, const double* turns, const HeadSample& sample,
                    cudaStream_t stream) {
  with_rows_of<256>(sample.dtype, sample.dim, [&]<class T, int D>() {
    const dim3 grid((sample.count * D + kThreads - 1) / kThreads, sample.heads);
    launch_kernel(wait_kernel<T, D>, {grid, kThreads}, stream, "rows as kvtc learns from them",
                  WaitParams{sample, turns, reinterpret_cast<__half*>(out)});
  });
}

void add_energy(float* sums, const FirstQueries& queries, int heads, int dim, cudaStream_t stream) {
  with_rows_of<256>(queries.dtype, dim, [&]<class T, int D>() {
    launch_kernel(energy_kernel<T, D>, {static_cast<unsigned>(heads), kThreads}, stream,
                  "energy of queries", EnergyParams{queries, queries.query_heads / heads, sums});
  });
}

void code_along_vectors(const LevelSide& side, const float* squares, const CodeBatch& batch,
                        std::span<const CodeJob> jobs, cudaStream_t stream) {
  if (batch.rows == 0) return;
  with_rows_of<256>(batch.dtype, batch.head_dim, [&]<class T, int D>() {
    for_jobs(jobs, [&](const LevelJobs& some, size_t count) {
      const dim3 grid(batch.rows / kBlockRows, batch.heads, count);
      launch_kernel(code_kernel<T, D>, {grid, kThreads}, stream, "coding of rows along vectors",
                    some, PlacedSide(side, D), squares);
    });
  });
}

}  // namespace pith::cuda
