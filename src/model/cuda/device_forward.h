#pragma once
// The forward pass on the GPU (the CPU's is model/forward.h). A chunk of tokens goes through
// cuBLASLt and the prefill attention, one token through fused matrix-vector products that read each
// weight once, replayed as one graph. So do the products of a chunk of a few tokens, if weights are
// in tiles. The residual stream is f32. Nothing waits for the device before logits are asked for.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "cache/cuda/device_cache.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/ranking.h"
#include "model/cuda/device_weights.h"

namespace pith::cuda {

class DeviceForward {
 public:
  struct Types {
    DType rows;      ///< of the cache's exact rows
    DType products;  ///< of a chunk's activations, hence of the weights that they are multiplied by
  };
  /// Buffers for chunks of up to `max_chunk` tokens, counted as kScratch. Counter and stream must
  /// outlive it.
  DeviceForward(std::shared_ptr<const DeviceWeights> weights, MemoryCounter& memory,
                cudaStream_t stream, size_t max_chunk, const Types& types);

  /// Runs tokens at positions first_position, ... through all layers; their rows are appended.
  void run(DeviceCache& cache, std::span<const int32_t> tokens, int64_t first_position);
  /// The cache's step memory has changed: the graph of a token is captured anew.
  void forget_token() { graph_of_ = nullptr; }

  /// Logits [V] after the last token of run(); valid until the next call of anything here. Waits
  /// for the device. Throws kNonFinite.
  std::span<const float> last_logits();
  /// The largest of them, found on the device; `call` says how many, its logits are set here.
  std::span<const RankedLogit> best_logits(RankingCall call);
  /// Logits from here on are those after `other`'s last token, until the next run(): a fork draws
  /// from where it was made. Both of one model.
  void continue_from(const DeviceForward& other);
  /// Hands out the logits [count, V] of run()'s positions, a block at a time. Throws kNonFinite.
  using Sink = std::function<void(size_t first, size_t count, const float* logits)>;
  void all_logits(const Sink& sink);

  size_t max_chunk() const { return max_chunk_; }

 private:
  struct GraphEnd {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, GraphEnd>;

  void begin(const DeviceCache& cache, size_t tokens);
  void run_token(DeviceCache& cache);
  void enqueue_token(DeviceCache& cache);
  void capture(DeviceCache& cache);
  void run_chunk(DeviceCache& cache);
  void attention_of_chunk(DeviceCache& cache, int layer);
  void mlp_of_chunk(const DeviceLayer& layer);
  HeadsCall heads_call(const DeviceCache& cache, int layer, size_t tokens) const;
  void qkv_of_few(const DeviceLayer& layer, size_t tokens);
  void gate_few(const DeviceLayer& layer, size_t tokens);
  /// w x + bias, normalised if there is a norm.
  struct Added {
    const MixedMatrix* w;
    const float *bias, *norm;
    const MixedMatrix* next = nullptr;  ///< what a token's next product multiplies
  };
  void add_few(const Added& added, size_t tokens);
  void add_products(const Added& added);
  void make_logits(size_t first, size_t count);
  bool few(size_t tokens) const;
  DType input_type() const { return few(tokens_) ? DType::kF32 : types_.products; }
  void normalise(const float* weight, size_t first, size_t count);
  void make_last_logits();
  const float* fetch_logits(size_t count);

  std::shared_ptr<const DeviceWeights> weights_;
  const ModelConfig& config_;
  MemoryCounter& memory_;
  cudaStream_t stream_;
  size_t max_chunk_, block_;  // block: positions whose logits are made at once
  size_t tokens_ = 0;         // of the last run()
  bool has_logits_ = false;   // of its last token, on the device
  DeviceMatmul matmul_;

  MirroredArray<int32_t> ids_;       // [T]
  MirroredArray<int64_t> position_;  // [1]
  StreamMark uploaded_;              // the last run has read what the host wrote for it
  Graph graph_;                      // of a token's step
  const DeviceCache* graph_of_ = nullptr;
  DeviceArray<float> hidden_;            // [T, hidden] the residual stream
  DeviceArray<std::byte> input_;         // [T, max(hidden, H D, intermediate)] of input_type()
  DeviceArray<float> output_;            // [T, max((H + 2 G) D, 2 intermediate, hidden)]
  DeviceArray<float> update_;            // [few T, hidden], where a norm comes after a block
  DeviceArray<std::byte> q_;             // [T, H, D] of the rows' type
  DeviceArray<float> cos_, sin_;         // [ropes, T, D/2]
  DeviceArray<float> logits_;            // [block, V]
  PinnedArray<float> host_logits_;       // [block, V]
  std::optional<LogitRanking> ranking_;  // once it is asked for
  Types types_;
};

}  // namespace pith::cuda
