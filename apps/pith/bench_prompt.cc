#include "bench_prompt.h"

#include <fmt/format.h>

#include "console.h"
#include "pith/engine.h"

namespace pith::cli {

double PromptPeak::layers() const {
  const double others = static_cast<double>(peak) - static_cast<double>(held + activations);
  return layer > 0 ? others / static_cast<double>(layer) : 0;
}

PromptPeak prompt_peak(const Session& session, size_t tokens) {
  const Engine& engine = *session.engine();
  if (tokens == 0 || session.options().policy.prompt == PromptReading::kChunks) return {};
  const ModelConfig& c = session.model().config();
  const auto dim = static_cast<size_t>(c.head_dim),
             rows = 2 * static_cast<size_t>(c.kv_heads) * dim;
  const auto heads = static_cast<size_t>(c.query_heads), hidden = static_cast<size_t>(c.hidden);
  PromptPeak p{tokens, engine.peak_bytes(), engine.bytes_in_use()};
  // The CPU has queries and results of one block at a time, and f32 rows.
  const bool gpu = engine.options().device == Device::kCuda;
  p.activations = tokens * (4 * hidden + (gpu ? heads * (8 * dim + 4) + 4 * dim : 0));
  p.layer = tokens * rows * (gpu ? 2 : 4);
  return p;
}

Json to_json(const PromptPeak& p) {
  return {{"tokens", p.tokens},     {"peak_bytes", p.peak},
          {"held_bytes", p.held},   {"activation_bytes", p.activations},
          {"layer_bytes", p.layer}, {"layers", p.layers()}};
}

std::string text_of(const PromptPeak& p, const std::string& policy) {
  const auto bytes = [](size_t n) { return human_bytes(static_cast<double>(n)); };
  return fmt::format(
      "{}\n  a prompt of {} tokens: at most {} live, {} afterwards;\n"
      "  between: activations {}, and {:.2f} layers of exact rows ({} each)\n",
      policy, p.tokens, bytes(p.peak), bytes(p.held), bytes(p.activations), p.layers(),
      bytes(p.layer));
}

}  // namespace pith::cli
