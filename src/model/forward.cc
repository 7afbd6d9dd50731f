#include "model/forward.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "kernels/block_products.h"
#include "model/loaders/weights.h"

namespace pith {
namespace {

/// Where RoPE turns only the first `rotated` channels of a head, it pairs i with i + rotated / 2.
/// The cache's RoPE pairs i with i + D / 2, so the channels change places: queries and keys alike,
/// which no score notices.
void pair_rotated(float* x, size_t rotated, size_t dim) {
  if (rotated == 0 || rotated == dim) return;
  // [first half | second half | still a | still b] -> [first half | still a | second half | still
  // b]
  std::rotate(x + rotated / 2, x + rotated, x + rotated + (dim - rotated) / 2);
}

/// attended [T, H, D] <- what the caches' queries find; a failure is its sequence's.
void step_caches(float* attended, const LayerStep& step, std::span<Sequence> sequences,
                 const ModelConfig& config) {
  if (sequences.size() == 1) {
    Sequence& s = sequences[0];
    if (s.failure) return;
    try {
      s.cache->step(step.layer, attended, step.q, step.k, step.v, step.tokens);
    } catch (...) {
      s.failure = std::current_exception();
    }
    return;
  }
  const auto q_width = static_cast<size_t>(config.query_heads * config.head_dim);
  const auto kv_width = static_cast<size_t>(config.kv_heads * config.head_dim);
  std::vector<KvCache::Token> tokens;
  for (size_t i = 0; i < sequences.size(); ++i)
    tokens.push_back({sequences[i].cache, attended + i * q_width, step.q + i * q_width,
                      step.k + i * kv_width, step.v + i * kv_width, sequences[i].failure});
  KvCache::step_together(step.layer, tokens);
  for (size_t i = 0; i < sequences.size(); ++i) sequences[i].failure = tokens[i].failure;
}

}  // namespace

Forward::Forward(const Context& context, const Model& model, size_t max_chunk,
                 MatmulPrecision precision)
    : context_(context),
      weights_(model.weights()),
      config_(model.config()),
      matmul_(context, precision),
      logits_(context, model, max_chunk, matmul_),
      rows_(context, config_, max_chunk) {
  const auto make = [&](int64_t width, std::initializer_list<Array<float>*> arrays) {
    const size_t count = max_chunk * static_cast<size_t>(width);
    for (Array<float>* a : arrays) {
      *a = Array<float>(context.memory, MemoryKind::kScratch);
      a->reserve(count);
      a->resize(count);
    }
  };
  make(config_.hidden, {&hidden_, &update_});
  make(config_.query_heads * config_.head_dim, {&q_, &attended_});
  make(config_.kv_heads * config_.head_dim, {&k_, &v_});
  make(config_.intermediate, {&gate_, &up_});
}

void Forward::run(KvCache& cache, std::span<const int32_t> tokens, int64_t first_position) {
  Sequence sequence{&cache, tokens, first_position};
  run({&sequence, 1});
  if (sequence.failure) std::rethrow_exception(sequence.failure);
}

void Forward::run(std::span<Sequence> sequences) {
  rows_.list(sequences);
  at_ = {hidden_.data(), k_.data(), v_.data()};
  embed();
  for (int layer = 0; layer < config_.layers; ++layer) {
    project(layer, layer > 0);
    const LayerStep step{layer, q_.data(), k_.data(), v_.data(), rows_.count()};
    if (observer_) observer_(step);
    step_caches(attended_.data(), step, sequences, config_);
    project_back(layer);
    mlp(layer);
  }
  finish_layer(config_.layers - 1);
}

void Forward::run_layer(const LayerBlock& block) {
  rows_.list(block.tokens, block.first_position, *block.ropes);
  at_ = {block.hidden, block.k, block.v};
  if (block.layer == 0) embed();
  project(block.layer, false);
  block.attend(attended_.data(), q_.data());
  project_back(block.layer);
  mlp(block.layer);
  finish_layer(block.layer);
}

void Forward::prepare(size_t tokens, size_t sequences, size_t ropes) {
  rows_.prepare(ropes);
  // Primitives of one size of a chunk may be dropped for another's.
  size_t& known = sequences > 1 ? prepared_many_ : prepared_;
  if (sequences > 1 ? tokens <= known : tokens == known) return;
  known = 0;
  const RowsOf rows = sequences > 1 ? RowsOf::kMany : RowsOf::kOnePrompt;
  const size_t width = static_cast<size_t>(config_.query_heads * config_.head_dim);
  for (const LayerWeights& w : weights_.layers) {
    const Product qkv[] = {{nullptr, &w.q.w}, {nullptr, &w.k.w}, {nullptr, &w.v.w}};
    const Product o{nullptr, &w.o.w}, down{nullptr, &w.down.w};
    const Product gate_up[] = {{nullptr, &w.gate.w}, {nullptr, &w.up.w}};
    matmul_.prepare(tokens, hidden(), qkv, rows);
    matmul_.prepare(tokens, width, {&o, 1}, rows);
    matmul_.prepare(tokens, hidden(), gate_up, rows);
    matmul_.prepare(tokens, static_cast<size_t>(config_.intermediate), {&down, 1}, rows);
  }
  known = tokens;
}

void Forward::finish_layer(int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  context_.pool.parallel_for(rows_.count(),
                             [&](size_t t, int) { add_update(t, w.down, w.mlp_post_norm); });
}

void Forward::embed() {
  const WeightMatrix& table = weights_.embedding;
  const float scale = weights_.config.embedding_scale;
  context_.pool.parallel_for(rows_.count(), [&](size_t t, int) {
    const auto id = static_cast<size_t>(rows_.token(t));
    float* x = hidden_row(t);
    if (const auto dense = dense_type(table.type))
      context_.kernels.to_f32(x, table.row(id), *dense, hidden());
    else
      block_kernels(context_.kernels).decode(x, table.row(id), table.type, hidden());
    if (scale != 1) context_.kernels.scale(x, scale, hidden());
  });
}

/// The residual stream of a token takes what a block left in update_.
void Forward::add_update(size_t token, const Linear& last, const std::vector<float>& post_norm) {
  const Kernels& kernels = context_.kernels;
  float* x = hidden_row(token);
  float* update = update_.data() + token * hidden();
  if (!post_norm.empty()) {
    if (!last.bias.empty()) kernels.add(update, last.bias.data(), hidden());
    kernels.rms_norm(update, update, post_norm.data(), config_.norm_eps, hidden());
    kernels.add(x, update, hidden());
    return;
  }
  kernels.add(x, update, hidden());
  if (!last.bias.empty()) kernels.add(x, last.bias.data(), hidden());
}

void Forward::prepare_heads(float* heads, size_t count, const std::vector<float>& bias,
                            const std::vector<float>& norm, const PassRows::Angles& angles) const {
  const Kernels& kernels = context_.kernels;
  const auto dim = static_cast<size_t>(config_.head_dim);
  const std::vector<float>& factors = weights_.head_factors;
  const bool whole = weights_.config.architecture->qk_norm == QkNorm::kWhole;
  if (!bias.empty()) kernels.add(heads, bias.data(), count * dim);
  if (whole) kernels.rms_norm(heads, heads, norm.data(), config_.norm_eps, count * dim);
  for (size_t h = 0; h < count; ++h) {
    float* x = heads + h * dim;
    if (!whole && !norm.empty()) kernels.rms_norm(x, x, norm.data(), config_.norm_eps, dim);
    if (!factors.empty()) kernels.multiply(x, x, factors.data(), dim);
    pair_rotated(x, weights_.config.rope.rotated, dim);
    kernels.rotate(x, angles.cos, angles.sin, dim);
  }
}

void Forward::project(int layer, bool pending) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const auto dim = static_cast<size_t>(config_.head_dim);
  const auto heads = static_cast<size_t>(config_.query_heads);
  const auto kv_heads = static_cast<size_t>(config_.kv_heads);

  auto normed = [&](float* out, size_t t) {
    // The previous layer's MLP left its result here: adding it now saves a pass over memory.
    if (pending) {
      const LayerWeights& before = weights_.layers[static_cast<size_t>(layer) - 1];
      add_update(t, before.down, before.mlp_post_norm);
    }
    read(out, w.attention_norm, t);
  };
  const Product qkv[] = {{q_.data(), &w.q.w}, {at_.k, &w.k.w}, {at_.v, &w.v.w}};
  matmul_.run(rows_.count(), hidden(), normed, qkv, rows_of());

  context_.pool.parallel_for(rows_.count(), [&](size_t t, int) {
    const PassRows::Angles angles = rows_.angles(layer, t);
    prepare_heads(q_.data() + t * heads * dim, heads, w.q.bias, w.q_norm, angles);
    prepare_heads(at_.k + t * kv_heads * dim, kv_heads, w.k.bias, w.k_norm, angles);
    float* v = at_.v + t * kv_heads * dim;
    if (!w.v.bias.empty()) context_.kernels.add(v, w.v.bias.data(), kv_heads * dim);
  });
}

void Forward::project_back(int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const size_t width = static_cast<size_t>(config_.query_heads * config_.head_dim);
  auto result = [&](float* out, size_t t) {
    std::memcpy(out, attended_.data() + t * width, width * sizeof(float));
  };
  const Product o{update_.data(), &w.o.w};
  matmul_.run(rows_.count(), width, result, {&o, 1}, rows_of());
}

void Forward::mlp(int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const auto inner = static_cast<size_t>(config_.intermediate);
  const Kernels& kernels = context_.kernels;
  const auto activate =
      weights_.config.activation == Activation::kSilu ? kernels.silu_mul : kernels.gelu_mul;

  auto normed = [&](float* out, size_t t) {
    add_update(t, w.o, w.attention_post_norm);
    read(out, w.mlp_norm, t);
  };
  const Product gate_up[] = {{gate_.data(), &w.gate.w}, {up_.data(), &w.up.w}};
  matmul_.run(rows_.count(), hidden(), normed, gate_up, rows_of());

  auto gated = [&](float* out, size_t t) {
    float* gate = gate_.data() + t * inner;
    float* up = up_.data() + t * inner;
    if (!w.gate.bias.empty()) kernels.add(gate, w.gate.bias.data(), inner);
    if (!w.up.bias.empty()) kernels.add(up, w.up.bias.data(), inner);
    activate(gate, up, inner);
    std::memcpy(out, gate, inner * sizeof(float));
  };
  const Product down{update_.data(), &w.down.w};
  matmul_.run(rows_.count(), inner, gated, {&down, 1}, rows_of());
}

}  // namespace pith
