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

/// llama.cpp's names and defaults; temperature 0 is greedy. Applied in this order: repeat_penalty,
/// top_k, top_p, min_p, temperature.
struct SamplingOptions {
  float temperature = 0.8f;
  int top_k = 40;               ///< the k likeliest stay; 0 = off
  float top_p = 0.95f;          ///< the likeliest stay until they hold this much; 1 = off
  float min_p = 0.05f;          ///< below this share of the likeliest's probability: out; 0 = off
  float repeat_penalty = 1.0f;  ///< positive logits of recent tokens are divided by it; 1 = off
  int repeat_last_n = 64;       ///< tokens looked back at; 0 = off, -1 = all
  uint64_t seed = 0;
  std::vector<int32_t> never = {};  ///< tokens that are never drawn
};

/// Draws tokens from logits; a pure function of (options, logits, history, draw number).
class Sampler {
 public:
  struct Candidate {
    float logit;
    int32_t id;
  };
  /// What a draw looks at, for devices that find it where the logits are.
  struct Ranking {
    size_t count = 0;  ///< the first `count` by rank; 0: all finite logits
    float penalty = 1;
    std::vector<int32_t> penalised;  ///< each once
    std::vector<int32_t> never;      ///< each once
  };

  /// `first_draw` numbers the first draw: two turns of one conversation start at different numbers.
  /// Throws kInvalidArgument for values that make no sense.
  explicit Sampler(const SamplingOptions& options, uint64_t first_draw = 0);
  /// `history`: all tokens so far, newest last. Logits that are not finite are never drawn; equal
  /// logits rank by id, smallest first. Throws kNonFinite if no logit is finite.
  int32_t sample(std::span<const float> logits, std::span<const int32_t> history);
  /// What sample() would look at among `vocabulary` logits.
  Ranking ranking(std::span<const int32_t> history, size_t vocabulary) const;
  /// As sample(), from the finite logits that ranking() asks for, penalties applied, in the order
  /// of their rank. Throws kNonFinite if there are none.
  int32_t sample_ranked(std::span<const Candidate> best);

 private:
  void fill(std::span<const float> logits, std::span<const int32_t> history);
  void sort_first(size_t count);
  void keep_top_k();
  void keep_top_p();
  void keep_min_p();
  float highest_logit() const;
  int32_t draw_candidate();
  int32_t draw(uint64_t draw_number) const;

  SamplingOptions options_;
  uint64_t draws_;
  std::vector<float> logits_;          // [V], penalties applied
  std::vector<Candidate> candidates_;  // what is left to draw from
  size_t sorted_ = 0;                  // this many candidates are in the order of their logits
};

enum class StopReason : uint8_t {
  kEndOfText,
  kStopString,
  kMaxTokens,
  kContextFull,
  kCancelled,
  kAttentionError  ///< a layer's attention error is surely above the error probe's limit
};
const char* to_string(StopReason reason);

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_tokens = -1;                    ///< -1: until the model or the context ends
  std::vector<std::string> stop;              ///< text ends before the first of these
  std::vector<int32_t> ends;                  ///< tokens that end it beside the model's own
  bool ignore_eos = false;                    ///< the tokens that end it are never drawn
  std::vector<int32_t> history;               ///< tokens already in the session, for repeat_penalty
  const std::atomic<bool>* cancel = nullptr;  ///< set from a signal handler: ends cleanly
};

struct GenerateResult {
  std::string text;             ///< complete UTF-8, stop string excluded
  std::vector<int32_t> tokens;  ///< sampled, all of them in the cache but the last
  StopReason reason = StopReason::kMaxTokens;
  size_t prompt_tokens = 0;  ///< appended; fewer than given if the prompt was cancelled
  double prompt_seconds = 0, decode_seconds = 0;
  double prompt_per_second() const {
    return prompt_seconds > 0 ? static_cast<double>(prompt_tokens) / prompt_seconds : 0;
  }
  double decode_per_second() const {
    if (decode_seconds <= 0 || tokens.size() < 2) return 0;
    return static_cast<double>(tokens.size() - 1) / decode_seconds;
  }
};

/// Appends `prompt` to the session (after what it holds) and samples until something ends it.
/// `on_text` gets complete UTF-8 pieces as they become certain (never part of a stop string);
/// may be empty. To go on after an answer, start the next prompt with its last token, unless that
/// was the end of the text. Throws kInvalidArgument for an empty prompt, for a token that the model
/// does not have and for an empty stop string, and what Session::prefill throws.
GenerateResult generate(Session& session, std::span<const int32_t> prompt,
                        const GenerateOptions& options,
                        const std::function<void(std::string_view)>& on_text = {},
                        const Progress& on_prefill = {});

}  // namespace pith
