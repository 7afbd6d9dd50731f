// The choice of the best rows of each head, and their move.

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

/// Which row comes to place i.
struct Sources {
  const int32_t* kept;
  int keep, rows;
  __device__ int operator()(int i) const { return i < keep ? kept[i] : rows + i - keep; }
};

/// Blocks (head, keys or values, slice of the channels). Rows only move down, and what a step reads
/// lies at or behind what it writes: a barrier between the two is all it takes.
__global__ void __launch_bounds__(kMoveThreads)
    move_rows_kernel(const __grid_constant__ KeepCall call, const int32_t* kept, size_t stride) {
  const JudgedRows& rows = call.rows;
  const int slices = rows.dim / 8 / kSlice, head = blockIdx.x;
  const int part = blockIdx.y / slices, slice = blockIdx.y % slices;
  const int pieces = rows.dim / 8, count = call.keep + call.after;
  auto* at = reinterpret_cast<uint4*>(static_cast<char*>(part == 0 ? rows.k : rows.v) +
                                      head * rows.head_stride * 2) +
             slice * kSlice;
  const Sources source{kept + head * stride, call.keep, rows.rows};
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

}  // namespace

void choose_rows(const SelectSpace& space, int heads, int rows, int keep, cudaStream_t stream) {
  launch_kernel(choose_kernel, {heads, kChooseThreads}, stream, "the choice of rows", space.keys,
                space.kept, space.stride, rows, keep);
}

void move_rows(const SelectSpace& space, const KeepCall& call, cudaStream_t stream) {
  const dim3 grid(call.rows.heads, 2 * (call.rows.dim / 8 / kSlice));
  launch_kernel(move_rows_kernel, {grid, kMoveThreads}, stream, "moving rows of the cache", call,
                space.kept, space.stride);
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
