#include "model/logit_head.h"

#include <algorithm>
#include <cstring>

#include "core/finite.h"
#include "pith/error.h"

namespace pith {

void normalise(float* out, const std::vector<float>& norm, const float* x, const Kernels& kernels,
               const ModelConfig& config) {
  const auto hidden = static_cast<size_t>(config.hidden);
  if (norm.empty()) {
    std::memcpy(out, x, hidden * sizeof(float));
  } else {
    kernels.rms_norm(out, x, norm.data(), config.norm_eps, hidden);
  }
}

LogitHead::LogitHead(const Context& context, const Model& model, size_t most_rows, Matmul& matmul)
    : context_(context),
      weights_(model.weights()),
      config_(model.config()),
      most_rows_(most_rows),
      matmul_(matmul),
      logits_(context.memory, MemoryKind::kScratch) {
  logits_.reserve(vocabulary());
  make_room(1);
}

// Logits of all positions are made in blocks of at most this many bytes: T x V is never whole.
size_t LogitHead::most() const {
  constexpr size_t kBytes = size_t{16} << 20;
  return std::clamp<size_t>(kBytes / (vocabulary() * sizeof(float)), 1, most_rows_);
}

void LogitHead::make_room(size_t states) {
  if (logits_.size() < states * vocabulary()) logits_.resize(states * vocabulary());
}

void LogitHead::prepare(size_t states) {
  const size_t count = std::min(states, most());
  make_room(count);
  const Product head{nullptr, &weights_.head};
  for (const RowsOf rows : {RowsOf::kMany, RowsOf::kOnePrompt})
    matmul_.prepare(count, hidden(), {&head, 1}, rows);
}

const float* LogitHead::make(size_t count, RowSource row, RowsOf rows) {
  make_room(count);
  const Product head{logits_.data(), &weights_.head};
  matmul_.run(count, hidden(), row, {&head, 1}, rows);
  if (const float cap = weights_.config.logit_soft_cap; cap > 0)
    context_.kernels.soft_cap(logits_.data(), cap, count * vocabulary());
  return logits_.data();
}

void LogitHead::check_finite(const float* logits, size_t count) const {
  if (has_non_finite(logits, DType::kF32, count * vocabulary())) {
    throw Error(ErrorCode::kNonFinite,
                "the model's logits are NaN or infinite: its weights are damaged, or activations "
                "left the range of f32");
  }
}

const float* LogitHead::after(std::span<const float* const> states) {
  auto normed = [&](float* out, size_t t) {
    normalise(out, weights_.final_norm, states[t], context_.kernels, config_);
  };
  return make(states.size(), normed, RowsOf::kMany);
}

void LogitHead::all(std::span<const float> states, const Sink& sink) {
  const size_t tokens = states.size() / hidden();
  for (size_t first = 0; first < tokens; first += most()) {
    const size_t count = std::min(most(), tokens - first);
    auto normed = [&](float* out, size_t t) {
      normalise(out, weights_.final_norm, states.data() + (first + t) * hidden(), context_.kernels,
                config_);
    };
    const float* made = make(count, normed, RowsOf::kOnePrompt);
    check_finite(made, count);
    sink(first, count, made);
  }
}

std::span<const float> LogitHead::last(std::span<const float> states) {
  if (states.empty()) throw Error(ErrorCode::kInternal, "logits before any token");
  std::span<const float> last;
  all(states.last(hidden()), [&](size_t, size_t, const float* logits) {
    last = {logits, vocabulary()};
  });
  return last;
}

}  // namespace pith
