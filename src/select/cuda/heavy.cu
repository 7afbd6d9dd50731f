#include "select/cuda/heavy.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/in_groups.h"
#include "kernels/cuda/launch.cuh"
#include "select/cuda/choice.cuh"
#include "select/cuda/directions.cuh"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256, kSideThreads = 1024;

__device__ int32_t position_of(const CandidateRows& rows, int head, int row) {
  return row < rows.known ? rows.positions[head * rows.side_stride + row]
                          : static_cast<int32_t>(rows.first_position) + row - rows.known;
}

/// The room in a launch's parameters.
constexpr size_t kMostLayers = 32;
template <class Call>
struct CallsOfLayers {
  Call of[kMostLayers];
};

/// One head's heavy rows, in the order in which they came: those that stayed, whose numbers are in
/// kept, then the next ones.
template <class T, int D>
class HeadSelection {
 public:
  __device__ HeadSelection(const HeavyCall& call, int head, int selections = 0)
      : rows_(call.rows),
        space_(call.space),
        head_(head),
        keys_(call.space.keys + head * call.space.stride),
        kept_(call.space.kept + head * call.space.stride),
        mass_(rows_.mass ? rows_.mass + head * rows_.side_stride : nullptr),
        stay_(static_cast<int>(call.sizes.budget)),
        interval_(static_cast<int>(call.sizes.interval)),
        by_key_(static_cast<int>(call.sizes.by_key)),
        selections_(selections) {}

  /// All selections, by one block.
  __device__ void select_all() {
    for (; more(); ++selections_) {
      by_mass();
      if (by_key_ > 0) by_key();
      choose();
    }
  }

  /// A selection by many blocks: one block ends the selection before it and gives keys of mass,
  __device__ void begin() {
    if (selections_ > 0) {
      --selections_;
      choose();
      ++selections_;
    }
    if (more()) by_mass();
  }
  /// a block of kShareThreads threads per part sums directions,
  __device__ void sum(int part) {
    __shared__ PartRoom<T, D> room;
    const float of_part = sum_directions<T, D>(rows_, head_, rows(), part, room);
    if (threadIdx.x < D) sums()[part * D + threadIdx.x] = of_part;
  }
  /// and blocks of kShareThreads threads give keys to every blocks-th run of rows.
  __device__ void compare(int block, int blocks) {
    __shared__ float sum[D];
    if (threadIdx.x < D) {
      float all = 0;
      for (int part = 0; part < kSelectSums; ++part) all += sums()[part * D + threadIdx.x];
      sum[threadIdx.x] = all;
    }
    __syncthreads();
    set_keys(sum, block * Share::kRows + static_cast<int>(threadIdx.x) / Share::kLanes,
             blocks * Share::kRows);
  }

 private:
  using Share = RowShare<T, D>;
  static constexpr int kParts = kChooseThreads / kShareThreads;  // at a time
  static constexpr uint32_t kStays = ~0u;                        // above the key of any score

  __device__ bool more() const { return stay_ + (selections_ + 1) * interval_ <= rows_.rows; }
  __device__ auto rows() const {
    return RowList{stay_ + interval_, [this](int i) { return row_of(i); }};
  }
  __device__ float* sums() const { return space_.sums + head_ * kSelectSums * D; }
  __device__ void choose() {
    const int left = stay_ + selections_ * interval_;
    choose_among(
        keys_, stay_ + interval_, stay_, [this](int i) { return row_of(i); },
        [this, left](int row, bool stays, int nth) { kept_[stays ? nth : left + nth] = row; });
    __syncthreads();
  }

  __device__ int row_of(int i) const {
    return selections_ > 0 && i < stay_ ? kept_[i] : i + selections_ * interval_;
  }
  /// Keys of mass, or, where rows stay for their keys too, kStays for those with the most and 0.
  __device__ void by_mass() {
    const int most = stay_ + interval_, stay = stay_ - by_key_;
    for (int i = threadIdx.x; i < most; i += kChooseThreads)
      keys_[i] = stay > 0 ? key_of(mass_[row_of(i)]) : 0;
    if (stay == 0 || by_key_ == 0) return;
    choose_among(
        keys_, most, stay, [](int i) { return i; },
        [this](int i, bool stays, int) { keys_[i] = stays ? kStays : 0; });
  }
  /// Keys of the others.
  __device__ void by_key() {
    __shared__ PartRoom<T, D> room[kParts];
    __shared__ float sums[kParts][D], sum[D];
    const int group = threadIdx.x / kShareThreads, thread = threadIdx.x % kShareThreads;
    float all = 0;
    for (int part = 0; part < kSelectSums; part += kParts) {
      const float of_part = sum_directions<T, D>(rows_, head_, rows(), part + group, room[group]);
      if (thread < D) sums[group][thread] = of_part;
      __syncthreads();
      for (int i = 0; i < kParts && threadIdx.x < D; ++i) all += sums[i][threadIdx.x];
    }
    if (threadIdx.x < D) sum[threadIdx.x] = all;
    __syncthreads();
    set_keys(sum, static_cast<int>(threadIdx.x) / Share::kLanes, kParts * Share::kRows);
  }
  /// Of every apart-th row from `first` on; threads of a warp that share no row go on together.
  __device__ void set_keys(const float* sum, int first, int apart) {
    constexpr int kTogether = 3;  // rows on their way to a thread
    const int most = stay_ + interval_, own = first % Share::kRows;
    for (; first - own < most; first += kTogether * apart) {
      const auto share = [&](int j) {
        return Share(rows_, head_, row_of(min(first + j * apart, most - 1)));
      };
      const Share shares[kTogether] = {share(0), share(1), share(2)};
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const uint32_t key = unlikeness<T, D>(shares[j], sum);
        const int i = first + j * apart;
        if (Share::lane() == 0 && i < most && keys_[i] != kStays) keys_[i] = key;
      }
    }
  }

  const CandidateRows& rows_;
  const SelectSpace& space_;
  int head_;
  uint32_t* keys_;     // [stay + interval], of one selection
  int32_t* kept_;      // [rows]: those that stay, then those that left
  const float* mass_;  // [rows]
  int stay_, interval_, by_key_;
  int selections_;
};

/// Blocks (head, layer).
template <class T, int D>
__global__ void __launch_bounds__(kChooseThreads)
    select_heavy_kernel(const __grid_constant__ CallsOfLayers<HeavyCall> calls) {
  const HeavyCall& call = calls.of[blockIdx.y];
  if (static_cast<int>(blockIdx.x) >= call.rows.heads) return;
  HeadSelection<T, D>(call, blockIdx.x).select_all();
}

/// One of a place's selections, by many blocks.
struct WideCall {
  HeavyCall call;
  int selections;  // before it
};

/// Blocks (head).
template <class T, int D>
__global__ void __launch_bounds__(kChooseThreads)
    begin_wide_kernel(const __grid_constant__ WideCall p) {
  wait_for_predecessor();
  let_successor_start();
  HeadSelection<T, D>(p.call, blockIdx.x, p.selections).begin();
}

/// Blocks (part, head).
template <class T, int D>
__global__ void __launch_bounds__(kShareThreads)
    sum_wide_kernel(const __grid_constant__ WideCall p) {
  wait_for_predecessor();
  let_successor_start();
  HeadSelection<T, D>(p.call, blockIdx.y, p.selections).sum(blockIdx.x);
}

/// Blocks (some of the rows, head).
template <class T, int D>
__global__ void __launch_bounds__(kShareThreads)
    compare_wide_kernel(const __grid_constant__ WideCall p) {
  wait_for_predecessor();
  let_successor_start();
  HeadSelection<T, D>(p.call, blockIdx.y, p.selections).compare(blockIdx.x, gridDim.x);
}

/// Blocks (pieces of 16 bytes, head, layer x keys or values).
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ CallsOfLayers<GatherCall> calls) {
  const GatherCall& call = calls.of[blockIdx.z / 2];
  const CandidateRows& rows = call.rows;
  const int pieces = rows.dim / 8, head = blockIdx.y;
  const int at = blockIdx.x * kThreads + threadIdx.x, row = at / pieces, piece = at % pieces;
  if (row >= call.count || head >= rows.heads) return;
  const int from = call.kept[head * call.kept_stride + call.first + row];
  const bool values = blockIdx.z % 2 == 1;
  const auto* source = static_cast<const char*>(values ? rows.v : rows.k);
  auto* to = static_cast<char*>(values ? call.to.v : call.to.k);
  const auto* in = reinterpret_cast<const uint4*>(source + head * rows.head_stride * 2);
  auto* out = reinterpret_cast<uint4*>(to + head * call.to.head_stride * 2);
  out[(static_cast<size_t>(call.to.row) + row) * pieces + piece] =
      in[static_cast<size_t>(from) * pieces + piece];
  if (call.positions && !values && piece == 0) {
    call.positions[head * call.positions_stride + call.to.row + row] =
        position_of(rows, head, from);
  }
}

/// A block per head: through room of its own, since rows change places both ways. Rows that stay
/// for their keys alone carry no mass.
__global__ void __launch_bounds__(kSideThreads)
    sides_kernel(const __grid_constant__ CandidateRows rows,
                 const __grid_constant__ SelectSpace space, int stay) {
  const int head = blockIdx.x, leave = rows.rows - stay;
  const int32_t* kept = space.kept + head * space.stride;
  auto* positions = reinterpret_cast<int32_t*>(space.keys + head * space.stride);
  float* masses = space.logits + head * space.stride;
  float* mass = rows.mass ? rows.mass + head * rows.side_stride : nullptr;
  for (int i = threadIdx.x; i < rows.rows; i += kSideThreads) {
    const int from = kept[i < leave ? stay + i : i - leave];
    positions[i] = position_of(rows, head, from);
    if (mass) masses[i] = mass[from];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows.rows; i += kSideThreads) {
    rows.positions[head * rows.side_stride + i] = positions[i];
    if (mass) mass[i] = masses[i];
  }
}

/// The most heads of any.
template <class Call>
int most_heads(std::span<const Call> calls) {
  return most_of(calls, [](const Call& call) { return call.rows.heads; });
}

template <class Call>
CallsOfLayers<Call> params_of(std::span<const Call> calls) {
  CallsOfLayers<Call> params{};
  std::ranges::copy(calls, params.of);
  return params;
}

int selections_of(const HeavyCall& call) {
  return static_cast<int>((call.rows.rows - call.sizes.budget) / call.sizes.interval);
}

bool is_wide(const HeavyCall& call) { return call.sizes.by_key > 0 && selections_of(call) > 1; }

/// A selection after the other, each by many blocks, as one block makes them: most of one is sums
/// and products of all rows' keys.
template <class T, int D>
void choose_wide(const HeavyCall& call, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(call.rows.heads);
  const size_t most = call.sizes.most();
  constexpr unsigned kBlocks = 32;  // of a head, at most
  const auto blocks =
      std::min<unsigned>(kBlocks, (most + RowShare<T, D>::kRows - 1) / RowShare<T, D>::kRows);
  const auto go = [&](auto kernel, dim3 grid, int threads, const WideCall& p) {
    launch_early(kernel, {grid, static_cast<unsigned>(threads)}, p, stream,
                 "the choice of heavy rows");
  };
  const int count = selections_of(call);
  for (int i = 0; i <= count; ++i) {
    const WideCall p{call, i};
    go(begin_wide_kernel<T, D>, heads, kChooseThreads, p);
    if (i == count) break;
    go(sum_wide_kernel<T, D>, {kSelectSums, heads}, kShareThreads, p);
    go(compare_wide_kernel<T, D>, {blocks, heads}, kShareThreads, p);
  }
}

}  // namespace

void choose_heavy(const HeavyCall& call, cudaStream_t stream) { choose_heavy({&call, 1}, stream); }

void choose_heavy(std::span<const HeavyCall> calls, cudaStream_t stream) {
  if (calls.size() == 1 && is_wide(calls.front())) {
    with_shares(calls.front().rows,
                [&]<class T, int D>() { choose_wide<T, D>(calls.front(), stream); });
    return;
  }
  in_groups(calls, kMostLayers, [&](std::span<const HeavyCall> some) {
    const dim3 grid(most_heads(some), static_cast<unsigned>(some.size()));
    with_shares(some.front().rows, [&]<class T, int D>() {
      launch_kernel(select_heavy_kernel<T, D>, {grid, kChooseThreads}, stream,
                    "the choice of heavy rows", params_of(some));
    });
  });
}

void gather_rows(const GatherCall& call, cudaStream_t stream) { gather_rows({&call, 1}, stream); }

void gather_rows(std::span<const GatherCall> calls, cudaStream_t stream) {
  in_groups(calls, kMostLayers, [&](std::span<const GatherCall> some) {
    const int most = most_of(some, [](const GatherCall& call) { return call.count; });
    if (most == 0) return;
    const int pieces = most * (some.front().rows.dim / 8);
    const dim3 grid((pieces + kThreads - 1) / kThreads, most_heads(some),
                    2 * static_cast<unsigned>(some.size()));
    launch_kernel(gather_kernel, {grid, kThreads}, stream, "moving heavy rows", params_of(some));
  });
}

void split_heavy(std::span<const HeavyWork> layers, cudaStream_t stream) {
  std::vector<HeavyCall> choices;
  std::vector<GatherCall> gathers;
  std::vector<KeepCall> keeps;
  for (const HeavyWork& work : layers) {
    choices.push_back(work.choice);
    gathers.push_back(work.gather);
    keeps.push_back(work.keep);
  }
  choose_heavy(choices, stream);
  gather_rows(gathers, stream);
  keep_rows(keeps, stream);
}

void leave_first(const SelectSpace& space, const CandidateRows& rows, int stay,
                 const RowTarget& room, cudaStream_t stream) {
  const int leave = rows.rows - stay;
  GatherCall call{rows, space.kept, space.stride, stay, leave, room};
  call.to.row = 0;
  gather_rows(call, stream);
  call.first = 0;
  call.count = stay;
  call.to.row = leave;
  gather_rows(call, stream);
  const size_t bytes = static_cast<size_t>(rows.rows) * rows.dim * 2;
  const auto back = [&](void* to, const void* from) {
    check(cudaMemcpy2DAsync(to, rows.head_stride * 2, from, room.head_stride * 2, bytes, rows.heads,
                            cudaMemcpyDeviceToDevice, stream),
          "moving heavy rows");
  };
  back(rows.k, room.k);
  back(rows.v, room.v);
}

void leave_first_sides(const SelectSpace& space, const CandidateRows& rows, int stay,
                       cudaStream_t stream) {
  launch_kernel(sides_kernel, {rows.heads, kSideThreads}, stream, "moving heavy rows", rows, space,
                stay);
}

}  // namespace pith::cuda
