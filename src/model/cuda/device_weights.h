#pragma once
// A model's weights on the GPU: matrices in their file's types, those in blocks as codes in tiles
// (kernels/block_tiles.h); products that share an input side by side (q|k|v, gate|up), norms and
// biases in f32.

#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/mixed_matrix.h"
#include "model/loaders/weights.h"

namespace pith::cuda {

struct DeviceLayer {
  MixedMatrix qkv, o, gate_up, down;  // [(H + 2 G) D, hidden], [hidden, H D], ...
  const float *attention_norm = nullptr, *mlp_norm = nullptr;  // [hidden] or null
  const float *attention_post_norm = nullptr, *mlp_post_norm = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  // as LayerWeights', or null
  const float *qkv_bias = nullptr, *o_bias = nullptr, *gate_up_bias = nullptr, *down_bias = nullptr;
};

class DeviceWeights {
 public:
  /// The copy that the model's sessions share on the device that is current, made if there is none
  /// yet. Waits for the upload. Throws kOutOfMemory.
  static std::shared_ptr<const DeviceWeights> of(const std::shared_ptr<const Model>& model);

  const ModelConfig& config() const { return model_->config(); }
  DType dtype() const { return config().weights; }
  const std::vector<DeviceLayer>& layers() const { return layers_; }
  /// True if all matrices are in tiles.
  bool tiled() const { return tiled_; }
  const MixedMatrix& embedding() const { return embedding_; }  // of one part
  const MixedMatrix& head() const { return head_; }
  const float* final_norm() const { return final_norm_; }
  const float* head_factors() const { return head_factors_; }  // [D] or null
  const ConfigFile& details() const { return model_->weights().config; }
  LayerRopes ropes(size_t context) const { return model_->weights().ropes(context); }
  size_t bytes() const { return memory_.total(); }

 private:
  explicit DeviceWeights(std::shared_ptr<const Model> model);
  MixedMatrix upload(std::initializer_list<const WeightMatrix*> matrices);
  const std::byte* upload(std::span<const WeightMatrix* const> alike);
  const float* upload(std::initializer_list<const std::vector<float>*> parts);

  std::shared_ptr<const Model> model_;
  MemoryCounter memory_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<DeviceLayer> layers_;
  DeviceBuffer staging_;  // of blocks on their way, empty once all is there
  MixedMatrix embedding_, head_;
  bool tiled_ = true;
  const float* final_norm_ = nullptr;
  const float* head_factors_ = nullptr;
};

}  // namespace pith::cuda
