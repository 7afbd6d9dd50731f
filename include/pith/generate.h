#pragma once
// Sampling and the generation loop.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pith/session.h"

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// llama.cpp's names and defaults; temperature 0 is greedy. Applied in this order: logit_bias,
/// repeat_penalty, presence and frequency penalties, top_k, top_p, min_p, temperature.
struct SamplingOptions {
  float temperature = 0.8f;
  int top_k = 40;                 ///< the k likeliest stay; 0 = off
  float top_p = 0.95f;            ///< the likeliest stay until they hold this much; 1 = off
  float min_p = 0.05f;            ///< below this share of the likeliest's probability: out; 0 = off
  float repeat_penalty = 1.0f;    ///< positive logits of recent tokens are divided by it; 1 = off
  float presence_penalty = 0.0f;  ///< taken from the logits of recent tokens; 0 = off
  float frequency_penalty = 0.0f;  ///< the same, as often as a token is recent; 0 = off
  int repeat_last_n = 64;          ///< tokens that are recent; 0 = none, -1 = all
  uint64_t seed = 0;
  std::vector<int32_t> never = {};  ///< tokens that are never drawn
  /// Added to the logits of these tokens: finite, or -inf for tokens that are never drawn.
  std::vector<std::pair<int32_t, float>> logit_bias = {};
};

/// Draws tokens from logits; a pure function of (options, logits, history, draw number).
class Sampler {
 public:
  struct Candidate {
    float logit;
    int32_t id;
  };
  /// Makes of a logit x: x + bias; of that, positive divided by `divisor`, other times it; less
  /// `minus`.
  struct Adjustment {
    int32_t id;
    float bias, divisor, minus;
  };
  /// What a draw looks at, for devices that find it where the logits are.
  struct Ranking {
    size_t count = 0;                       ///< the first `count` by rank; 0: all finite logits
    std::vector<Adjustment> adjusted = {};  ///< each id once, in order; a bias of -inf: never drawn
    std::span<const uint32_t> mask = {};    ///< as set_mask(); valid until that is called again
  };

  /// `first_draw` numbers the first draw from bare logits; Session::sample and Engine::step number
  /// theirs by the position of the token that is drawn. Throws kInvalidArgument for values that
  /// make no sense.
  explicit Sampler(const SamplingOptions& options, uint64_t first_draw = 0);
  /// `history`: all tokens so far, newest last. Logits that are not finite are never drawn; equal
  /// logits rank by id, smallest first. Throws kNonFinite if no logit is finite.
  int32_t sample(std::span<const float> logits, std::span<const int32_t> history);
  /// What sample() would look at among `vocabulary` logits.
  Ranking ranking(std::span<const int32_t> history, size_t vocabulary) const;
  /// As sample(), from the finite logits that ranking() asks for, adjusted and unmasked, in the
  /// order of their rank. Throws kNonFinite if there are none.
  int32_t sample_ranked(std::span<const Candidate> best);
  /// Numbers the next draw.
  void set_draw(uint64_t number) { draws_ = number; }
  /// Only tokens whose bit is set are drawn from now on: bit `id % 32` of word `id / 32`, tokens
  /// past the words not at all. Empty: all, as at first. For grammars, before each draw.
  void set_mask(std::span<const uint32_t> words) { mask_.assign(words.begin(), words.end()); }
  const SamplingOptions& options() const { return options_; }

 private:
  std::vector<Adjustment> adjustments(std::span<const int32_t> history, size_t vocabulary) const;
  std::span<const int32_t> recent(std::span<const int32_t> history) const;
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
  std::vector<uint32_t> mask_;
  std::vector<float> logits_;          // [V], penalties applied
  std::vector<Candidate> candidates_;  // what is left to draw from
  size_t sorted_ = 0;                  // this many candidates are in the order of their logits
};

/// Probabilities as the model has them: the log-softmax of the raw logits, before penalties, bias,
/// mask and temperature.
struct TokenLogprobs {
  struct Entry {
    int32_t id;
    float logprob;
  };
  float logprob = 0;            ///< of the token
  std::vector<Entry> top = {};  ///< the likeliest, in the order of their rank
};
/// Of `token` and of the `top` likeliest among logits [V]. One pass over them. Throws
/// kInvalidArgument for a token that they do not have, and kNonFinite.
TokenLogprobs log_probabilities(std::span<const float> logits, int32_t token, size_t top = 0);

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
  SamplingOptions sampling = {};
  int64_t max_tokens = -1;             ///< -1: until the model or the context ends
  std::vector<std::string> stop = {};  ///< text ends before the first of these
  std::vector<int32_t> ends = {};      ///< tokens that end it beside the model's own
  bool ignore_eos = false;             ///< the tokens that end it are never drawn
  /// The last token drawn is appended too, so that the session holds the whole answer and the next
  /// prompt goes on behind it. A token that ended the text is no part of it.
  bool append_last = true;
  const std::atomic<bool>* cancel = nullptr;  ///< set from a signal handler: ends cleanly
};

/// One answer: takes the tokens that are drawn, gives text that is certain and says when to stop.
/// generate() and whoever runs many sessions by Engine::step use the same.
class Stepper {
 public:
  /// Throws kInvalidArgument for an empty stop string. The model must outlive it.
  Stepper(const Model& model, const GenerateOptions& options);
  ~Stepper();
  Stepper(Stepper&&) noexcept;
  Stepper& operator=(Stepper&&) noexcept;

  struct Out {
    std::string text = {};                ///< complete UTF-8, surely no part of a stop string
    std::optional<StopReason> stop = {};  ///< unset: append the token and draw the next
  };
  /// The sampling options with the tokens that are never to be drawn.
  const SamplingOptions& sampling() const;
  /// Whether no token is to be drawn at all (max_tokens = 0).
  bool at_limit() const;
  /// A token was drawn, and `room` more fit into the context behind those that the session holds.
  /// With a reason to stop comes all text that was held back.
  Out push(int32_t token, size_t room);
  /// Ends it for a reason of the caller's (cancelled, ...): the text that was held back.
  std::string finish();

  const std::string& text() const;             ///< all that came out
  const std::vector<int32_t>& tokens() const;  ///< all that came in
  bool ended_text() const;                     ///< by a token that is no part of the text

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

struct GenerateResult {
  std::string text = {};  ///< complete UTF-8, stop string excluded
  /// Sampled; in the session as GenerateOptions::append_last says.
  std::vector<int32_t> tokens = {};
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
/// may be empty. An empty prompt goes on where the session is. Throws kInvalidArgument for an empty
/// prompt and an empty session, for a token that the model does not have and for an empty stop
/// string, and what Session::prefill throws.
GenerateResult generate(Session& session, std::span<const int32_t> prompt,
                        const GenerateOptions& options,
                        const std::function<void(std::string_view)>& on_text = {},
                        const Progress& on_prefill = {});

}  // namespace pith

#pragma GCC visibility pop
