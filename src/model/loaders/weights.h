#pragma once
// The tensors of a model, checked against its config. Matrices stay where the file is mapped;
// norms and biases are small and become f32.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/digest.h"
#include "kernels/matmul.h"
#include "kernels/rope.h"
#include "model/loaders/config.h"
#include "model/loaders/model_tensors.h"
#include "pith/tokenizer.h"

namespace pith {

/// y = x w^T + bias.
struct Linear {
  WeightMatrix w;
  std::vector<float> bias;  // [out]; empty: none
};

struct LayerWeights {
  // Norms of what a block reads and of what it adds to the residual stream, as multiplied: [hidden]
  // each; empty: none.
  std::vector<float> attention_norm, attention_post_norm, mlp_norm, mlp_post_norm;
  Linear q, k, v;                     // [H D, hidden], [G D, hidden] twice
  std::vector<float> q_norm, k_norm;  // [D], or [H D] and [G D] (QkNorm::kWhole); empty: none
  Linear o;                           // [hidden, H D]
  Linear gate, up, down;              // [intermediate, hidden] twice, [hidden, intermediate]
};

/// Where a backend keeps its copies of the weights for as long as a session uses them, so that
/// sessions over one model share that of their device.
struct DeviceCopySlot {
  std::mutex lock;
  std::map<int, std::weak_ptr<const void>> copies;  // by device
};

/// Where digest_of_model (model/loaders/weights_digest.h) puts what it finds.
struct ModelDigestSlot {
  std::once_flag once;
  Digest digest;
};

struct Model::Weights {
  ConfigFile config;
  ModelTensors tensors;
  Rope rope;                         ///< of layers that see everything, in long contexts
  std::optional<Rope> short_rope;    ///< in contexts of up to ConfigFile::rope.original_context
  std::optional<Rope> sliding_rope;  ///< of layers with a sliding window; none: as the others'
  /// On the channels of q and k before RoPE: what the model multiplies scores by, beyond
  /// 1 / sqrt(D), half on each side. Empty: nothing.
  std::vector<float> head_factors;   // [D]
  WeightMatrix embedding;            // [V, hidden]
  std::vector<LayerWeights> layers;  // [L]
  std::vector<float> final_norm;     // [hidden]
  WeightMatrix head;                 // [V, hidden]; the embedding's where tied
  size_t bytes = 0;                  ///< of the tensors in use, each once
  std::filesystem::path folder;
  std::unique_ptr<const Tokenizer> tokenizer;  ///< null: the folder has none
  std::shared_ptr<DeviceCopySlot> device_copy = std::make_shared<DeviceCopySlot>();
  std::shared_ptr<ModelDigestSlot> digest = std::make_shared<ModelDigestSlot>();

  /// Those of a sequence of up to `context` tokens. They live as long as this.
  LayerRopes ropes(size_t context) const;
};

/// Maps a folder's tensors. Throws what Model::load throws, but for kNonFinite.
std::unique_ptr<Model::Weights> load_weights(const std::filesystem::path& folder);

/// A hash of the key and value weights of the first and the last layer; never 0.
uint64_t fingerprint(const std::vector<LayerWeights>& layers);

/// Reads every weight once. Throws kNonFinite, naming the first tensor with a NaN or an infinity,
/// and kIo if `progress` asks to stop.
void check_finite_weights(const ModelTensors& tensors, const Progress& progress);

}  // namespace pith
