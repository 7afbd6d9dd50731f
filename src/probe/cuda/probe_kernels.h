#pragma once
// The kernels of the error probe: sums of softmax over tiles of stored rows, and copies of
// single rows.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "pith/dtype.h"

namespace pith::cuda {

/// Rows of 16-bit numbers of one KV head that are summed by one block for each query.
struct ProbeTile {
  static constexpr size_t kMostRows = 1024;
  const void* keys = nullptr;  // [rows, D]
  const void* values = nullptr;
  int32_t rows = 0;  ///< 1 to kMostRows
  int32_t head = 0;
};

/// TileSums (probe/probe_tiles.h) of each tile and query of its head. Scores are q.k / sqrt(D); all
/// is f32, added in an order that depends on the tile alone.
/// Cost: keys and values are read once a query; it runs at probed steps only.
struct ProbeSumsCall {
  DType dtype = DType::kF16;         ///< of rows
  DType q_dtype = DType::kF16;       ///< of q: both kF16 or kBF16
  const void* q = nullptr;           // [H, D], after RoPE
  const ProbeTile* tiles = nullptr;  // [count], on the device
  int count = 0, group = 0, dim = 0;
  float* out = nullptr;  // [count, group, TileSums::numbers(D)]
};
void sum_probe_tiles(const ProbeSumsCall& call, cudaStream_t stream);

/// One row's key and value to another place, [D] of 16 bits each.
struct RowCopy {
  const void *k = nullptr, *v = nullptr;
  void *to_k = nullptr, *to_v = nullptr;
};
/// The list may go once this returns: it travels with the launches.
void copy_rows(std::span<const RowCopy> rows, size_t dim, cudaStream_t stream);

}  // namespace pith::cuda
