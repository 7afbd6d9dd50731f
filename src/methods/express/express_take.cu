// Express, one block a KV head (seed 004, Alg. 1-3; on the CPU by plan/coreset.h). Rows are
// taken a bucket at a time: picks of strata in parallel, then whatever halvings the bucket causes.
// Whole buckets of few rows, which most halvings are of, go together, a warp each, straight from
// the new rows: only what they leave is stored.

#include "compress/cuda/halving_warp.cuh"
#include "kernels/cuda/numbers.cuh"
#include "methods/express/express_cuda.h"

namespace pith::cuda {
namespace {

__device__ uint32_t tag_of(uint64_t weight) { return __ffsll(static_cast<long long>(weight)) - 1; }

constexpr int kWarps = kWalkThreads / kWarp;
constexpr int kMostPicks = 512;

/// Shared memory for buckets of few rows.
struct BucketSpace {
  WarpSpace warps[kWarps];
  int32_t level0[kMostPicks], level1[kMostPicks / 2], level2[kMostPicks / 4];  // new rows
};

/// One head's store and stream. All threads of the block hold the same state.
template <class T, int D>
class HeadStream {
 public:
  __device__ HeadStream(const DeviceExpressRule& rule, const ExpressSite& site,
                        const ExpressArrays& arrays, uint32_t layer, int head, char* shared)
      : rule_(rule),
        k_(static_cast<char*>(arrays.k) + static_cast<size_t>(head) * arrays.capacity * 2 * D),
        v_(static_cast<char*>(arrays.v) + static_cast<size_t>(head) * arrays.capacity * 2 * D),
        log_weights_(arrays.log_weights + static_cast<size_t>(head) * arrays.capacity),
        positions_(arrays.positions + static_cast<size_t>(head) * arrays.capacity),
        sources_(arrays.sources ? arrays.sources + static_cast<size_t>(head) * arrays.capacity
                                : nullptr),
        next_(site.first_position),
        random_(DevicePhilox::make(site.seed, layer, site.first_head + head)),
        shared_(shared),
        state_(arrays.states[head]) {
    next_ += static_cast<int64_t>(state_.seen);
  }

  __device__ void take(const NewDeviceRows& rows, int head) {
    const auto* k = static_cast<const T*>(rows.k) + head * rows.head_stride;
    const auto* v = static_cast<const T*>(rows.v) + head * rows.head_stride;
    if (rows.position >= 0) next_ = rows.position;
    if (rows.positions) given_ = rows.positions + head * rows.positions_stride;
    if (sources_) {
      source_ = held();
      for (int i = threadIdx.x; i < source_; i += kWalkThreads) sources_[i] = i;
      __syncthreads();
    }
    for (int done = 0, taken = 0; done < rows.count; done += taken) {
      if (state_.coreset == rule_.target) halve_coreset();
      const T* from_k = k + done * rows.row_stride;
      const T* from_v = v + done * rows.row_stride;
      const int left = rows.count - done;
      if (state_.tau == 1) {
        taken = take_exact(from_k, from_v, rows.row_stride, left);
      } else {
        taken = take_buckets(from_k, from_v, rows.row_stride, left);
        if (taken == 0) taken = take_thin(from_k, from_v, rows.row_stride, left);
      }
      next_ += taken;
      source_ += taken;
      if (given_) given_ += taken;
    }
  }
  __device__ void finish(const ExpressArrays& arrays, int head) {
    if (threadIdx.x != 0) return;
    arrays.states[head] = state_;
    arrays.spans[head].rows = held();
  }

 private:
  static constexpr int kPieces = D / 8;

  __device__ int stored() const {
    int n = static_cast<int>(state_.coreset);
    for (int l = 0; l < static_cast<int>(kExpressLevels); ++l) n += state_.levels[l];
    return n;
  }
  __device__ int held() const { return stored() + (state_.stratum > 0); }
  __device__ float log_weight(uint64_t weight) const {
    return rule_.weight_exponent * logf(static_cast<float>(weight));
  }
  /// Of the i-th row from here on.
  __device__ int64_t position(int64_t i) const { return given_ ? given_[i] : next_ + i; }
  /// Row `to` of the store is the i-th from here on.
  __device__ void place(int to, int64_t i) const {
    positions_[to] = position(i);
    if (sources_) sources_[to] = source_ + static_cast<int32_t>(i);
  }
  __device__ uint64_t ratio() const {  // R
    const uint64_t least = uint64_t{1} << (2 * (rule_.inflation + 1));
    uint64_t r = 1;
    while (2 * r <= state_.tau && rule_.target / (2 * r) >= least) r *= 2;
    return r;
  }
  __device__ uint4* key(int row, int p) const {
    return reinterpret_cast<uint4*>(k_ + static_cast<size_t>(row) * 2 * D) + p;
  }
  __device__ uint4* value(int row, int p) const {
    return reinterpret_cast<uint4*>(v_ + static_cast<size_t>(row) * 2 * D) + p;
  }
  static __device__ uint4 load(const T* row, int p) {
    return __ldg(reinterpret_cast<const uint4*>(row) + p);
  }

  __device__ int take_exact(const T* k, const T* v, size_t stride, int left) {
    const int n = min(left, static_cast<int>(rule_.target - state_.coreset));
    for (int i = threadIdx.x; i < n * kPieces; i += kWalkThreads) {
      const int row = i / kPieces, p = i % kPieces, to = static_cast<int>(state_.coreset) + row;
      *key(to, p) = load(k + row * stride, p);
      *value(to, p) = load(v + row * stride, p);
      if (p == 0) {
        log_weights_[to] = 0;
        place(to, row);
      }
    }
    state_.coreset += n;
    state_.seen += n;
    __syncthreads();
    return n;
  }

  /// Rows up to the end of level 0's bucket at most; a warp a stratum. Only its pick is stored.
  __device__ int take_thin(const T* k, const T* v, size_t stride, int left) {
    const uint64_t r = ratio(), size = state_.tau / r;
    const uint32_t bucket = r == 1 ? rule_.target / 4 : static_cast<uint32_t>(rule_.target / r);
    const uint64_t room = (bucket - state_.levels[0]) * size - state_.stratum;
    const int n = static_cast<int>(min(static_cast<uint64_t>(left), room));
    const uint64_t begun = state_.stratum, end = begun + n;  // counted from the stratum's first row
    const int strata = static_cast<int>((end + size - 1) / size), base = stored();
    const int lane = threadIdx.x % kWarp;
    for (int j = threadIdx.x / kWarp; j < strata; j += kWalkThreads / kWarp) {
      const uint64_t first = max(j * size, begun), last = min((j + 1) * size, end);
      int64_t pick = -1;
      for (uint64_t i = first + lane; i < last; i += kWarp) {
        const uint64_t nth = i - j * size + 1;  // row nth of a stratum replaces the pick, 1 in nth
        const auto row = static_cast<int64_t>(i - begun);
        if (nth == 1 ||
            random_.word64(static_cast<uint64_t>(position(row)), kStratumTag) < ~0ull / nth) {
          pick = row;
        }
      }
#pragma unroll
      for (int d = 16; d > 0; d /= 2) pick = max(pick, __shfl_xor_sync(~0u, pick, d));
      if (pick >= 0) {
        if (lane < kPieces) *key(base + j, lane) = load(k + pick * stride, lane);
        if (lane < kPieces) *value(base + j, lane) = load(v + pick * stride, lane);
        if (lane == 0) place(base + j, pick);
      }
      if (lane == 0) log_weights_[base + j] = log_weight(last - j * size);
    }
    __syncthreads();
    state_.levels[0] += static_cast<uint32_t>(end / size);
    state_.stratum = end % size;
    state_.seen += n;
    if (state_.stratum == 0) close_levels(0);
    return n;
  }

  /// Runs of `size` rows of `from`, a warp each; survivors' numbers go to `to`.
  __device__ void halve_runs(int32_t* to, const int32_t* from, int size, int runs, uint64_t weight,
                             const RunRows& input) {
    auto& space = *reinterpret_cast<BucketSpace*>(shared_);
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const uint32_t tag = tag_of(weight);
    for (int run = warp; run < runs; run += kWarps) {
      RunRows rows = input;
      rows.numbers = from + run * size;
      rows.count = size;
      const bool flip = random_.words(static_cast<uint64_t>(rows.position(0)), tag).y >> 31;
      halve_by_warp<T, D>(rule_.halving, rows, space.warps[warp], random_, tag);
      if (lane < size / 2) {
        const bool second = (space.warps[warp].signs[2 * lane] < 0) != flip;
        to[run * (size / 2) + lane] = rows.numbers[2 * lane + second];
      }
      __syncwarp();
    }
    __syncthreads();
  }

  /// Whole buckets of at most kWarpRows rows: through level 0 and, four at a time, through level 1.
  /// Returns how many rows it took; 0 where levels wait for more or buckets are large.
  __device__ int take_buckets(const T* k, const T* v, size_t stride, int left) {
    const uint64_t r = ratio(), size = state_.tau / r;
    const int last = static_cast<int>(tag_of(r)), bucket = static_cast<int>(rule_.target / r);
    if (state_.stratum != 0 || state_.levels[0] != 0 || last == 0 || bucket > kWarpRows) return 0;
    const int buckets =
        static_cast<int>(min(left / (bucket * size), uint64_t{kMostPicks} / bucket));
    const auto room = [&](int level) {  // rows until the level closes
      const uint32_t most =
          level == last ? rule_.target / 4 : static_cast<uint32_t>(bucket) << level;
      return static_cast<int>(most - state_.levels[level]);
    };
    int runs = 0;  // of level 1
    if (last >= 2 && state_.levels[1] == 0 && 2 * bucket <= kWarpRows) {
      runs = min(buckets / 4, room(2) / bucket);
    }
    const int taken = runs > 0 ? 4 * runs : min(buckets, room(1) / (bucket / 2));
    if (taken == 0) return 0;
    auto& space = *reinterpret_cast<BucketSpace*>(shared_);
    for (int i = threadIdx.x; i < taken * bucket; i += kWalkThreads) {
      uint64_t pick = i * size;
      for (uint64_t nth = 2; nth <= size; ++nth) {
        const uint64_t row = i * size + nth - 1;
        const auto at = static_cast<uint64_t>(position(static_cast<int64_t>(row)));
        if (random_.word64(at, kStratumTag) < ~0ull / nth) pick = row;
      }
      space.level0[i] = static_cast<int32_t>(pick);
    }
    __syncthreads();
    const RunRows input{reinterpret_cast<const char*>(k),
                        reinterpret_cast<const char*>(v),
                        2 * stride,
                        nullptr,
                        nullptr,
                        next_,
                        0,
                        given_};
    halve_runs(space.level1, space.level0, bucket, taken, size, input);
    if (runs > 0) halve_runs(space.level2, space.level1, 2 * bucket, runs, 2 * size, input);
    const int level = runs > 0 ? 2 : 1, count = runs > 0 ? runs * bucket : taken * (bucket / 2);
    const int32_t* numbers = runs > 0 ? space.level2 : space.level1;
    const int base = stored();
    for (int i = threadIdx.x; i < count * kPieces; i += kWalkThreads) {
      const int row = i / kPieces, p = i % kPieces, from = numbers[row];
      *key(base + row, p) = load(k + from * stride, p);
      *value(base + row, p) = load(v + from * stride, p);
      if (p == 0) {
        place(base + row, from);
        log_weights_[base + row] = log_weight(size << level);
      }
    }
    __syncthreads();
    const uint64_t rows = taken * bucket * size;
    state_.levels[level] += static_cast<uint32_t>(count);
    state_.seen += rows;
    close_levels(level);
    return static_cast<int>(rows);
  }

  __device__ void halve_coreset() {
    for (int twice = 0; twice < 2; ++twice) {
      const uint32_t tag = tag_of(state_.tau);
      state_.tau *= 2;
      halve(0, static_cast<int>(state_.coreset), tag, log_weight(state_.tau));
      state_.coreset /= 2;
    }
  }

  __device__ void close_levels(int from) {
    const uint64_t r = ratio();
    const int last = static_cast<int>(tag_of(r));
    const auto bucket = static_cast<uint32_t>(rule_.target / r);
    uint64_t weight = state_.tau / r << from;
    for (int l = from; l < last && state_.levels[l] == bucket << l; ++l, weight *= 2) {
      const int count = static_cast<int>(state_.levels[l]);
      halve(stored() - count, count, tag_of(weight), log_weight(2 * weight));
      state_.levels[l + 1] += state_.levels[l] / 2;
      state_.levels[l] = 0;
    }
    if (state_.levels[last] == rule_.target / 4) {
      state_.coreset += state_.levels[last];
      state_.levels[last] = 0;
    }
  }

  /// Halves rows first .. first + count - 1, the store's last; survivors move to the front.
  __device__ __noinline__ void halve(int first, int count, uint32_t tag, float log_weight) {
    const RunRows rows{k_ + static_cast<size_t>(first) * 2 * D,
                       v_ + static_cast<size_t>(first) * 2 * D,
                       2 * D,
                       nullptr,
                       positions_ + first,
                       0,
                       count};
    const RunSpace<D> space{shared_, RunSpace<D>::padded(count)};
    const bool flip = random_.words(static_cast<uint64_t>(rows.position(0)), tag).y >> 31;
    const float* signs = space.signs();
    if (count <= kWarpRows) {
      auto& small = *reinterpret_cast<BucketSpace*>(shared_);
      signs = small.warps[0].signs;
      if (threadIdx.x < kWarp) {
        halve_by_warp<T, D>(rule_.halving, rows, small.warps[0], random_, tag);
      }
      __syncthreads();
    } else {
      HalvingBlock<T, D>{rule_.halving, rows, space}.run(random_, tag, flip);
    }
    constexpr int kTogether = 8, kPairs = kTogether * kWalkThreads / kPieces;  // pairs at a time
    for (int at = 0; at < count / 2; at += kPairs) {
      uint4 ks[kTogether], vs[kTogether];
      int64_t positions[kTogether];
      int32_t sources[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int b = at + (i * kWalkThreads + static_cast<int>(threadIdx.x)) / kPieces;
        if (b >= count / 2) continue;
        const int from = first + 2 * b + ((signs[2 * b] < 0) != flip);
        ks[i] = *key(from, threadIdx.x % kPieces);
        vs[i] = *value(from, threadIdx.x % kPieces);
        positions[i] = positions_[from];
        sources[i] = sources_ ? sources_[from] : 0;
      }
      __syncthreads();  // survivors of this part go where only this and earlier parts came from
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int b = at + (i * kWalkThreads + static_cast<int>(threadIdx.x)) / kPieces;
        if (b >= count / 2) continue;
        *key(first + b, threadIdx.x % kPieces) = ks[i];
        *value(first + b, threadIdx.x % kPieces) = vs[i];
        if (threadIdx.x % kPieces == 0) {
          positions_[first + b] = positions[i];
          if (sources_) sources_[first + b] = sources[i];
          log_weights_[first + b] = log_weight;
        }
      }
      __syncthreads();
    }
  }

  const DeviceExpressRule& rule_;
  char* k_;
  char* v_;
  float* log_weights_;
  int64_t* positions_;
  int32_t* sources_;                ///< or null
  int32_t source_ = 0;              ///< number of the next row, where sources are kept
  int64_t next_;                    ///< position of the next row, where those are not given:
  const int32_t* given_ = nullptr;  // of the rows to come
  DevicePhilox random_;
  char* shared_;
  DeviceExpressState state_;
};

/// A block a head and job.
template <class T, int D>
__global__ void __launch_bounds__(kWalkThreads, 1)
    take_kernel(const __grid_constant__ DeviceExpressRule rule,
                const __grid_constant__ ExpressSite site,
                const __grid_constant__ ExpressJobs jobs) {
  extern __shared__ __align__(128) char shared[];
  const int head = static_cast<int>(blockIdx.x);
  const ExpressJob& job = jobs.job[blockIdx.y];
  HeadStream<T, D> stream(rule, site, job.arrays, job.layer, head, shared);
  stream.take(job.rows, head);
  stream.finish(job.arrays, head);
}

template <class T, int D>
void launch(const DeviceExpressRule& rule, const ExpressSite& site, const ExpressJobs& jobs,
            cudaStream_t stream) {
  const auto kernel = take_kernel<T, D>;
  const size_t bytes = max(RunSpace<D>::bytes(static_cast<int>(rule.target)), sizeof(BucketSpace));
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "express's shared memory");
  kernel<<<dim3(site.heads, jobs.count), kWalkThreads, bytes, stream>>>(rule, site, jobs);
  check(cudaGetLastError(), "express");
}

}  // namespace

void express_take(const DeviceExpressRule& rule, const ExpressSite& site, const ExpressJobs& jobs,
                  cudaStream_t stream) {
  with_rows_of(site.dtype, site.dim,
               [&]<class T, int D>() { launch<T, D>(rule, site, jobs, stream); });
}

}  // namespace pith::cuda
