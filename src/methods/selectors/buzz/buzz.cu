#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "methods/selectors/buzz/buzz_cuda.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256, kWeighThreads = 1024;

/// Cells of the old rows, then those of the new.
struct Cells {
  int old_cells, all;

  __device__ Cells(const JudgedRows& rows, const BuzzStrides& s)
      : old_cells((rows.judged + s.old_stride - 1) / s.old_stride),
        all(old_cells + (rows.rows - rows.judged + s.new_stride - 1) / s.new_stride) {}
};

/// A thread a cell.
__global__ void __launch_bounds__(kThreads)
    cells_kernel(const __grid_constant__ JudgedRows rows, BuzzStrides s, int32_t* kept,
                 size_t stride) {
  const Cells cells(rows, s);
  const int cell = blockIdx.x * kThreads + threadIdx.x, head = blockIdx.y;
  if (cell >= cells.all) return;
  int row = cell * s.old_stride;
  if (cell >= cells.old_cells) {
    row = rows.judged + (cell - cells.old_cells) * s.new_stride;
    const int end = min(row + s.new_stride, rows.rows);
    const float* mass = s.best ? rows.mass + head * rows.side_stride : nullptr;
    for (int r = row + 1; s.best && r < end; ++r) {
      if (mass[r] > mass[row]) row = r;  // the first wins ties
    }
  }
  kept[head * stride + cell] = row;
}

/// One block. New rows have weight 1. In place: a step reads rows at or behind those it writes.
__global__ void __launch_bounds__(kWeighThreads)
    weigh_kernel(const __grid_constant__ JudgedRows rows, BuzzStrides s) {
  const Cells cells(rows, s);
  for (int first = 0; first < cells.all; first += kWeighThreads) {
    const int cell = first + static_cast<int>(threadIdx.x);
    double sum = 0;
    if (cell < cells.old_cells) {
      const int row = cell * s.old_stride, end = min(row + s.old_stride, rows.judged);
      for (int r = row; r < end; ++r) sum += exp(static_cast<double>(rows.log_weights[r]));
    } else if (cell < cells.all) {
      const int row = rows.judged + (cell - cells.old_cells) * s.new_stride;
      sum = min(s.new_stride, rows.rows - row);
    }
    __syncthreads();
    if (cell < cells.all) rows.log_weights[cell] = static_cast<float>(log(sum));
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

void choose_cells(const SelectSpace& space, const JudgedRows& rows, const BuzzStrides& strides,
                  cudaStream_t stream) {
  const dim3 grid((rows.rows + kThreads - 1) / kThreads, rows.heads);
  launch_kernel(cells_kernel, {grid, kThreads}, stream, "the choice of rows", rows, strides,
                space.kept, space.stride);
}

void weigh_cells(const JudgedRows& rows, const BuzzStrides& strides, cudaStream_t stream) {
  launch_kernel(weigh_kernel, {1, kWeighThreads}, stream, "weights of rows", rows, strides);
}

}  // namespace pith::cuda
