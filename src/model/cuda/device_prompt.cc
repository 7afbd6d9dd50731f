#include "model/cuda/device_prompt.h"

namespace pith::cuda {
namespace {

void copy(float* to, const float* from, size_t count, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDeviceToDevice, stream),
        "a block of a prompt");
}

}  // namespace

// The parts of a layer: those of DeviceForward::run_chunk, on the caller's residual stream.

void DeviceForward::begin_block(const DeviceCache& cache, const PromptStep& step,
                                std::span<const int32_t> tokens, int64_t position,
                                size_t ropes_apart) {
  const DeviceProducts::StreamAt here(products_, step.hidden);
  heads_.look_up_chunk(cache, tokens, position);
  const size_t numbers = tokens.size() * static_cast<size_t>(config_.head_dim) / 2;
  for (size_t r = 0; r < cache.ropes().size(); ++r) {
    copy(step.cos + r * ropes_apart, heads_.cos(r), numbers, stream_);
    copy(step.sin + r * ropes_apart, heads_.sin(r), numbers, stream_);
  }
}

void DeviceForward::heads_of_block(const DeviceCache& cache, const PromptStep& step) {
  const ProductRows n = ProductPlan::rows(step.tokens, step.few);
  const DeviceProducts::StreamAt here(products_, step.hidden);
  products_.begin();
  products_.make_qkv(weights_->layers()[static_cast<size_t>(step.layer)], n);
  HeadsCall heads = heads_.heads_call(cache, step.layer, n.tokens);
  heads.cos = step.cos;
  heads.sin = step.sin;
  heads.q = step.q;
  heads.target = step.target;
  make_heads(heads, stream_);
}

void DeviceForward::end_block(const PromptStep& step) {
  const DeviceLayer& w = weights_->layers()[static_cast<size_t>(step.layer)];
  const ProductRows n = ProductPlan::rows(step.tokens, step.few);
  const DeviceProducts::StreamAt here(products_, step.hidden);
  products_.add_products({&w.o, w.o_bias, w.attention_post_norm}, step.attended, n);
  products_.make_mlp(w, nullptr, n);
}

void DeviceForward::logits_of_block(const float* hidden, size_t tokens,
                                    const DeviceLogits::Sink& sink) {
  copy(products_.hidden(), hidden, tokens * static_cast<size_t>(config_.hidden), stream_);
  logits_.set_chunk(tokens);
  logits_.of_chunk(sink);
}

DevicePrompt::DevicePrompt(DeviceForward& forward, MemoryCounter& memory, cudaStream_t stream,
                           const DeviceCache& cache, std::span<const int32_t> tokens, bool ends)
    : forward_(forward),
      stream_(stream),
      tokens_(tokens.begin(), tokens.end()),
      first_position_(static_cast<int64_t>(cache.tokens())),
      ends_(ends),
      few_(forward.multiplies_few(tokens.size())),
      blocks_(prompt_blocks(tokens.size(), forward.max_chunk(), PromptUnits::kOnGpu)) {
  const ModelConfig& c = forward.config();
  layers_ = static_cast<size_t>(c.layers);
  hidden_width_ = static_cast<size_t>(c.hidden);
  query_width_ = static_cast<size_t>(c.query_heads * c.head_dim);
  half_ = static_cast<size_t>(c.head_dim) / 2;
  const auto make = [&]<class T>(DeviceArray<T>& a, size_t of_token) {
    a = DeviceArray<T>(memory, MemoryKind::kScratch, tokens.size() * of_token, stream);
  };
  make(hidden_, hidden_width_);
  make(cos_, cache.ropes().size() * half_);
  make(sin_, cache.ropes().size() * half_);
  make(q_, query_width_ * size_of(cache.dtype()));
  make(attended_, query_width_ * size_of(forward.attended_type(few_)));
}

DeviceForward::PromptStep DevicePrompt::step_of(const DeviceCache& cache, int layer,
                                                const PromptRange& block) const {
  const size_t angles = (cache.rope_of(layer) * tokens_.size() + block.first) * half_;
  const size_t queries = block.first * query_width_;
  return {.layer = layer,
          .tokens = block.count,
          .few = few_,
          .hidden = hidden_.data() + block.first * hidden_width_,
          .cos = cos_.data() + angles,
          .sin = sin_.data() + angles,
          .q = q_.data() + queries * size_of(cache.dtype()),
          .attended = attended_.data() + queries * size_of(forward_.attended_type(few_))};
}

void DevicePrompt::look_up(const DeviceCache& cache) {
  for (const PromptRange& block : blocks_) {
    DeviceForward::PromptStep step = step_of(cache, 0, block);
    step.cos = cos_.data() + block.first * half_;
    step.sin = sin_.data() + block.first * half_;
    forward_.begin_block(cache, step, std::span(tokens_).subspan(block.first, block.count),
                         first_position_ + static_cast<int64_t>(block.first),
                         tokens_.size() * half_);
  }
}

void DevicePrompt::attend(DeviceCache& cache, int layer) {
  const RowTarget target = cache.chunks().begin_prompt(layer, tokens_.size());
  for (const PromptRange& block : blocks_) {
    DeviceForward::PromptStep step = step_of(cache, layer, block);
    step.target = target + block.first;
    forward_.heads_of_block(cache, step);
  }
  cache.chunks().attend_chunk(layer, attended_.data(), forward_.attended_type(few_), q_.data(),
                              tokens_.size());
  cache.chunks().end_prompt(layer, tokens_.size(), ends_);
}

void DevicePrompt::advance(DeviceCache& cache) {
  const auto layer = static_cast<int>(done_ / blocks_.size());
  const PromptRange& block = blocks_[done_ % blocks_.size()];
  if (done_ == 0) look_up(cache);
  if (block.first == 0) attend(cache, layer);
  forward_.end_block(step_of(cache, layer, block));
  ++done_;
}

void DevicePrompt::finish(float* state, const DeviceLogits::Sink& sink) {
  copy(state, hidden_.data() + (tokens_.size() - 1) * hidden_width_, hidden_width_, stream_);
  if (!sink) return;
  for (const PromptRange& block : blocks_) {
    forward_.logits_of_block(hidden_.data() + block.first * hidden_width_, block.count,
                             [&](size_t first, size_t count, const float* logits) {
                               sink(block.first + first, count, logits);
                             });
  }
}

}  // namespace pith::cuda
