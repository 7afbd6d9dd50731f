#include "model/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/finite.h"
#include "kernels/block_products.h"
#include "model/loaders/weights.h"
#include "pith/error.h"

namespace pith {
namespace {

// Logits of all positions are made in blocks of at most this many bytes: T x V is never whole.
constexpr size_t kLogitBytes = size_t{16} << 20;

size_t block_rows(const ModelConfig& c, size_t max_chunk) {
  const size_t row = static_cast<size_t>(c.vocab) * sizeof(float);
  return std::clamp<size_t>(kLogitBytes / row, 1, max_chunk);
}

/// Where RoPE turns only the first `rotated` channels of a head, it pairs i with i + rotated / 2.
/// The cache's RoPE pairs i with i + D / 2, so the channels change places: queries and keys alike,
/// which no score notices.
void pair_rotated(float* x, size_t rotated, size_t dim) {
  if (rotated == 0 || rotated == dim) return;
  // [first half | second half | still a | still b] -> [first half | still a | second half | still
  // b]
  std::rotate(x + rotated / 2, x + rotated, x + rotated + (dim - rotated) / 2);
}

}  // namespace

Forward::Forward(const Context& context, const Model& model, size_t max_chunk,
                 MatmulPrecision precision)
    : context_(context),
      weights_(model.weights()),
      config_(model.config()),
      max_chunk_(max_chunk),
      matmul_(context, precision) {
  const auto heads = static_cast<size_t>(config_.query_heads);
  const auto kv_heads = static_cast<size_t>(config_.kv_heads);
  const auto dim = static_cast<size_t>(config_.head_dim);
  const auto hidden = static_cast<size_t>(config_.hidden);
  const auto inner = static_cast<size_t>(config_.intermediate);
  const auto make = [&](Array<float>& a, size_t count) {
    a = Array<float>(context.memory, MemoryKind::kScratch);
    a.reserve(count);
    a.resize(count);
  };
  make(hidden_, max_chunk * hidden);
  make(update_, max_chunk * hidden);
  make(q_, max_chunk * heads * dim);
  make(k_, max_chunk * kv_heads * dim);
  make(v_, max_chunk * kv_heads * dim);
  make(attended_, max_chunk * heads * dim);
  make(gate_, max_chunk * inner);
  make(up_, max_chunk * inner);
  make(cos_, max_chunk * dim / 2);
  make(sin_, max_chunk * dim / 2);
  make(logits_, static_cast<size_t>(config_.vocab));
}

void Forward::run(KvCache& cache, std::span<const int32_t> tokens, int64_t first_position) {
  Sequence sequence{&cache, tokens, first_position};
  run({&sequence, 1});
  if (sequence.failure) std::rethrow_exception(sequence.failure);
}

void Forward::run(std::span<Sequence> sequences) {
  list_rows(sequences);
  embed();
  find_angles();
  for (int layer = 0; layer < config_.layers; ++layer) {
    project(layer, layer > 0);
    if (observer_) observer_({layer, q_.data(), k_.data(), v_.data(), tokens_});
    step_caches(sequences, layer);
    project_back(layer);
    mlp(layer);
  }
  finish_layer(config_.layers - 1);
}

void Forward::run_layer(const LayerBlock& block) {
  check_count(block.tokens.size());
  rows_.clear();
  for (size_t t = 0; t < block.tokens.size(); ++t)
    rows_.push_back({block.tokens[t], block.first_position + static_cast<int64_t>(t), block.ropes});
  tokens_ = block.tokens.size();
  many_ = false;
  at_ = {block.hidden, block.k, block.v};
  if (block.layer == 0) {
    check_tokens(block.tokens);
    embed();
  }
  find_angles();
  project(block.layer, false);
  block.attend(attended_.data(), q_.data());
  project_back(block.layer);
  mlp(block.layer);
  finish_layer(block.layer);
}

void Forward::make_angles(size_t ropes) {
  const size_t all = ropes * max_chunk_ * static_cast<size_t>(config_.head_dim) / 2;
  if (cos_.size() < all) cos_.resize(all);
  if (sin_.size() < all) sin_.resize(all);
}

void Forward::make_logits(size_t states) {
  const size_t all = states * static_cast<size_t>(config_.vocab);
  if (logits_.size() < all) logits_.resize(all);
}

void Forward::prepare(size_t tokens, size_t sequences, size_t ropes) {
  make_angles(ropes);
  const auto hidden = static_cast<size_t>(config_.hidden);
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
    matmul_.prepare(tokens, hidden, qkv, rows);
    matmul_.prepare(tokens, width, {&o, 1}, rows);
    matmul_.prepare(tokens, hidden, gate_up, rows);
    matmul_.prepare(tokens, static_cast<size_t>(config_.intermediate), {&down, 1}, rows);
  }
  known = tokens;
}

void Forward::prepare_logits(size_t states) {
  const size_t count = std::min(states, most_states());
  make_logits(count);
  const Product head{nullptr, &weights_.head};
  for (const RowsOf rows : {RowsOf::kMany, RowsOf::kOnePrompt})
    matmul_.prepare(count, static_cast<size_t>(config_.hidden), {&head, 1}, rows);
}

void Forward::finish_layer(int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  context_.pool.parallel_for(tokens_,
                             [&](size_t t, int) { add_update(t, w.down, w.mlp_post_norm); });
}

void Forward::check_tokens(std::span<const int32_t> tokens) const {
  for (int32_t token : tokens) {
    if (token >= 0 && token < config_.vocab) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("token id {}; the model's vocabulary is 0 to {}", token, config_.vocab - 1));
  }
}

void Forward::check_count(size_t tokens) const {
  if (tokens == 0 || tokens > max_chunk_)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a chunk of {} tokens; expected 1 to {}", tokens, max_chunk_));
}

void Forward::list_rows(std::span<const Sequence> sequences) {
  size_t count = 0;
  for (const Sequence& s : sequences) {
    if (sequences.size() > 1 && s.tokens.size() != 1)
      throw Error(ErrorCode::kInternal,
                  "a pass over several sequences with other than one token each");
    check_tokens(s.tokens);
    if (s.cache->ropes().distinct().empty())
      throw Error(ErrorCode::kInternal, "a forward pass over a cache without RoPE");
    count += s.tokens.size();
  }
  check_count(count);
  rows_.clear();
  for (const Sequence& s : sequences)
    for (size_t t = 0; t < s.tokens.size(); ++t)
      rows_.push_back({s.tokens[t], s.first_position + static_cast<int64_t>(t), &s.cache->ropes()});
  tokens_ = count;
  many_ = sequences.size() > 1;
  at_ = {hidden_.data(), k_.data(), v_.data()};
}

void Forward::embed() {
  const auto hidden = static_cast<size_t>(config_.hidden);
  const WeightMatrix& table = weights_.embedding;
  const float scale = weights_.config.embedding_scale;
  context_.pool.parallel_for(tokens_, [&](size_t t, int) {
    const auto id = static_cast<size_t>(rows_[t].token);
    float* x = hidden_row(t);
    if (const auto dense = dense_type(table.type))
      context_.kernels.to_f32(x, table.row(id), *dense, hidden);
    else
      block_kernels(context_.kernels).decode(x, table.row(id), table.type, hidden);
    if (scale != 1) context_.kernels.scale(x, scale, hidden);
  });
}

void Forward::find_angles() {
  const size_t half = static_cast<size_t>(config_.head_dim) / 2;
  size_t most = 0;
  for (const Row& row : rows_) most = std::max(most, row.ropes->distinct().size());
  make_angles(most);
  context_.pool.parallel_for(most * tokens_, [&](size_t i, int) {
    const size_t rope = i / tokens_, t = i % tokens_, at = (rope * max_chunk_ + t) * half;
    const auto& distinct = rows_[t].ropes->distinct();
    if (rope >= distinct.size()) return;
    distinct[rope]->angles(cos_.data() + at, sin_.data() + at, rows_[t].position);
  });
}

/// The residual stream of a token takes what a block left in update_.
void Forward::add_update(size_t token, const Linear& last, const std::vector<float>& post_norm) {
  const auto hidden = static_cast<size_t>(config_.hidden);
  const Kernels& kernels = context_.kernels;
  float* x = hidden_row(token);
  float* update = update_.data() + token * hidden;
  if (!post_norm.empty()) {
    if (!last.bias.empty()) kernels.add(update, last.bias.data(), hidden);
    kernels.rms_norm(update, update, post_norm.data(), config_.norm_eps, hidden);
    kernels.add(x, update, hidden);
    return;
  }
  kernels.add(x, update, hidden);
  if (!last.bias.empty()) kernels.add(x, last.bias.data(), hidden);
}

/// out <- the residual stream x of a token as a block reads it.
void Forward::normalise(float* out, const std::vector<float>& norm, const float* x) const {
  const auto hidden = static_cast<size_t>(config_.hidden);
  if (norm.empty()) {
    std::memcpy(out, x, hidden * sizeof(float));
  } else {
    context_.kernels.rms_norm(out, x, norm.data(), config_.norm_eps, hidden);
  }
}

void Forward::prepare_heads(float* heads, size_t count, const std::vector<float>& bias,
                            const std::vector<float>& norm, const Angles& angles) const {
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
  const auto hidden = static_cast<size_t>(config_.hidden);
  const auto dim = static_cast<size_t>(config_.head_dim);
  const auto heads = static_cast<size_t>(config_.query_heads);
  const auto kv_heads = static_cast<size_t>(config_.kv_heads);

  auto normed = [&](float* out, size_t t) {
    // The previous layer's MLP left its result here: adding it now saves a pass over memory.
    if (pending) {
      const LayerWeights& before = weights_.layers[static_cast<size_t>(layer) - 1];
      add_update(t, before.down, before.mlp_post_norm);
    }
    normalise(out, w.attention_norm, hidden_row(t));
  };
  const Product qkv[] = {{q_.data(), &w.q.w}, {at_.k, &w.k.w}, {at_.v, &w.v.w}};
  matmul_.run(tokens_, hidden, normed, qkv, rows_of());

  context_.pool.parallel_for(tokens_, [&](size_t t, int) {
    const size_t at = (rows_[t].ropes->index(layer) * max_chunk_ + t) * dim / 2;
    const Angles angles{cos_.data() + at, sin_.data() + at};
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
  matmul_.run(tokens_, width, result, {&o, 1}, rows_of());
}

void Forward::step_caches(std::span<Sequence> sequences, int layer) {
  const auto dim = static_cast<size_t>(config_.head_dim);
  const size_t q_width = static_cast<size_t>(config_.query_heads) * dim;
  const size_t kv_width = static_cast<size_t>(config_.kv_heads) * dim;
  if (!many_) {
    Sequence& s = sequences[0];
    if (s.failure) return;
    try {
      s.cache->step(layer, attended_.data(), q_.data(), k_.data(), v_.data(), s.tokens.size());
    } catch (...) {
      s.failure = std::current_exception();
    }
    return;
  }
  std::vector<KvCache::Token> tokens;
  for (size_t i = 0; i < sequences.size(); ++i)
    tokens.push_back({sequences[i].cache, attended_.data() + i * q_width, q_.data() + i * q_width,
                      k_.data() + i * kv_width, v_.data() + i * kv_width, sequences[i].failure});
  KvCache::step_together(layer, tokens);
  for (size_t i = 0; i < sequences.size(); ++i) sequences[i].failure = tokens[i].failure;
}

void Forward::mlp(int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const auto hidden = static_cast<size_t>(config_.hidden);
  const auto inner = static_cast<size_t>(config_.intermediate);
  const Kernels& kernels = context_.kernels;
  const auto activate =
      weights_.config.activation == Activation::kSilu ? kernels.silu_mul : kernels.gelu_mul;

  auto normed = [&](float* out, size_t t) {
    add_update(t, w.o, w.attention_post_norm);
    normalise(out, w.mlp_norm, hidden_row(t));
  };
  const Product gate_up[] = {{gate_.data(), &w.gate.w}, {up_.data(), &w.up.w}};
  matmul_.run(tokens_, hidden, normed, gate_up, rows_of());

  auto gated = [&](float* out, size_t t) {
    float* gate = gate_.data() + t * inner;
    float* up = up_.data() + t * inner;
    if (!w.gate.bias.empty()) kernels.add(gate, w.gate.bias.data(), inner);
    if (!w.up.bias.empty()) kernels.add(up, w.up.bias.data(), inner);
    activate(gate, up, inner);
    std::memcpy(out, gate, inner * sizeof(float));
  };
  const Product down{update_.data(), &w.down.w};
  matmul_.run(tokens_, inner, gated, {&down, 1}, rows_of());
}

const float* Forward::logits(size_t count, RowSource row, RowsOf rows) {
  const auto hidden = static_cast<size_t>(config_.hidden);
  const auto vocab = static_cast<size_t>(config_.vocab);
  make_logits(count);
  const Product head{logits_.data(), &weights_.head};
  matmul_.run(count, hidden, row, {&head, 1}, rows);
  if (const float cap = weights_.config.logit_soft_cap; cap > 0)
    context_.kernels.soft_cap(logits_.data(), cap, count * vocab);
  return logits_.data();
}

void Forward::check_finite(const float* logits, size_t count) const {
  if (has_non_finite(logits, DType::kF32, count * static_cast<size_t>(config_.vocab))) {
    throw Error(ErrorCode::kNonFinite,
                "the model's logits are NaN or infinite: its weights are damaged, or activations "
                "left the range of f32");
  }
}

std::span<const float> Forward::last_logits() {
  if (tokens_ == 0) throw Error(ErrorCode::kInternal, "logits before any token");
  std::span<const float> last;
  all_logits(last_state(tokens_ - 1).data(), 1, [&](size_t, size_t, const float* logits) {
    last = {logits, static_cast<size_t>(config_.vocab)};
  });
  return last;
}

const float* Forward::logits_after(std::span<const float* const> states) {
  auto normed = [&](float* out, size_t t) { normalise(out, weights_.final_norm, states[t]); };
  return logits(states.size(), normed, RowsOf::kMany);
}

size_t Forward::most_states() const { return block_rows(config_, max_chunk_); }

void Forward::all_logits(const Sink& sink) { all_logits(hidden_.data(), tokens_, sink); }

void Forward::all_logits(const float* states, size_t tokens, const Sink& sink) {
  const size_t rows = most_states(), hidden = static_cast<size_t>(config_.hidden);
  for (size_t first = 0; first < tokens; first += rows) {
    const size_t count = std::min(rows, tokens - first);
    auto normed = [&](float* out, size_t t) {
      normalise(out, weights_.final_norm, states + (first + t) * hidden);
    };
    const float* made = logits(count, normed, RowsOf::kOnePrompt);
    check_finite(made, count);
    sink(first, count, made);
  }
}

}  // namespace pith
