#pragma once
// One head's stream of Express as the threads of a block take rows to it ("Express Language
// Modeling", Alg. 1-3): plan/coreset.h says the next step. Picks of strata go in parallel. Whole
// buckets of few rows, which most halvings are of, go together, a warp each, straight from the new
// rows: only what they leave is stored.

#include "kernels/cuda/numbers.cuh"
#include "methods/selectors/express/express_cuda.h"
#include "select/cuda/halving_warp.cuh"

namespace pith::cuda {

inline constexpr int kStreamWarps = kWalkThreads / kWarp, kMostPicks = 512;

/// Shared memory for buckets of few rows.
struct BucketSpace {
  WarpSpace warps[kStreamWarps];
  int32_t level0[kMostPicks], level1[kMostPicks / 2], level2[kMostPicks / 4];  // new rows
};

/// The part of a job's rows that a launch takes.
struct ExpressPart {
  uint32_t most = UINT32_MAX;  ///< rows that are halved; it ends before more are
  int source = -1;             ///< number of its first row among `sources`, which have been begun
};

/// The new rows from here on.
template <class T>
struct FreshRows {
  const T *k, *v;
  size_t stride;
};

/// One head's store and stream. All threads of the block hold the same state.
template <class T, int D>
class HeadStream {
 public:
  __device__ HeadStream(const ExpressJob& job, int head, char* shared)
      : rule_(job.rule),
        k_(static_cast<char*>(job.arrays.k) + first_row(job, head) * 2 * D),
        v_(static_cast<char*>(job.arrays.v) + first_row(job, head) * 2 * D),
        log_weights_(job.arrays.log_weights + first_row(job, head)),
        positions_(job.arrays.positions + first_row(job, head)),
        sources_(job.arrays.sources ? job.arrays.sources + first_row(job, head) : nullptr),
        next_(job.site.first_position + static_cast<int64_t>(job.state.seen)),
        random_(Philox(job.site.seed, job.site.layer, job.site.first_head + head)),
        shared_(shared),
        state_(job.state) {}

  /// The rows of a part, before any is taken.
  __device__ FreshRows<T> begin(const NewDeviceRows& rows, int head, const ExpressPart& part) {
    if (rows.position >= 0) next_ = rows.position;
    if (rows.positions) given_ = rows.positions + head * rows.positions_stride;
    source_ = part.source >= 0 ? part.source : static_cast<int>(state_.rows());
    return {static_cast<const T*>(rows.k) + head * rows.head_stride,
            static_cast<const T*>(rows.v) + head * rows.head_stride, rows.row_stride};
  }
  /// Every row held is its own source.
  __device__ void begin_sources() {
    if (!sources_) return;
    for (int i = threadIdx.x; i < state_.rows(); i += kWalkThreads) sources_[i] = i;
    __syncthreads();
  }

  __device__ void take(const NewDeviceRows& rows, int head, const ExpressPart& part) {
    FreshRows<T> fresh = begin(rows, head, part);
    if (part.source < 0) begin_sources();
    for (auto left = static_cast<uint32_t>(rows.count);;) {
      const int base = static_cast<int>(state_.settled());
      const Buckets buckets = next_buckets(state_, rule_.shape, left, kMostPicks, kWarpRows);
      auto taken = static_cast<uint32_t>(buckets.rows());
      if (buckets.count > 0) {
        take_buckets(buckets, base, fresh);
      } else {
        const Step step = next_step(state_, rule_.shape, left);
        if (step.rows == 0) return;
        if (step.op == Op::kHalve) {
          if (step.rows > part.most) return;
          halve(static_cast<int>(step.first), static_cast<int>(step.rows), step.tag,
                log_weight(step.weight));
          continue;
        }
        step.op == Op::kPick ? pick(step, base, fresh) : move(step, base, fresh);
        taken = step.rows;
      }
      left -= taken;
      fresh.k += taken * fresh.stride;
      fresh.v += taken * fresh.stride;
      next_ += taken;
      source_ += static_cast<int>(taken);
      if (given_) given_ += taken;
    }
  }

  /// Row i of `count` behind the `base` that are stored is numbers[i] of those to come, or the i-th
  /// where there are none; a thread's share of `threads`.
  __device__ void place_rows(const int32_t* numbers, int count, int base, const FreshRows<T>& fresh,
                             float log_weight, int thread, int threads) const {
    for (int i = thread; i < count * kPieces; i += threads) {
      const int row = i / kPieces, p = i % kPieces, from = numbers ? numbers[row] : row;
      *key(base + row, p) = load(fresh.k + from * fresh.stride, p);
      *value(base + row, p) = load(fresh.v + from * fresh.stride, p);
      if (p == 0) {
        place(base + row, from);
        log_weights_[base + row] = log_weight;
      }
    }
  }
  /// Which of the rows to come stratum i of `size` picks.
  __device__ int32_t pick_of(int i, uint64_t size) const {
    uint64_t pick = i * size;
    for (uint64_t nth = 2; nth <= size; ++nth) {
      const uint64_t row = i * size + nth - 1;
      const int64_t at = position(static_cast<int64_t>(row));
      if (becomes_pick(random_, at, kStratumTag, nth)) pick = row;
    }
    return static_cast<int32_t>(pick);
  }
  /// Survivor b of half of `count` rows from `first` on, row from(b) of the store, moves to first +
  /// b. All threads of one block call it.
  template <class From>
  __device__ void close_up(int first, int count, float log_weight, const From& from) {
    constexpr int kTogether = 8, kPairs = kTogether * kWalkThreads / kPieces;  // pairs at a time
    for (int at = 0; at < count / 2; at += kPairs) {
      uint4 ks[kTogether], vs[kTogether];
      int64_t positions[kTogether];
      int32_t sources[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int b = at + (i * kWalkThreads + static_cast<int>(threadIdx.x)) / kPieces;
        if (b >= count / 2) continue;
        const int row = from(b);
        ks[i] = *key(row, threadIdx.x % kPieces);
        vs[i] = *value(row, threadIdx.x % kPieces);
        positions[i] = positions_[row];
        sources[i] = sources_ ? sources_[row] : 0;
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
  __device__ float log_weight(uint64_t weight) const {
    return rule_.weight_exponent * logf(static_cast<float>(weight));
  }

 private:
  static constexpr int kPieces = D / 8;

  static __device__ size_t first_row(const ExpressJob& job, int head) {
    return static_cast<size_t>(head) * job.arrays.capacity;
  }
  /// Of the i-th row from here on.
  __device__ int64_t position(int64_t i) const { return given_ ? given_[i] : next_ + i; }
  /// Row `to` of the store is the i-th from here on.
  __device__ void place(int to, int64_t i) const {
    positions_[to] = position(i);
    if (sources_) sources_[to] = source_ + static_cast<int32_t>(i);
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

  /// Rows of weight 1, behind the `base` that are stored.
  __device__ void move(const Step& step, int base, const FreshRows<T>& rows) {
    place_rows(nullptr, static_cast<int>(step.rows), base, rows, 0, threadIdx.x, kWalkThreads);
    __syncthreads();
  }

  /// A warp a stratum. Only its pick is stored.
  __device__ void pick(const Step& step, int base, const FreshRows<T>& rows) {
    const uint64_t begun = step.first, end = begun + step.rows;  // from the stratum's first row
    const int strata = static_cast<int>((end + step.size - 1) >> log2_of(step.size));
    const int lane = threadIdx.x % kWarp;
    for (int j = threadIdx.x / kWarp; j < strata; j += kStreamWarps) {
      const uint64_t first = max(j * step.size, begun), last = min((j + 1) * step.size, end);
      int64_t pick = -1;
      for (uint64_t i = first + lane; i < last; i += kWarp) {
        const uint64_t nth = i - j * step.size + 1;  // row nth replaces the pick, 1 in nth
        const auto row = static_cast<int64_t>(i - begun);
        if (becomes_pick(random_, position(row), step.tag, nth)) pick = row;
      }
#pragma unroll
      for (int d = 16; d > 0; d /= 2) pick = max(pick, __shfl_xor_sync(~0u, pick, d));
      if (pick >= 0) {
        if (lane < kPieces) *key(base + j, lane) = load(rows.k + pick * rows.stride, lane);
        if (lane < kPieces) *value(base + j, lane) = load(rows.v + pick * rows.stride, lane);
        if (lane == 0) place(base + j, pick);
      }
      if (lane == 0) log_weights_[base + j] = log_weight(last - j * step.size);
    }
    __syncthreads();
  }

  /// Runs of `size` rows of `from`, a warp each; survivors' numbers go to `to`.
  __device__ void halve_runs(int32_t* to, const int32_t* from, int size, int runs, uint32_t tag,
                             const RunRows& input) {
    auto& space = *reinterpret_cast<BucketSpace*>(shared_);
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const HalvingRandom random{random_, tag};
    for (int run = warp; run < runs; run += kStreamWarps) {
      RunRows rows = input;
      rows.numbers = from + run * size;
      rows.count = size;
      const bool flip = random.coin(rows.position(0));
      halve_by_warp<T, D>(rule_.halving, rows, space.warps[warp], random);
      if (lane < size / 2) {
        const bool second = (space.warps[warp].signs[2 * lane] < 0) != flip;
        to[run * (size / 2) + lane] = rows.numbers[2 * lane + second];
      }
      __syncwarp();
    }
    __syncthreads();
  }

  __device__ void take_buckets(const Buckets& buckets, int base, const FreshRows<T>& fresh) {
    const uint64_t size = uint64_t{1} << buckets.of.strata;
    const int bucket = static_cast<int>(buckets.of.bucket), taken = static_cast<int>(buckets.count);
    auto& space = *reinterpret_cast<BucketSpace*>(shared_);
    for (int i = threadIdx.x; i < taken * bucket; i += kWalkThreads) {
      space.level0[i] = pick_of(i, size);
    }
    __syncthreads();
    const RunRows input{reinterpret_cast<const char*>(fresh.k),
                        reinterpret_cast<const char*>(fresh.v),
                        2 * fresh.stride,
                        nullptr,
                        nullptr,
                        next_,
                        0,
                        given_};
    const uint32_t tag = buckets.of.strata;
    const bool twice = buckets.levels == 2;
    halve_runs(space.level1, space.level0, bucket, taken, tag, input);
    if (twice) halve_runs(space.level2, space.level1, 2 * bucket, taken / 4, tag + 1, input);
    place_rows(twice ? space.level2 : space.level1, static_cast<int>(buckets.left()), base, fresh,
               log_weight(size << buckets.levels), threadIdx.x, kWalkThreads);
    __syncthreads();
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
    const HalvingRandom random{random_, tag};
    const bool flip = random.coin(rows.position(0));
    const float* signs = space.signs();
    if (count <= kWarpRows) {
      auto& small = *reinterpret_cast<BucketSpace*>(shared_);
      signs = small.warps[0].signs;
      if (threadIdx.x < kWarp) {
        halve_by_warp<T, D>(rule_.halving, rows, small.warps[0], random);
      }
      __syncthreads();
    } else {
      HalvingBlock<T, D>{rule_.halving, rows, space}.run(random, flip);
    }
    close_up(first, count, log_weight,
             [=](int b) { return first + 2 * b + ((signs[2 * b] < 0) != flip); });
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
  Philox random_;
  char* shared_;
  ExpressState state_;
};

}  // namespace pith::cuda
