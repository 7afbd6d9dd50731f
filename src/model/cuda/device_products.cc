// The forward pass's products: of a few tokens by fused kernels, of more by cuBLASLt.

#include "model/cuda/device_forward.h"

namespace pith::cuda {

/// input <- normalised rows [first, first + count) of the residual stream.
void DeviceForward::normalise(const float* weight, size_t first, size_t count) {
  const auto width = static_cast<size_t>(config_.hidden);
  rms_norm({input_.data(), products_, hidden_.data() + first * width, weight, config_.norm_eps,
            count, width},
           stream_);
}

/// Queries, keys and values, into output_.
void DeviceForward::make_qkv(const DeviceLayer& w, const ProductRows& n) {
  if (n.few()) return qkv_of_few(w, n.tokens);
  normalise(w.attention_norm, 0, n.tokens);
  matmul_.run(output_.data(), input_.data(), products_, w.qkv, n.multiplied, false);
}

/// input_, of `dtype`, <- the gated products of output_.
void DeviceForward::gate_products(const DeviceLayer& w, DType dtype, size_t tokens) {
  const bool gelu = weights_->details().activation == Activation::kGeluTanh;
  gate({input_.data(), dtype, output_.data(), w.gate_up_bias, tokens,
        static_cast<size_t>(config_.intermediate), gelu ? GateKind::kGeluTanh : GateKind::kSilu},
       stream_);
}

void DeviceForward::make_mlp(const DeviceLayer& w, const MixedMatrix* next, const ProductRows& n) {
  if (n.few()) {
    gate_few(w, n.tokens);
  } else {
    normalise(w.mlp_norm, 0, n.tokens);
    matmul_.run(output_.data(), input_.data(), products_, w.gate_up, n.multiplied, false);
    gate_products(w, products_, n.tokens);
  }
  add_products({&w.down, w.down_bias, w.mlp_post_norm, next}, input_.data(), n);
}

/// The residual stream takes what is added; x is f32 in input_ for few, of products_ otherwise.
void DeviceForward::add_products(const Added& added, const void* x, const ProductRows& n) {
  if (n.few()) return add_few(added, n.tokens);
  const auto width = static_cast<size_t>(config_.hidden);
  if (added.norm) {
    matmul_.run(output_.data(), x, products_, *added.w, n.multiplied, false);
    add_normed(
        {hidden_.data(), output_.data(), added.bias, added.norm, config_.norm_eps, n.tokens, width},
        stream_);
    return;
  }
  matmul_.run(hidden_.data(), x, products_, *added.w, n.multiplied, true);
  if (added.bias) add_bias(hidden_.data(), added.bias, n.tokens, width, stream_);
}

/// Logits after rows [first, first + n.tokens) of the residual stream, into the first rows.
void DeviceForward::make_logits(size_t first, const ProductRows& n) {
  if (n.few()) return few_logits(first, n.tokens);
  normalise(weights_->final_norm(), first, n.tokens);
  matmul_.run(logits_.data(), input_.data(), products_, weights_->head(), n.multiplied, false);
}

void DeviceForward::qkv_of_few(const DeviceLayer& w, size_t tokens) {
  few_tokens({.y = output_.data(),
              .w = &w.qkv,
              .x = hidden_.data(),
              .norm = w.attention_norm,
              .eps = config_.norm_eps,
              .tokens = tokens,
              .together = together_,
              .next = &w.o},
             stream_);
}

/// The MLP's gated numbers [tokens, inner] of a few tokens, f32, into input_.
void DeviceForward::gate_few(const DeviceLayer& w, size_t tokens) {
  const bool gelu = weights_->details().activation == Activation::kGeluTanh;
  auto* inner = reinterpret_cast<float*>(input_.data());
  FewTokensCall call{.y = inner,
                     .w = &w.gate_up,
                     .x = hidden_.data(),
                     .norm = w.mlp_norm,
                     .eps = config_.norm_eps,
                     .bias = w.gate_up_bias,
                     .end = gelu ? MatvecEnd::kGelu : MatvecEnd::kGate,
                     .tokens = tokens,
                     .together = together_,
                     .next = &w.down};
  if (w.gate_up.gate_fuses()) return few_tokens(call, stream_);
  call.y = output_.data();
  call.bias = nullptr;
  call.end = MatvecEnd::kStore;
  few_tokens(call, stream_);
  gate_products(w, DType::kF32, tokens);
}

/// The residual stream of a few tokens takes what is added, x being what lies in input_ as f32.
void DeviceForward::add_few(const Added& added, size_t tokens) {
  FewTokensCall call{.y = hidden_.data(),
                     .w = added.w,
                     .x = reinterpret_cast<const float*>(input_.data()),
                     .bias = added.bias,
                     .end = MatvecEnd::kAdd,
                     .tokens = tokens,
                     .together = together_,
                     .next = added.next};
  if (!added.norm) return few_tokens(call, stream_);
  call.y = update_.data();
  call.end = MatvecEnd::kStore;
  few_tokens(call, stream_);
  add_normed(
      {hidden_.data(), update_.data(), nullptr, added.norm, config_.norm_eps, tokens, added.w->out},
      stream_);
}

void DeviceForward::few_logits(size_t first, size_t count) {
  few_tokens({.y = logits_.data(),
              .w = &weights_->head(),
              .x = hidden_.data() + first * static_cast<size_t>(config_.hidden),
              .norm = weights_->final_norm(),
              .eps = config_.norm_eps,
              .tokens = count,
              .together = together_,
              .next = &weights_->layers().front().qkv},
             stream_);
}

}  // namespace pith::cuda
