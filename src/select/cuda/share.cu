#include "select/cuda/share.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "select/cuda/choice.cuh"

namespace pith::cuda {
namespace {

constexpr uint32_t kSafe = ~0u;  // above the key of any score

/// A block per head: its `least` best rows get a key above all others.
__global__ void __launch_bounds__(kChooseThreads)
    safe_kernel(uint32_t* all_keys, RaggedHeads heads, int least) {
  __shared__ int shared[kChooseWarps];
  uint32_t* keys = all_keys + heads.begins[blockIdx.x];
  const int rows = heads.rows[blockIdx.x];
  const Cut cut = find_cut(EachKey{keys, rows}, min(least, rows));
  int newer = 0;  // rows of the cut's key behind these
  for (int end = rows; end > 0; end -= kChooseThreads) {
    const int i = end - 1 - static_cast<int>(threadIdx.x);
    const uint32_t key = i >= 0 ? keys[i] : 0;
    int all = 0;
    const bool equal = i >= 0 && key == cut.key;
    const int nth = newer + count_before(equal, all, shared);
    newer += all;
    if (i >= 0 && (key > cut.key || (equal && nth < cut.stay))) keys[i] = kSafe;
  }
}

/// f(row) for this thread's share of the rows with a key, by their numbers in their heads.
struct EachRowOf {
  const uint32_t* keys;
  RaggedHeads heads;
  int count;
  uint32_t key;
  template <class F>
  __device__ void operator()(const F& f) const {
    for (int h = 0; h < count; ++h) {
      const uint32_t* own = keys + heads.begins[h];
      for (int i = threadIdx.x; i < heads.rows[h]; i += kChooseThreads)
        if (own[i] == key) f(static_cast<uint32_t>(i));
    }
  }
};

/// A block per head. Each finds the layer's cut for itself: one launch, and nobody waits.
__global__ void __launch_bounds__(kChooseThreads)
    share_kernel(const uint32_t* keys, RaggedHeads heads, int count, int keep, int32_t* all_kept,
                 int32_t* stay) {
  __shared__ int shared[kChooseWarps];
  const int head = blockIdx.x, last = count - 1;
  const Cut cut = find_cut(EachKey{keys, heads.begins[last] + heads.rows[last]}, keep);
  const Cut row_cut = find_cut(EachRowOf{keys, heads, count, cut.key}, cut.stay);
  // Of the rows with the cut's key that are just as new those of the first heads stay.
  int before = 0;
  for (int h = 0; h < head; ++h) {
    before += row_cut.key < static_cast<uint32_t>(heads.rows[h]) &&
              keys[heads.begins[h] + static_cast<size_t>(row_cut.key)] == cut.key;
  }
  const uint32_t* own = keys + heads.begins[head];
  int32_t* kept = all_kept + heads.begins[head];
  const int rows = heads.rows[head];
  int kept_before = 0;
  for (int first = 0; first < rows; first += kChooseThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const auto row = static_cast<uint32_t>(i);
    const uint32_t key = i < rows ? own[i] : 0;
    const bool newer = row > row_cut.key || (row == row_cut.key && before < row_cut.stay);
    const bool stays = i < rows && (key > cut.key || (key == cut.key && newer));
    int all = 0;
    const int to = kept_before + count_before(stays, all, shared);
    kept_before += all;
    if (stays) kept[to] = i;
  }
  if (threadIdx.x == 0) stay[head] = kept_before;
}

__global__ void place_kernel(const __grid_constant__ PlaceCall call) {
  int begin = 0;
  for (int h = 0; h < call.heads; ++h) {
    const int rows = call.from[h] + call.more;
    call.rows[h] = rows;
    call.begins[h] = begin;
    begin += (rows + call.unit - 1) / call.unit * call.unit;
  }
}

constexpr int kLineThreads = 256, kLineBlocks = 64;  // blocks a head

__device__ int32_t position_of(const CandidateRows& rows, int head, int row) {
  return row < rows.known ? rows.positions[rows.beside(head, rows.side_stride) + row]
                          : static_cast<int32_t>(rows.first_position) + row - rows.known;
}

/// Blocks (pieces of rows, head); D / 8 threads per row, 16 bytes of its key and value each.
__global__ void __launch_bounds__(kLineThreads)
    line_up_kernel(const __grid_constant__ LineUpCall call) {
  const int head = blockIdx.y, pieces = call.fresh.dim / 8, piece = threadIdx.x % pieces;
  const int of_block = kLineThreads / pieces, count = call.to.rows[head];
  const int there = call.held.count(head);
  const size_t begin = call.to.at(head, 0);
  const int32_t* kept = call.kept ? call.kept + call.named.at(head, 0) : nullptr;
  for (int i = blockIdx.x * of_block + static_cast<int>(threadIdx.x) / pieces; i < count;
       i += kLineBlocks * of_block) {
    const int source = kept ? kept[i] : i;
    const CandidateRows& rows = source < there ? call.held : call.fresh;
    const int row = source < there ? source : source - there;
    if (call.k) {
      const size_t from = rows.numbers_at(head) / 8 + static_cast<size_t>(row) * pieces + piece;
      const size_t to = (begin + i) * pieces + piece;
      static_cast<uint4*>(call.k)[to] = static_cast<const uint4*>(rows.k)[from];
      static_cast<uint4*>(call.v)[to] = static_cast<const uint4*>(rows.v)[from];
    }
    if (piece > 0) continue;
    if (call.positions) call.positions[begin + i] = position_of(rows, head, row);
    if (call.mass) {
      call.mass[begin + i] =
          rows.mass[rows.beside(head, rows.side_stride) + row] * call.mass_factor;
    }
  }
}

/// A thread per row.
__global__ void __launch_bounds__(kLineThreads) name_kernel(const __grid_constant__ NameCall call) {
  const int at = blockIdx.x * kLineThreads + static_cast<int>(threadIdx.x);
  if (at >= call.count) return;
  int head = call.heads - 1;
  while (head > 0 && call.to.begins[head] > at) --head;
  const int i = at - call.to.begins[head];
  int held = call.zero, fresh = call.stays;
  if (i < call.to.rows[head]) {
    const int source = call.kept[call.named.at(head, 0) + i], there = call.there.rows[head];
    if (source < there)
      held = call.there.begins[head] + source;
    else
      fresh = head * call.fresh_stride + source - there;
  }
  call.held[at] = held;
  call.fresh[at] = fresh;
}

}  // namespace

void choose_shared(const SelectSpace& space, const CandidateRows& rows, const SharedChoice& choice,
                   cudaStream_t stream) {
  if (choice.least > 0) {
    launch_kernel(safe_kernel, {rows.heads, kChooseThreads}, stream, "the rows that a head keeps",
                  space.keys, rows.ragged, choice.least);
  }
  launch_kernel(share_kernel, {rows.heads, kChooseThreads}, stream,
                "the choice of rows among heads", space.keys, rows.ragged, rows.heads, choice.keep,
                space.kept, space.stay);
}

void place_heads(const PlaceCall& call, cudaStream_t stream) {
  launch_kernel(place_kernel, {1, 1}, stream, "places of heads", call);
}

void line_up(const LineUpCall& call, cudaStream_t stream) {
  launch_kernel(line_up_kernel, {dim3(kLineBlocks, call.fresh.heads), kLineThreads}, stream,
                "moving rows of heads that share a budget", call);
}

void name_rows(const NameCall& call, cudaStream_t stream) {
  if (call.count == 0) return;
  launch_kernel(name_kernel, {(call.count + kLineThreads - 1) / kLineThreads, kLineThreads}, stream,
                "moving codes of heads that share a budget", call);
}

}  // namespace pith::cuda
