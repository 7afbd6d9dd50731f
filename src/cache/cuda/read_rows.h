#pragma once
// The rows that a KV head holds on the GPU, decoded, on the host.

#include "cache/cuda/chunk_space.h"
#include "cache/cuda/layer_rows.h"

namespace pith::cuda {

/// A head's rows by position.
struct OrderedRows {
  HeadRows rows;
  std::vector<size_t> told;  ///< [rows] the place of each in the order of add_rows()
};
OrderedRows ordered_rows(const LayerRows& layer, size_t head);

/// Into k and v, f32 [rows, D]: the rows of ordered_rows(), keys after RoPE. Codes are unpacked
/// into scratch of `space`. Waits for the layer's stream.
void read_rows(const LayerRows& layer, size_t head, ChunkSpace& space, float* k, float* v);

}  // namespace pith::cuda
