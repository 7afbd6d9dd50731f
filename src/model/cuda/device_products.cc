#include "model/cuda/device_products.h"

#include <algorithm>
#include <utility>

namespace pith::cuda {

DeviceProducts::DeviceProducts(std::shared_ptr<const DeviceWeights> weights,
                               const ProductPlan& plan, MemoryCounter& memory, cudaStream_t stream)
    : weights_(std::move(weights)),
      config_(weights_->config()),
      plan_(plan),
      stream_(stream),
      matmul_(memory, stream) {
  const auto hidden = static_cast<size_t>(config_.hidden);
  const auto inner = static_cast<size_t>(config_.intermediate);
  const auto queries = static_cast<size_t>(config_.query_heads * config_.head_dim);
  const auto qkv =
      static_cast<size_t>((config_.query_heads + 2 * config_.kv_heads) * config_.head_dim);
  const auto make = [&]<class T>(DeviceArray<T>& a, size_t n) {
    a = DeviceArray<T>(memory, MemoryKind::kScratch, n, stream);
  };
  make(hidden_, plan_.room() * hidden);
  make(input_, plan_.room() * std::max({hidden, queries, inner}) * sizeof(float));
  make(output_, plan_.room() * std::max({qkv, 2 * inner, hidden}));
  make(update_, plan_.most_few() * hidden);
  if (plan_.together() && plan_.pass_way() == ProductWay::kFew) {
    size_t coded = 0;
    for_each_matrix(*weights_, [&](const MixedMatrix& w) {
      coded = std::max(coded, coded_inputs_bytes(w, plan_.most_few()));
    });
    make(coded_, coded);
  }
  if (plan_.pass_way() == ProductWay::kSkinny)
    make(parts_, kMostSkinnyParts * plan_.max_tokens() * hidden);
  make(logits_, plan_.block() * static_cast<size_t>(config_.vocab));
  if (plan_.few(plan_.max_chunk())) return;
  for_each_matrix(*weights_, [&](const MixedMatrix& w) { matmul_.reserve(plan_.products(), w); });
}

/// input <- normalised rows [first, first + count) of the residual stream, which takes what the
/// last product left for it.
void DeviceProducts::normalise(const float* weight, size_t first, size_t count) {
  const auto width = static_cast<size_t>(config_.hidden);
  rms_norm({input_.data(), plan_.products(), hidden() + first * width, weight, config_.norm_eps,
            count, width, std::exchange(pending_, {})},
           stream_);
}

/// y <- w times input_'s rows, of `products`; more rows than there are tokens where bits would
/// depend on their number.
void DeviceProducts::multiply(float* y, const MixedMatrix& w, const ProductRows& n) {
  if (n.way == ProductWay::kChunk)
    return matmul_.run(y, input_.data(), plan_.products(), w, n.multiplied, false);
  const DeviceMatrix matrix = w.dense(w.parts[0]);
  skinny_product({.y = y,
                  .w = matrix,
                  .x = input_.data(),
                  .tokens = n.tokens,
                  .form = skinny_form(matrix, MatvecEnd::kStore, true)},
                 stream_);
}

void DeviceProducts::make_qkv(const DeviceLayer& w, const ProductRows& n) {
  if (n.few()) return qkv_of_few(w, n.tokens);
  normalise(w.attention_norm, 0, n.tokens);
  multiply(output_.data(), w.qkv, n);
}

/// input_, of `dtype`, <- the gated products of output_.
void DeviceProducts::gate_products(const DeviceLayer& w, DType dtype, size_t tokens) {
  const bool gelu = weights_->details().activation == Activation::kGeluTanh;
  gate({input_.data(), dtype, output_.data(), w.gate_up_bias, tokens,
        static_cast<size_t>(config_.intermediate), gelu ? GateKind::kGeluTanh : GateKind::kSilu},
       stream_);
}

void DeviceProducts::make_mlp(const DeviceLayer& w, const MixedMatrix* next, const ProductRows& n) {
  const void* inner = input_.data();
  if (n.few()) {
    gate_few(w, n.tokens);
  } else {
    normalise(w.mlp_norm, 0, n.tokens);
    if (n.way == ProductWay::kSkinny) {
      skinny_gate(w, n.tokens);
      inner = output_.data();
    } else {
      multiply(output_.data(), w.gate_up, n);
      gate_products(w, plan_.products(), n.tokens);
    }
  }
  add_products({&w.down, w.down_bias, w.mlp_post_norm, next}, inner, n);
}

/// The MLP's gated numbers [tokens, inner], of `products`, into output_.
void DeviceProducts::skinny_gate(const DeviceLayer& w, size_t tokens) {
  const DeviceMatrix matrix = w.gate_up.dense(w.gate_up.parts[0]);
  const MatvecEnd end = gate_end();
  skinny_product({output_.data(), matrix, input_.data(), w.gate_up_bias, end, tokens,
                  skinny_form(matrix, end, true)},
                 stream_);
}

void DeviceProducts::add_products(const Added& added, const void* x, const ProductRows& n) {
  if (n.few()) return add_few(added, static_cast<const float*>(x), n.tokens);
  const auto width = static_cast<size_t>(config_.hidden);
  if (n.way == ProductWay::kSkinny) {
    const DeviceMatrix matrix = added.w->dense(added.w->parts[0]);
    const SkinnyForm form = skinny_form(matrix, MatvecEnd::kStore, false);
    skinny_product({parts_.data(), matrix, x, nullptr, MatvecEnd::kStore, n.tokens, form}, stream_);
    const Parts sums{parts_.data(), form.parts, added.bias};
    if (added.norm) return add_update(sums, added.norm, n.tokens);
    pending_ = sums;
    return;
  }
  if (added.norm) {
    matmul_.run(output_.data(), x, plan_.products(), *added.w, n.multiplied, false);
    return add_update({output_.data(), 1, added.bias}, added.norm, n.tokens);
  }
  matmul_.run(hidden(), x, plan_.products(), *added.w, n.multiplied, true);
  if (added.bias) add_bias(hidden(), added.bias, n.tokens, width, stream_);
}

/// The residual stream takes an update, normalised.
void DeviceProducts::add_update(const Parts& update, const float* norm, size_t tokens) {
  add_normed(
      {hidden(), update, norm, config_.norm_eps, tokens, static_cast<size_t>(config_.hidden)},
      stream_);
}

void DeviceProducts::make_logits(size_t first, const ProductRows& n) {
  if (n.few()) {
    few_logits(first, n.tokens);
  } else {
    normalise(weights_->final_norm(), first, n.tokens);
    multiply(logits_.data(), weights_->head(), n);
  }
  if (const float cap = weights_->details().logit_soft_cap; cap > 0)
    soft_cap(logits_.data(), cap, n.tokens, static_cast<size_t>(config_.vocab), stream_);
}

void DeviceProducts::multiply_few(FewTokensCall call) {
  call.together = plan_.together();
  call.coded = coded_.data();
  few_tokens(call, stream_);
}

void DeviceProducts::qkv_of_few(const DeviceLayer& w, size_t tokens) {
  multiply_few({.y = output_.data(),
                .w = &w.qkv,
                .x = hidden(),
                .norm = w.attention_norm,
                .eps = config_.norm_eps,
                .tokens = tokens,
                .next = &w.o});
}

MatvecEnd DeviceProducts::gate_end() const {
  return weights_->details().activation == Activation::kGeluTanh ? MatvecEnd::kGelu
                                                                 : MatvecEnd::kGate;
}

/// The MLP's gated numbers [tokens, inner] of a few tokens, f32, into input_.
void DeviceProducts::gate_few(const DeviceLayer& w, size_t tokens) {
  auto* inner = reinterpret_cast<float*>(input_.data());
  FewTokensCall call{.y = inner,
                     .w = &w.gate_up,
                     .x = hidden(),
                     .norm = w.mlp_norm,
                     .eps = config_.norm_eps,
                     .bias = w.gate_up_bias,
                     .end = gate_end(),
                     .tokens = tokens,
                     .next = &w.down};
  if (w.gate_up.gate_fuses()) return multiply_few(call);
  call.y = output_.data();
  call.bias = nullptr;
  call.end = MatvecEnd::kStore;
  multiply_few(call);
  gate_products(w, DType::kF32, tokens);
}

void DeviceProducts::add_few(const Added& added, const float* x, size_t tokens) {
  FewTokensCall call{.y = hidden(),
                     .w = added.w,
                     .x = x,
                     .bias = added.bias,
                     .end = MatvecEnd::kAdd,
                     .tokens = tokens,
                     .next = added.next};
  if (!added.norm) return multiply_few(call);
  call.y = update_.data();
  call.end = MatvecEnd::kStore;
  multiply_few(call);
  add_update({update_.data(), 1, nullptr}, added.norm, tokens);
}

void DeviceProducts::few_logits(size_t first, size_t count) {
  multiply_few({.y = logits_.data(),
                .w = &weights_->head(),
                .x = hidden() + first * static_cast<size_t>(config_.hidden),
                .norm = weights_->final_norm(),
                .eps = config_.norm_eps,
                .tokens = count,
                .next = &weights_->layers().front().qkv});
}

}  // namespace pith::cuda
