#pragma once
// Sampling and the generation loop.

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pith/session.h"

namespace pith {

/// llama.cpp's names and defaults; temperature 0 is greedy.
struct SamplingOptions {
  float temperature = 0.8f;
  int top_k = 40;             ///< 0 = off
  float top_p = 0.95f;        ///< 1 = off
  float min_p = 0.05f;        ///< 0 = off
  float repeat_penalty = 1.0f;  ///< 1 = off
  int repeat_last_n = 64;     ///< tokens looked back at; 0 = off, -1 = all
  uint64_t seed = 0;
};

/// Draws tokens from logits; a pure function of (options, logits, history, draw number).
class Sampler {
 public:
  /// Throws kInvalidArgument for values that make no sense.
  explicit Sampler(const SamplingOptions& options);
  /// `history`: all tokens so far, newest last. Throws kNonFinite if no logit is finite.
  int32_t sample(std::span<const float> logits, std::span<const int32_t> history);

 private:
  SamplingOptions options_;
  uint64_t draws_ = 0;
  std::vector<std::pair<float, int32_t>> candidates_;
};

enum class StopReason : uint8_t { kEndOfText, kStopString, kMaxTokens, kContextFull, kCancelled };
const char* to_string(StopReason reason);

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_tokens = -1;              ///< -1: until the model or the context ends
  std::vector<std::string> stop;        ///< text ends before the first of these
  bool ignore_eos = false;
  const std::atomic<bool>* cancel = nullptr;  ///< set from a signal handler: ends cleanly
};

struct GenerateResult {
  std::string text;              ///< complete UTF-8, stop string excluded
  std::vector<int32_t> tokens;   ///< sampled, all of them in the cache but the last
  StopReason reason = StopReason::kMaxTokens;
  size_t prompt_tokens = 0;
  double prompt_seconds = 0, decode_seconds = 0;
  double prompt_per_second() const { return prompt_seconds > 0 ? prompt_tokens / prompt_seconds : 0; }
  double decode_per_second() const {
    return decode_seconds > 0 && tokens.size() > 1 ? (tokens.size() - 1) / decode_seconds : 0;
  }
};

/// Appends `prompt` to the session (after what it holds) and samples until something ends it.
/// `on_text` gets complete UTF-8 pieces as they become certain (never part of a stop string);
/// may be empty. Throws kInvalidArgument for an empty prompt on an empty session.
GenerateResult generate(Session& session, std::span<const int32_t> prompt,
                        const GenerateOptions& options,
                        const std::function<void(std::string_view)>& on_text = {},
                        const Progress& on_prefill = {});

}  // namespace pith
