// Penalties and the bias of tokens.

#include <fmt/format.h>

#include <charconv>

#include "serve/gate_fields.h"
#include "serve/refusal.h"

namespace pith::serve {
namespace {

constexpr size_t kMostBiases = 1024;

int32_t token_of(const std::string& text, int32_t vocabulary) {
  int32_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0 || id >= vocabulary)
    throw wrong("logit_bias",
                fmt::format("must have token ids from 0 to {} as names", vocabulary - 1));
  return id;
}

}  // namespace

void read_penalties(Fields& f, Call& call, const GateOptions& options) {
  SamplingOptions& s = call.sampling;
  if (const auto p = f.number("presence_penalty", -2, 2))
    s.presence_penalty = static_cast<float>(*p);
  if (const auto p = f.number("frequency_penalty", -2, 2))
    s.frequency_penalty = static_cast<float>(*p);
  const Json* bias = f.get("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object() || bias->size() > kMostBiases)
    throw wrong("logit_bias",
                fmt::format("must be an object of at most {} token ids", kMostBiases));
  for (const auto& [name, value] : bias->items()) {
    const double number = value.is_number() ? value.get<double>() : 1000;
    if (!(number >= -100 && number <= 100))
      throw wrong("logit_bias", "must have numbers from -100 to 100");
    s.logit_bias.emplace_back(token_of(name, options.vocabulary), static_cast<float>(number));
  }
}

}  // namespace pith::serve
