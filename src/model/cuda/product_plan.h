#pragma once
// How the forward pass on the GPU multiplies: by kernels of a few tokens, by skinny products, or by
// cuBLASLt; and how many rows its buffers have for it.

#include <cstddef>
#include <cstdint>
#include <string>

#include "model/cuda/device_weights.h"

namespace pith::cuda {

struct ForwardShape {
  size_t max_chunk = 0;   ///< tokens of a chunk
  size_t max_tokens = 1;  ///< sequences of a pass of tokens, that have one each
  DType products;         ///< of a chunk's activations, hence of the weights that meet them
};

enum class ProductWay : uint8_t { kFew, kSkinny, kChunk };

/// Of a chunk or a pass. `multiplied`: rows that cuBLASLt multiplies.
struct ProductRows {
  size_t tokens, multiplied;
  ProductWay way;
  bool few() const { return way == ProductWay::kFew; }
};

/// All matrices that a pass multiplies.
void for_each_matrix(const DeviceWeights& weights, const auto& visit) {
  for (const DeviceLayer& w : weights.layers()) {
    for (const MixedMatrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down}) visit(*matrix);
  }
  visit(weights.head());
}

class ProductPlan {
 public:
  ProductPlan(const DeviceWeights& weights, const ForwardShape& shape);

  /// Whether a chunk of so many tokens is multiplied by the kernels of single ones.
  bool few(size_t tokens) const { return tokens == 1 || (tokens <= kFewTokens && tiled_); }
  ProductRows chunk_rows(size_t tokens) const { return rows(tokens, few(tokens)); }
  /// Of tokens for which that has been decided.
  static ProductRows rows(size_t tokens, bool few) {
    return {tokens, tokens, few ? ProductWay::kFew : ProductWay::kChunk};
  }
  ProductRows pass_rows(size_t tokens) const { return {tokens, wide_, pass_way_}; }
  ProductWay pass_way() const { return pass_way_; }
  /// The most tokens that kernels of a few take.
  size_t most_few() const;
  DType products() const { return products_; }
  size_t max_chunk() const { return max_chunk_; }
  size_t max_tokens() const { return max_tokens_; }
  bool together() const { return together_; }
  /// Positions whose logits are made at once.
  size_t block() const { return block_; }
  /// Tokens that buffers have room for.
  size_t room() const { return room_; }
  /// The parts of the forward pass that a token's bits depend on.
  std::string bits() const;

 private:
  static constexpr size_t kFewTokens = 8;  // a chunk whose products are those of single tokens

  // Rows that each pass multiplies, however many tokens it has: what cuBLASLt makes of a row
  // depends on how many there are, not on the others. 0: as few tokens.
  size_t wide_;
  ProductWay pass_way_;
  bool tiled_;
  DType products_;
  size_t max_chunk_, block_, max_tokens_;
  bool together_;  // tokens' products
  size_t room_;
};

}  // namespace pith::cuda
