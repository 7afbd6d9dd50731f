#include "model/cuda/device_forward.h"

#include <fmt/format.h>

#include <utility>

#include "pith/error.h"

namespace pith::cuda {

DeviceForward::DeviceForward(std::shared_ptr<const DeviceWeights> weights, MemoryCounter& memory,
                             cudaStream_t stream, const Shape& shape)
    : weights_(std::move(weights)),
      config_(weights_->config()),
      stream_(stream),
      plan_(*weights_, shape),
      products_(weights_, plan_, memory, stream),
      heads_(weights_, plan_, products_, memory, stream),
      passes_(weights_, plan_, products_, heads_, memory, stream),
      logits_(config_, plan_, products_, memory, stream) {}

void DeviceForward::run_chunk(DeviceCache& cache, std::span<const int32_t> tokens,
                              int64_t first_position, float* state) {
  if (tokens.empty() || tokens.size() > max_chunk()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a chunk of {} tokens; expected 1 to {}", tokens.size(), max_chunk()));
  }
  logits_.set_chunk(tokens.size());
  heads_.look_up_chunk(cache, tokens, first_position);
  const ProductRows n = plan_.chunk_rows(tokens.size());
  for (int l = 0; l < config_.layers; ++l) {
    attention_of_chunk(cache, l, n);
    products_.make_mlp(weights_->layers()[static_cast<size_t>(l)], nullptr, n);
  }
  const auto width = static_cast<size_t>(config_.hidden);
  check(cudaMemcpyAsync(state, products_.hidden() + (tokens.size() - 1) * width,
                        width * sizeof(float), cudaMemcpyDeviceToDevice, stream_),
        "where a chunk left off");
}

void DeviceForward::run_tokens(std::span<const TokenRun> runs) {
  if (runs.empty() || runs.size() > max_tokens())
    throw Error(ErrorCode::kInternal,
                fmt::format("a pass of {} tokens; expected 1 to {}", runs.size(), max_tokens()));
  logits_.set_chunk(0);
  passes_.run(runs);
}

void DeviceForward::make_logits_after(std::span<float* const> states) {
  if (states.size() > max_tokens())
    throw Error(ErrorCode::kInternal, fmt::format("logits after {} states; expected 1 to {}",
                                                  states.size(), max_tokens()));
  logits_.set_chunk(0);
  passes_.make_logits_after(states);
}

void DeviceForward::attention_of_chunk(DeviceCache& cache, int layer, const ProductRows& n) {
  const DeviceLayer& w = weights_->layers()[static_cast<size_t>(layer)];
  products_.make_qkv(w, n);
  HeadsCall heads = heads_.heads_call(cache, layer, n.tokens);
  heads.target = cache.chunks().begin_chunk(layer, n.tokens);
  make_heads(heads, stream_);
  cache.chunks().attend_chunk(layer, products_.input(), attended_type(n.few()), heads_.q(),
                              n.tokens);
  cache.chunks().end_chunk(layer, n.tokens);
  products_.add_products({&w.o, w.o_bias, w.attention_post_norm}, products_.input(), n);
}

}  // namespace pith::cuda
