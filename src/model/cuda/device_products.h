#pragma once
// The forward pass's products: of a few tokens by fused kernels, of a pass of many sessions by
// skinny_product.h's, of more by cuBLASLt. The residual stream is f32.

#include <memory>

#include "kernels/cuda/layer.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/skinny_product.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/product_plan.h"

namespace pith::cuda {

class DeviceProducts {
 public:
  /// Buffers, counted as kScratch. Plan, counter and stream must outlive it.
  DeviceProducts(std::shared_ptr<const DeviceWeights> weights, const ProductPlan& plan,
                 MemoryCounter& memory, cudaStream_t stream);

  /// [T, hidden] the residual stream: its own memory, or the caller's.
  float* hidden() { return elsewhere_ ? elsewhere_ : hidden_.data(); }
  std::byte* input() { return input_.data(); }  ///< [T, max(hidden, H D, intermediate)]
  float* output() { return output_.data(); }    ///< [T, max((H + 2 G) D, 2 intermediate, hidden)]
  const float* output() const { return output_.data(); }
  float* logits() { return logits_.data(); }  ///< [block, V]

  /// A new residual stream: nothing is left for it.
  void begin() { pending_ = {}; }
  /// While this lives the residual stream lies in rows of the caller's, [tokens, hidden].
  class StreamAt {
   public:
    StreamAt(DeviceProducts& products, float* rows) : products_(products) {
      products.elsewhere_ = rows;
    }
    ~StreamAt() { products_.elsewhere_ = nullptr; }
    StreamAt(const StreamAt&) = delete;
    StreamAt& operator=(const StreamAt&) = delete;

   private:
    DeviceProducts& products_;
  };
  /// Queries, keys and values, into output().
  void make_qkv(const DeviceLayer& layer, const ProductRows& n);
  /// w x + bias, normalised if there is a norm.
  struct Added {
    const MixedMatrix* w;
    const float *bias, *norm;
    const MixedMatrix* next = nullptr;  ///< the operand of a token's next product
  };
  /// Adds w x to the residual stream; x is f32 for few, of products otherwise.
  void add_products(const Added& added, const void* x, const ProductRows& n);
  /// `next`: the operand of a token's next product; null: none.
  void make_mlp(const DeviceLayer& layer, const MixedMatrix* next, const ProductRows& n);
  /// Logits after rows [first, first + n.tokens) of the residual stream, into the first rows.
  void make_logits(size_t first, const ProductRows& n);

 private:
  void multiply(float* y, const MixedMatrix& w, const ProductRows& n);
  void skinny_gate(const DeviceLayer& layer, size_t tokens);
  void add_update(const Parts& update, const float* norm, size_t tokens);
  MatvecEnd gate_end() const;
  void qkv_of_few(const DeviceLayer& layer, size_t tokens);
  void gate_few(const DeviceLayer& layer, size_t tokens);
  void gate_products(const DeviceLayer& layer, DType dtype, size_t tokens);
  void add_few(const Added& added, const float* x, size_t tokens);
  void multiply_few(FewTokensCall call);
  void few_logits(size_t first, size_t count);
  void normalise(const float* weight, size_t first, size_t count);

  const std::shared_ptr<const DeviceWeights> weights_;
  const ModelConfig& config_;
  const ProductPlan& plan_;
  cudaStream_t stream_;
  DeviceMatmul matmul_;
  DeviceArray<float> hidden_, output_, logits_;
  float* elsewhere_ = nullptr;    // see StreamAt
  DeviceArray<std::byte> input_;  // f32 of few
  DeviceArray<float> update_;     // [few T, hidden], where a norm comes after a block
  DeviceArray<std::byte> coded_;  // activations of a pass, for weights in tiles
  DeviceArray<float> parts_;      // [parts, T, hidden], of skinny products
  Parts pending_;                 // for the residual stream to take
};

}  // namespace pith::cuda
