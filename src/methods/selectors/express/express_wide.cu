// Express, a job's many rows by all blocks of the device. The host goes through the steps of
// plan/coreset.h: whole buckets are halved side by side, straight from the new rows; halvings of
// many rows go panel by panel (halve_wide); between them one block per head does what is small.

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "methods/selectors/express/express_stream.cuh"

namespace pith::cuda {
namespace {

/// A launch's part of a job.
struct PartCall {
  ExpressJob job;  ///< its rows and its state are those of the part
  ExpressPart part;
};
/// Numbers of rows of all heads.
struct Numbers {
  int32_t* of = nullptr;  // [heads, stride]; null: all rows in order
  int stride = 0;
};

template <class T, int D>
__global__ void __launch_bounds__(kWalkThreads) begin_kernel(const __grid_constant__ PartCall p) {
  HeadStream<T, D>(p.job, blockIdx.x, nullptr).begin_sources();
}

template <class T, int D>
__global__ void __launch_bounds__(kWalkThreads, 1) part_kernel(const __grid_constant__ PartCall p) {
  const int head = static_cast<int>(blockIdx.x);
  HeadStream<T, D>(p.job, head, launched_shared<char>()).take(p.job.rows, head, p.part);
}

/// Blocks (picks, head).
template <class T, int D>
__global__ void __launch_bounds__(kWalkThreads)
    pick_kernel(const __grid_constant__ PartCall p, Numbers out, uint64_t size) {
  const int head = static_cast<int>(blockIdx.y);
  const int i = static_cast<int>(blockIdx.x * kWalkThreads + threadIdx.x);
  if (i >= out.stride) return;
  HeadStream<T, D> stream(p.job, head, nullptr);
  stream.begin(p.job.rows, head, p.part);
  out.of[static_cast<size_t>(head) * out.stride + i] = stream.pick_of(i, size);
}

/// Blocks (pieces of rows, head): `count` rows go behind those stored.
template <class T, int D>
__global__ void __launch_bounds__(kWalkThreads)
    place_kernel(const __grid_constant__ PartCall p, Numbers rows, int count, uint64_t weight) {
  const int head = static_cast<int>(blockIdx.y);
  HeadStream<T, D> stream(p.job, head, nullptr);
  const FreshRows<T> fresh = stream.begin(p.job.rows, head, p.part);
  const int32_t* numbers = rows.of ? rows.of + static_cast<size_t>(head) * rows.stride : nullptr;
  stream.place_rows(numbers, count, static_cast<int>(p.job.state.settled()), fresh,
                    stream.log_weight(weight), blockIdx.x * kWalkThreads + threadIdx.x,
                    gridDim.x * kWalkThreads);
}

/// A block per head: rows kept[b] from step.first on are what a halving left.
template <class T, int D>
__global__ void __launch_bounds__(kWalkThreads)
    close_up_kernel(const __grid_constant__ PartCall p, Numbers kept, Step step) {
  const int head = static_cast<int>(blockIdx.x), first = static_cast<int>(step.first);
  HeadStream<T, D> stream(p.job, head, nullptr);
  const int32_t* numbers = kept.of + static_cast<size_t>(head) * kept.stride;
  stream.close_up(first, static_cast<int>(step.rows), stream.log_weight(step.weight),
                  [=](int b) { return first + numbers[b]; });
}

/// The steps of one job, which stands where the next one begins.
class WideTake {
 public:
  WideTake(const ExpressJob& job, MemoryCounter& memory, cudaStream_t stream)
      : p_{job, {kWidePanel, static_cast<int>(job.state.rows())}},
        shape_(job.rule.shape),
        memory_(memory),
        stream_(stream) {}

  void run() {
    if (p_.job.arrays.sources) {
      with_rows([&]<class T, int D>() {
        launch_kernel(begin_kernel<T, D>, {heads(), kWalkThreads}, stream_, "express", p_);
      });
    }
    while (take_buckets() || take_first() || take_part() || halve()) {
    }
  }

 private:
  unsigned heads() const { return static_cast<unsigned>(p_.job.site.heads); }
  uint64_t left() const { return static_cast<uint64_t>(p_.job.rows.count); }
  template <class F>
  void with_rows(const F& f) const {
    with_rows_of<256>(p_.job.site.dtype, p_.job.site.dim, f);
  }
  dim3 grid_for(size_t threads) const {
    return dim3(static_cast<unsigned>((threads + kWalkThreads - 1) / kWalkThreads), heads());
  }

  /// The next `count` rows have been taken.
  void go_on(const ExpressState& state, uint64_t count) {
    NewDeviceRows& rows = p_.job.rows;
    const size_t bytes = count * rows.row_stride * sizeof(uint16_t);
    rows.k = static_cast<const std::byte*>(rows.k) + bytes;
    rows.v = static_cast<const std::byte*>(rows.v) + bytes;
    rows.count -= static_cast<int>(count);
    if (rows.positions) rows.positions += count;
    if (rows.position >= 0) rows.position += static_cast<int64_t>(count);
    p_.part.source += static_cast<int>(count);
    p_.job.state = state;
  }

  /// Whole buckets of more rows than a warp halves.
  Buckets next_wide_buckets(ExpressState& state, uint64_t n) const {
    const Buckets b = next_buckets(state, shape_, n, UINT32_MAX, shape_.target);
    return b.of.bucket > kWarpRows ? b : Buckets{};
  }

  bool take_buckets() {
    ExpressState after = p_.job.state;
    const Buckets b = next_wide_buckets(after, left());
    if (b.count == 0) return false;
    const auto bucket = static_cast<int>(b.of.bucket), runs = static_cast<int>(b.count);
    const int picks = runs * bucket;
    const DeviceArray<int32_t> room(memory_, MemoryKind::kScratch, size_t{heads()} * 2 * picks,
                                    stream_);
    const Numbers level0{room.data(), picks};
    const Numbers level1{level0.of + heads() * level0.stride, picks / 2};
    const Numbers level2{level1.of + heads() * level1.stride, picks / 4};
    const uint64_t size = uint64_t{1} << b.of.strata;
    with_rows([&]<class T, int D>() {
      launch_kernel(pick_kernel<T, D>, {grid_for(picks), kWalkThreads}, stream_, "express", p_,
                    level0, size);
    });
    halve_buckets(level1, level0, bucket, b.of.strata);
    if (b.levels == 2) halve_buckets(level2, level1, 2 * bucket, b.of.strata + 1);
    place(b.levels == 2 ? level2 : level1, static_cast<int>(b.left()), size << b.levels);
    go_on(after, b.rows());
    return true;
  }

  /// Runs of `size` of the numbers.
  void halve_buckets(const Numbers& to, const Numbers& from, int size, uint32_t tag) {
    const NewDeviceRows& rows = p_.job.rows;
    HalvingCall call = halving_call(size, tag);
    call.k = rows.k;
    call.v = rows.v;
    call.head_stride = rows.head_stride;
    call.row_stride = rows.row_stride;
    call.rows = from.of;
    call.rows_stride = from.stride;
    call.positions = rows.positions;
    call.positions_stride = rows.positions_stride;
    call.first_position =
        rows.position >= 0 ? rows.position
                           : p_.job.site.first_position + static_cast<int64_t>(p_.job.state.seen);
    call.kept = to.of;
    call.kept_stride = to.stride;
    call.groups = from.stride / size;
    run(call);
  }
  HalvingCall halving_call(int size, uint32_t tag) const {
    const ExpressSite& site = p_.job.site;
    HalvingCall call;
    call.dtype = site.dtype;
    call.dim = site.dim;
    call.heads = site.heads;
    call.size = size;
    call.seed = site.seed;
    call.layer = site.layer;
    call.first_head = site.first_head;
    call.tag = tag;
    return call;
  }
  void run(const HalvingCall& call) {
    if (call.size <= kWidePanel) return halve_batch(p_.job.rule.halving, call, stream_);
    const DeviceArray<float> room(memory_, MemoryKind::kScratch, wide_numbers(call), stream_);
    halve_wide(p_.job.rule.halving, call, room.data(), stream_);
  }

  void place(const Numbers& rows, int count, uint64_t weight) const {
    with_rows([&]<class T, int D>() {
      const size_t pieces = static_cast<size_t>(count) * (D / 8);
      launch_kernel(place_kernel<T, D>, {grid_for(pieces), kWalkThreads}, stream_, "express", p_,
                    rows, count, weight);
    });
  }

  /// Rows of the exact phase.
  bool take_first() {
    ExpressState after = p_.job.state;
    if (after.tau > 1) return false;
    const Step step = next_step(after, shape_, left());
    if (step.rows == 0 || step.op != Op::kMove) return false;
    place({}, static_cast<int>(step.rows), 1);
    go_on(after, step.rows);
    return true;
  }

  /// Rows and small halvings before whole buckets and wide halvings.
  bool take_part() {
    const ExpressState before = p_.job.state;
    ExpressState after = before;
    uint64_t taken = 0;
    for (;;) {
      ExpressState next = after;
      if (next_wide_buckets(next, left() - taken).count > 0) break;
      next = after;
      const Step step = next_step(next, shape_, left() - taken);
      if (step.rows == 0 || (step.op == Op::kHalve && step.rows > p_.part.most)) break;
      if (step.op != Op::kHalve) taken += step.rows;
      after = next;
    }
    if (after == before) return false;
    PartCall part = p_;
    part.job.rows.count = static_cast<int>(taken);
    with_rows([&]<class T, int D>() {
      const size_t bytes = std::max(sizeof(BucketSpace), RunSpace<D>::bytes(kWidePanel));
      launch_kernel(part_kernel<T, D>, {heads(), kWalkThreads, bytes}, stream_, "express", part);
    });
    go_on(after, taken);
    return true;
  }

  /// A halving of more than kWidePanel of the rows that are stored.
  bool halve() {
    ExpressState after = p_.job.state;
    const Step step = next_step(after, shape_, left());
    if (step.rows == 0) return false;
    const ExpressArrays& a = p_.job.arrays;
    const auto size = static_cast<int>(step.rows);
    const DeviceArray<int32_t> room(memory_, MemoryKind::kScratch, size_t{heads()} * step.rows / 2,
                                    stream_);
    const Numbers kept{room.data(), size / 2};
    HalvingCall call = halving_call(size, step.tag);
    const size_t row_bytes = sizeof(uint16_t) * static_cast<size_t>(call.dim);
    call.k = static_cast<const std::byte*>(a.k) + step.first * row_bytes;
    call.v = static_cast<const std::byte*>(a.v) + step.first * row_bytes;
    call.row_stride = static_cast<size_t>(call.dim);
    call.head_stride = static_cast<size_t>(a.capacity) * call.row_stride;
    call.row_positions = a.positions + step.first;
    call.positions_stride = static_cast<size_t>(a.capacity);
    call.kept = kept.of;
    call.kept_stride = kept.stride;
    call.groups = 1;
    run(call);
    with_rows([&]<class T, int D>() {
      launch_kernel(close_up_kernel<T, D>, {heads(), kWalkThreads}, stream_, "express", p_, kept,
                    step);
    });
    go_on(after, 0);
    return true;
  }

  PartCall p_;
  const ExpressShape shape_;
  MemoryCounter& memory_;
  cudaStream_t stream_;
};

}  // namespace

void express_take_wide(const ExpressJob& job, MemoryCounter& memory, cudaStream_t stream) {
  WideTake(job, memory, stream).run();
}

bool express_takes_wide(const ExpressJobs& jobs) {
  constexpr int kFewer = 4;  // blocks than the device has multiprocessors
  int heads = 0;
  for (int i = 0; i < jobs.count; ++i) {
    const ExpressJob& job = jobs.job[i];
    const uint32_t s = job.rule.shape.target;
    if (s < 2 * kWidePanel || static_cast<uint32_t>(job.rows.count) < s) return false;
    heads += job.site.heads;
  }
  return kFewer * heads <= device_info().multiprocessors;
}

}  // namespace pith::cuda
