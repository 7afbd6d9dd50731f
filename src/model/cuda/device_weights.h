#pragma once
// A model's weights on the GPU: matrices in their file's type, those in blocks decoded to 16 bits
// on their way; products that share an input side by side (q|k|v, gate|up), norms and biases in
// f32.

#include <memory>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/matvec.h"
#include "model/weights.h"

namespace pith::cuda {

struct DeviceLayer {
  DeviceMatrix qkv, o, gate_up, down;  // [(H + 2 G) D, hidden], [hidden, H D], ...
  const float *attention_norm = nullptr, *mlp_norm = nullptr;  // [hidden] or null
  const float *attention_post_norm = nullptr, *mlp_post_norm = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  // as LayerWeights', or null
  const float *qkv_bias = nullptr, *o_bias = nullptr, *gate_up_bias = nullptr, *down_bias = nullptr;
};

class DeviceWeights {
 public:
  /// The copy that the model's sessions share, made if there is none yet. Waits for the upload.
  /// Throws kOutOfMemory, and kUnsupported for dense weights of mixed types.
  static std::shared_ptr<const DeviceWeights> of(const std::shared_ptr<const Model>& model);

  const ModelConfig& config() const { return model_->config(); }
  DType dtype() const { return config().weights; }
  const std::vector<DeviceLayer>& layers() const { return layers_; }
  const DeviceMatrix& embedding() const { return embedding_; }
  const DeviceMatrix& head() const { return head_; }
  const float* final_norm() const { return final_norm_; }
  const float* head_factors() const { return head_factors_; }  // [D] or null
  const ConfigFile& details() const { return model_->weights().config; }
  LayerRopes ropes(size_t context) const { return model_->weights().ropes(context); }
  size_t bytes() const { return memory_.total(); }

 private:
  explicit DeviceWeights(std::shared_ptr<const Model> model);
  DeviceMatrix upload(std::initializer_list<const WeightMatrix*> parts);
  const float* upload(std::initializer_list<const std::vector<float>*> parts);

  std::shared_ptr<const Model> model_;
  MemoryCounter memory_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<DeviceLayer> layers_;
  DeviceMatrix embedding_, head_;
  const float* final_norm_ = nullptr;
  const float* head_factors_ = nullptr;
};

}  // namespace pith::cuda
