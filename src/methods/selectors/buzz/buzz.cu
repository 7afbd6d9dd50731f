#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "methods/selectors/buzz/buzz_cuda.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256, kWeighThreads = 1024;

/// Rows next to each other, of which the first `kept` go to place `to`, ... or others instead.
struct Cell {
  int first, end, to, kept;
};

/// Rows that stay one by one, cells of old rows, cells of new ones, rows that stay.
struct Cells {
  int first, last, selected, fresh, old_cells, new_cells, kept_new, all;

  __device__ Cells(const CandidateRows& rows, const BuzzCells& c)
      : first(c.first),
        last(rows.rows - c.behind),
        selected(min(max(c.alike ? 0 : rows.selected, first), last)),
        fresh(last - selected),
        old_cells((selected - first + c.old_stride - 1) / c.old_stride),
        new_cells((fresh + c.new_stride - 1) / c.new_stride),
        kept_new(c.by_key ? fresh / c.new_stride * 2 + min(2, fresh % c.new_stride) : new_cells),
        all(first + old_cells + new_cells + c.behind) {}

  __device__ Cell at(int i, const BuzzCells& c) const {
    if (i < first) return {i, i + 1, i, 1};
    const int old = i - first, fresh_cell = old - old_cells, after = fresh_cell - new_cells;
    if (fresh_cell < 0) {
      const int row = first + old * c.old_stride;
      return {row, min(row + c.old_stride, selected), i, 1};
    }
    const int to = first + old_cells;
    if (after >= 0) return {last + after, last + after + 1, to + kept_new + after, 1};
    const int row = selected + fresh_cell * c.new_stride, end = min(row + c.new_stride, last);
    const int each = c.by_key ? 2 : 1;
    return {row, end, to + each * fresh_cell, min(each, end - row)};
  }
};

/// The first of the largest numbers in [first, end) but for `without`.
template <class T>
__device__ int first_of_largest(const T* numbers, int first, int end, int without) {
  int best = first == without ? first + 1 : first;
  for (int r = best + 1; r < end; ++r) {
    if (r != without && numbers[r] > numbers[best]) best = r;
  }
  return best;
}

/// A thread a cell.
__global__ void __launch_bounds__(kThreads)
    cells_kernel(const __grid_constant__ CandidateRows rows, BuzzCells c, SelectSpace space) {
  const Cells cells(rows, c);
  const int i = blockIdx.x * kThreads + threadIdx.x, head = blockIdx.y;
  if (i >= cells.all) return;
  const Cell cell = cells.at(i, c);
  const bool fresh = cell.first >= cells.selected && cell.first < cells.last;
  int row = cell.first;
  if (fresh && c.best) {
    row = first_of_largest(rows.mass + head * rows.side_stride, cell.first, cell.end, cell.end);
  }
  int32_t* kept = space.kept + head * space.stride + cell.to;
  if (cell.kept == 1) {
    kept[0] = row;
    return;
  }
  const uint32_t* unlike = space.keys + head * space.stride;
  const int other = first_of_largest(unlike, cell.first, cell.end, row);
  kept[0] = min(row, other);
  kept[1] = max(row, other);
}

/// One block. New rows have weight 1. In place: a step reads rows at or behind those it writes.
__global__ void __launch_bounds__(kWeighThreads)
    weigh_kernel(const __grid_constant__ CandidateRows rows, BuzzCells c) {
  const Cells cells(rows, c);
  for (int first = 0; first < cells.all; first += kWeighThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    Cell cell{};
    double sum = 0;
    if (i < cells.all) {
      cell = cells.at(i, c);
      for (int r = cell.first; r < cell.end; ++r) {
        sum += r < rows.selected ? exp(static_cast<double>(rows.log_weights[r])) : 1;
      }
    }
    __syncthreads();
    for (int n = 0; n < cell.kept; ++n) {
      rows.log_weights[cell.to + n] = static_cast<float>(log(sum / cell.kept));
    }
    __syncthreads();
  }
}

/// A block per token.
template <class T>
__global__ void __launch_bounds__(kThreads)
    log_kernel(T* scaled, const T* q, int numbers, QueryNote note, const QueryNote* at) {
  const int64_t first = at ? at->position : note.position;
  const auto seen = static_cast<double>(first + blockIdx.x + 1);
  const float factor = seen <= 512 ? 1.0f : static_cast<float>(log(seen) / log(512.0));
  const size_t from = static_cast<size_t>(blockIdx.x) * numbers;
  for (int i = threadIdx.x; i < numbers; i += kThreads) {
    scaled[from + i] = from_float<T>(to_float(q[from + i]) * factor);
  }
}

}  // namespace

void scale_by_log(void* scaled, const StepQueries& queries, const QueryNote& note,
                  const QueryNote* at, cudaStream_t stream) {
  with_type(queries.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_kernel(log_kernel<T>, {queries.tokens, kThreads}, stream, "queries times log n",
                  static_cast<T*>(scaled), static_cast<const T*>(queries.q),
                  queries.query_heads * queries.dim, note, at);
  });
}

void choose_cells(const SelectSpace& space, const CandidateRows& rows, const BuzzCells& cells,
                  cudaStream_t stream) {
  const dim3 grid((rows.rows + kThreads - 1) / kThreads, rows.heads);
  launch_kernel(cells_kernel, {grid, kThreads}, stream, "the choice of rows", rows, cells, space);
}

void weigh_cells(const CandidateRows& rows, const BuzzCells& cells, cudaStream_t stream) {
  launch_kernel(weigh_kernel, {1, kWeighThreads}, stream, "weights of rows", rows, cells);
}

}  // namespace pith::cuda
