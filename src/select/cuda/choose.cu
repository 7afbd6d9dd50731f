// The choice of the best rows of each head, and their move.

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/in_groups.h"
#include "kernels/cuda/launch.cuh"
#include "select/cuda/candidate_rows.h"
#include "select/cuda/choice.cuh"

namespace pith::cuda {
namespace {

/// One block per head.
__global__ void __launch_bounds__(kChooseThreads)
    choose_kernel(const uint32_t* all_keys, int32_t* all_kept, size_t stride, int rows, int keep) {
  int32_t* kept = all_kept + blockIdx.x * stride;
  choose_among(
      all_keys + blockIdx.x * stride, rows, keep, [](int i) { return i; },
      [&](int row, bool stays, int nth) { kept[stays ? nth : keep + nth] = row; });
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
RowsMove move_of(const KeepCall& call) {
  const CandidateRows& rows = call.rows;
  return {rows.k,           rows.v,    rows.head_stride, call.kept,
          call.kept_stride, call.keep, rows.rows,        call.after};
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

template <size_t kPlaces>
struct SideMoves {
  KeepCall of[kPlaces];
};

/// The same for what lies beside the rows; blocks (head, place).
template <size_t kPlaces>
__global__ void __launch_bounds__(kChooseThreads)
    move_side_kernel(const __grid_constant__ SideMoves<kPlaces> moves) {
  const KeepCall& call = moves.of[blockIdx.y];
  const CandidateRows& rows = call.rows;
  if (static_cast<int>(blockIdx.x) >= rows.heads) return;
  const int head = blockIdx.x, placed = call.keep + call.after_known;
  const int count = max(placed, call.keep + (rows.mass ? call.after : 0));
  int32_t* positions = rows.positions + head * rows.side_stride;
  float* mass = rows.mass ? rows.mass + head * rows.side_stride : nullptr;
  const Sources source{call.kept + head * call.kept_stride, call.keep, rows.rows};
  for (int first = 0; first < count; first += kChooseThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const int from = i < count ? source(i) : 0;
    int32_t position = 0;
    float own = 0;
    if (i < placed) {
      // Where positions behind the rows of the selection are stored, theirs are too.
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
void move_rows_of(std::span<const KeepCall> calls, cudaStream_t stream) {
  const CandidateRows& rows = calls.front().rows;
  RowsMoves<kPlaces> moves{{}, rows.dim};
  for (size_t i = 0; i < calls.size(); ++i) moves.of[i] = move_of(calls[i]);
  const dim3 grid(rows.heads, 2 * (rows.dim / 8 / kSlice), static_cast<unsigned>(calls.size()));
  launch_kernel(move_rows_kernel<kPlaces>, {grid, kMoveThreads}, stream, "moving rows of the cache",
                moves);
}

template <size_t kPlaces>
void move_sides_of(std::span<const KeepCall> calls, cudaStream_t stream) {
  SideMoves<kPlaces> moves;
  std::ranges::copy(calls, moves.of);
  const int heads = most_of(calls, [](const KeepCall& call) { return call.rows.heads; });
  const dim3 grid(heads, static_cast<unsigned>(calls.size()));
  launch_kernel(move_side_kernel<kPlaces>, {grid, kChooseThreads}, stream,
                "moving rows of the cache", moves);
}

}  // namespace

void choose_rows(const SelectSpace& space, int heads, int rows, int keep, cudaStream_t stream) {
  launch_kernel(choose_kernel, {heads, kChooseThreads}, stream, "the choice of rows", space.keys,
                space.kept, space.stride, rows, keep);
}

void move_rows(const KeepCall& call, cudaStream_t stream) { move_rows_of<1>({&call, 1}, stream); }

void move_sides(const KeepCall& call, cudaStream_t stream) { move_sides_of<1>({&call, 1}, stream); }

void keep_rows(const KeepCall& call, cudaStream_t stream) {
  move_rows(call, stream);
  move_sides(call, stream);
}

void move_rows(std::span<const KeepCall> calls, cudaStream_t stream) {
  constexpr size_t kPlaces = 64;
  in_groups(calls, kPlaces, [&](auto some) { move_rows_of<kPlaces>(some, stream); });
}

void move_sides(std::span<const KeepCall> calls, cudaStream_t stream) {
  constexpr size_t kPlaces = 32;
  in_groups(calls, kPlaces, [&](auto some) { move_sides_of<kPlaces>(some, stream); });
}

void keep_rows(std::span<const KeepCall> calls, cudaStream_t stream) {
  move_rows(calls, stream);
  move_sides(calls, stream);
}

}  // namespace pith::cuda
