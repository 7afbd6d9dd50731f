// The choice of the best rows of each head, and their move.

#include <algorithm>

#include "compress/cuda/choice.cuh"
#include "compress/cuda/judged_rows.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"

namespace pith::cuda {
namespace {

/// One block a head.
__global__ void __launch_bounds__(kChooseThreads)
    choose_kernel(const uint32_t* all_keys, int32_t* all_kept, size_t stride, int rows, int keep) {
  __shared__ int shared[kChooseWarps];
  const uint32_t* keys = all_keys + blockIdx.x * stride;
  int32_t* kept = all_kept + blockIdx.x * stride;
  int of_cut = keep;
  const uint32_t cut = find_cut(EachKey{keys, rows}, of_cut);
  int ties = 0;  // rows with the cut's key; the newest of_cut of them stay
  {
    int own = 0;
    for (int i = threadIdx.x; i < rows; i += kChooseThreads) own += keys[i] == cut;
    prefix_of(own, ties, shared);
  }
  int stay = 0, tie = 0;  // of the rows before
  for (int first = 0; first < rows; first += kChooseThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const uint32_t key = i < rows ? keys[i] : 0;
    int all = 0;
    const bool equal = i < rows && key == cut;
    const int nth = tie + prefix_of(equal, all, shared);
    tie += all;
    const bool stays = i < rows && (key > cut || (equal && nth >= ties - of_cut));
    const int to = stay + prefix_of(stays, all, shared);
    stay += all;
    if (i < rows) kept[stays ? to : keep + i - to] = i;
  }
}

constexpr int kMoveThreads = 256, kTogether = 8;  // pieces on their way to a thread
constexpr int kSlice = 4;                         // pieces of 16 bytes of a row that a block moves

/// Rows of one place that move.
struct RowsMove {
  void *k = nullptr, *v = nullptr;
  size_t head_stride = 0;         ///< numbers
  const int32_t* kept = nullptr;  // [heads, kept_stride]
  size_t kept_stride = 0;
  int keep = 0, rows = 0, after = 0;
};
RowsMove move_of(const SelectSpace& space, const KeepCall& call) {
  const JudgedRows& rows = call.rows;
  return {rows.k,       rows.v,    rows.head_stride, space.kept,
          space.stride, call.keep, rows.rows,        call.after};
}
/// Places that one launch takes.
template <size_t kPlaces>
struct RowsMoves {
  RowsMove of[kPlaces];
  int dim;
};

/// Which row comes to place i.
struct Sources {
  const int32_t* kept;
  int keep, rows;
  __device__ int operator()(int i) const { return i < keep ? kept[i] : rows + i - keep; }
};

/// Blocks (head, keys or values, slice of the channels), places. Rows only move down, and what a
/// step reads lies at or behind what it writes: a barrier between the two is all it takes.
template <size_t kPlaces>
__global__ void __launch_bounds__(kMoveThreads)
    move_rows_kernel(const __grid_constant__ RowsMoves<kPlaces> moves) {
  const RowsMove& move = moves.of[blockIdx.z];
  const int slices = moves.dim / 8 / kSlice, head = blockIdx.x;
  const int part = blockIdx.y / slices, slice = blockIdx.y % slices;
  const int pieces = moves.dim / 8, count = move.keep + move.after;
  auto* at = reinterpret_cast<uint4*>(static_cast<char*>(part == 0 ? move.k : move.v) +
                                      head * move.head_stride * 2) +
             slice * kSlice;
  const Sources source{move.kept + head * move.kept_stride, move.keep, move.rows};
  constexpr int kStep = kTogether * kMoveThreads / kSlice;  // rows
  const int piece = threadIdx.x % kSlice, own = threadIdx.x / kSlice;
  for (int first = 0; first < count; first += kStep) {
    uint4 held[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = first + j * (kMoveThreads / kSlice) + own;
      if (i < count) held[j] = at[static_cast<size_t>(source(i)) * pieces + piece];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = first + j * (kMoveThreads / kSlice) + own;
      if (i < count) at[static_cast<size_t>(i) * pieces + piece] = held[j];
    }
  }
}

/// The same for what lies beside the rows; a block a head.
__global__ void __launch_bounds__(kChooseThreads)
    move_side_kernel(const __grid_constant__ KeepCall call, const int32_t* kept, size_t stride) {
  const JudgedRows& rows = call.rows;
  const int head = blockIdx.x, placed = call.keep + call.after_known;
  const int count = max(placed, call.keep + (rows.mass ? call.after : 0));
  int32_t* positions = rows.positions + head * rows.side_stride;
  float* mass = rows.mass ? rows.mass + head * rows.side_stride : nullptr;
  const Sources source{kept + head * stride, call.keep, rows.rows};
  for (int first = 0; first < count; first += kChooseThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const int from = i < count ? source(i) : 0;
    int32_t position = 0;
    float own = 0;
    if (i < placed) {
      // Where positions behind the judged rows are stored, theirs are too.
      const bool stored = i >= call.keep || from < rows.known;
      position =
          stored ? positions[from] : static_cast<int32_t>(rows.first_position) + from - rows.known;
    }
    if (mass && i < count) own = mass[from] * (i < call.keep ? call.mass_factor : 1);
    __syncthreads();
    if (i < placed) positions[i] = position;
    if (mass && i < count) mass[i] = own;
    __syncthreads();
  }
}

template <size_t kPlaces>
void launch_moves(const RowsMoves<kPlaces>& moves, int heads, size_t places, cudaStream_t stream) {
  const dim3 grid(heads, 2 * (moves.dim / 8 / kSlice), static_cast<unsigned>(places));
  launch_kernel(move_rows_kernel<kPlaces>, {grid, kMoveThreads}, stream, "moving rows of the cache",
                moves);
}

}  // namespace

void choose_rows(const SelectSpace& space, int heads, int rows, int keep, cudaStream_t stream) {
  launch_kernel(choose_kernel, {heads, kChooseThreads}, stream, "the choice of rows", space.keys,
                space.kept, space.stride, rows, keep);
}

void move_rows(const SelectSpace& space, const KeepCall& call, cudaStream_t stream) {
  launch_moves<1>({{move_of(space, call)}, call.rows.dim}, call.rows.heads, 1, stream);
}

void move_up(std::span<const KeepCall> calls, cudaStream_t stream) {
  constexpr size_t kPlaces = 64;
  for (size_t first = 0; first < calls.size(); first += kPlaces) {
    const auto some = calls.subspan(first, std::min(kPlaces, calls.size() - first));
    RowsMoves<kPlaces> moves{{}, some.front().rows.dim};
    for (size_t i = 0; i < some.size(); ++i) moves.of[i] = move_of({}, some[i]);
    launch_moves(moves, some.front().rows.heads, some.size(), stream);
  }
}

void move_sides(const SelectSpace& space, const KeepCall& call, cudaStream_t stream) {
  launch_kernel(move_side_kernel, {call.rows.heads, kChooseThreads}, stream,
                "moving rows of the cache", call, space.kept, space.stride);
}

void keep_rows(const SelectSpace& space, const KeepCall& call, cudaStream_t stream) {
  move_rows(space, call, stream);
  move_sides(space, call, stream);
}

}  // namespace pith::cuda
