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

#include "pith/form.h"
#include "pith/session.h"

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// Names and defaults are llama.cpp's; temperature 0 is greedy. Order: logit_bias, repeat_penalty,
/// presence and frequency penalties, top_k, top_p, min_p, temperature.
struct SamplingOptions {
  float temperature = 0.8f;
  int top_k = 40;                  ///< keep the k likeliest; 0 = off
  float top_p = 0.95f;             ///< keep the likeliest up to this total probability; 1 = off
  float min_p = 0.05f;             ///< drop those below this share of the likeliest's; 0 = off
  float repeat_penalty = 1.0f;     ///< divides positive logits of recent tokens; 1 = off
  float presence_penalty = 0.0f;   ///< subtracted from logits of recent tokens; 0 = off
  float frequency_penalty = 0.0f;  ///< subtracted once per recent occurrence; 0 = off
  int repeat_last_n = 64;          ///< how many tokens are recent; 0 = none, -1 = all
  uint64_t seed = 0;
  std::vector<int32_t> never = {};  ///< tokens that are never drawn
  /// Added to the logits of these tokens: finite, or -inf for tokens that are never drawn.
  std::vector<std::pair<int32_t, float>> logit_bias = {};
};

/// Draws tokens from logits; a pure function of (options, logits, history, draw number). One that
/// was moved from throws kInvalidArgument.
class Sampler {
 public:
  struct Candidate {
    float logit;
    int32_t id;
  };
  /// Changes the logit x of `id`: y = x + bias, then y / divisor if y > 0 and y * divisor if not,
  /// then minus `minus`.
  struct Adjustment {
    int32_t id;
    float bias, divisor, minus;
  };
  /// The candidates of a draw, for devices that rank logits themselves.
  struct Ranking {
    size_t count = 0;                       ///< the `count` first by rank; 0: all finite logits
    std::vector<Adjustment> adjusted = {};  ///< ascending unique ids; a bias of -inf: never drawn
    std::span<const uint32_t> mask = {};    ///< as set_mask(); valid until its next call
  };

  /// `first_draw` is the number of the first draw by sample(). Session::sample and Engine::step
  /// number draws by the position of the token drawn. Throws kInvalidArgument for impossible
  /// values.
  explicit Sampler(const SamplingOptions& options, uint64_t first_draw = 0);
  /// Draws from logits [V]. `history`: all tokens so far, newest last. Non-finite logits are never
  /// drawn; equal logits rank by ascending id. Throws kNonFinite if no logit is finite.
  int32_t sample(std::span<const float> logits, std::span<const int32_t> history);
  /// The candidates that sample() would need of `vocabulary` logits.
  Ranking ranking(std::span<const int32_t> history, size_t vocabulary) const;
  /// As sample(), from the candidates of ranking(): finite, adjusted and allowed by the mask, in
  /// rank order. Throws kNonFinite if there are none.
  int32_t sample_ranked(std::span<const Candidate> best);
  /// Sets the number of the next draw.
  void set_draw(uint64_t number) { draws_ = number; }
  /// From now on only tokens whose bit is set are drawn: bit `id % 32` of word `id / 32`, none
  /// beyond the words. Empty (the default) allows all. For grammars: call it before each draw.
  void set_mask(std::span<const uint32_t> words);
  const SamplingOptions& options() const;

 private:
  /// Moves with the sampler, and tells what stays behind.
  struct Presence {
    bool gone = false;
    Presence() = default;
    Presence(const Presence&) = default;
    Presence(Presence&& o) noexcept : gone(std::exchange(o.gone, true)) {}
    Presence& operator=(const Presence&) = default;
    Presence& operator=(Presence&& o) noexcept {
      gone = std::exchange(o.gone, true);
      return *this;
    }
  };
  void check_there() const;
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

  Presence presence_;
  SamplingOptions options_;
  uint64_t draws_;
  std::vector<uint32_t> mask_;
  std::vector<float> logits_;          // [V], penalties applied
  std::vector<Candidate> candidates_;  // the tokens left to draw from
  size_t sorted_ = 0;                  // the first `sorted_` candidates are in order of logits
};

/// The model's own log-probabilities: the log-softmax of raw logits, before penalties, bias, mask
/// and temperature.
struct TokenLogprobs {
  struct Entry {
    int32_t id;
    float logprob;
  };
  float logprob = 0;            ///< of the token
  std::vector<Entry> top = {};  ///< the likeliest tokens, likeliest first
};
/// Log-probabilities of `token` and of the `top` likeliest among logits [V], in one pass. Throws
/// kInvalidArgument for a token outside [0, V), and kNonFinite.
TokenLogprobs log_probabilities(std::span<const float> logits, int32_t token, size_t top = 0);

enum class StopReason : uint8_t {
  kEndOfText,
  kStopString,
  kMaxTokens,
  kContextFull,
  kCancelled,
  kAttentionError  ///< a layer's interval lies above ErrorProbeOptions::max_error
};
const char* to_string(StopReason reason);

struct GenerateOptions {
  SamplingOptions sampling = {};
  int64_t max_tokens = -1;             ///< -1: until the model or the context ends
  std::vector<std::string> stop = {};  ///< the text ends before the first of these
  std::vector<int32_t> ends = {};      ///< tokens that end the answer, besides the model's own
  bool ignore_eos = false;             ///< tokens that end the answer are never drawn
  std::shared_ptr<const AnswerForm> form = {};  ///< the answer is held to it, and ends with it
  /// Append the last token drawn too, so that the session holds the whole answer. A token that
  /// ended the text is not appended.
  bool append_last = true;
  const std::atomic<bool>* cancel = nullptr;  ///< ends the answer when true; signal-safe
};

/// One answer: takes drawn tokens, returns text and the reason to stop. generate() uses it; so do
/// programs that run many sessions with Engine::step. One that was moved from throws
/// kInvalidArgument.
class Stepper {
 public:
  /// The model must outlive the stepper. Throws kInvalidArgument for an empty stop string, and for
  /// a form together with ignore_eos.
  Stepper(const Model& model, const GenerateOptions& options);
  ~Stepper();
  Stepper(Stepper&&) noexcept;
  Stepper& operator=(Stepper&&) noexcept;

  struct Out {
    std::string text = {};                ///< complete UTF-8, never part of a stop string
    std::optional<StopReason> stop = {};  ///< unset: append the token and draw the next
  };
  /// The sampling options, with the tokens that must never be drawn.
  const SamplingOptions& sampling() const;
  /// True if no token may be drawn at all (max_tokens = 0).
  bool at_limit() const;
  /// For Sampler::set_mask before each draw if the options have a form; empty otherwise.
  std::span<const uint32_t> mask();
  /// Takes a drawn token. `room`: tokens that still fit into the session's context, this one
  /// included. A stop comes with all text that was held back.
  Out push(int32_t token, size_t room);
  /// Ends the answer for the caller's reason and returns the text that was held back.
  std::string finish();

  const std::string& text() const;             ///< all text so far
  const std::vector<int32_t>& tokens() const;  ///< all tokens so far
  bool ended_text() const;                     ///< the last token ended the text, as no part of it

 private:
  struct [[gnu::visibility("hidden")]] State;
  State& state() const;
  std::unique_ptr<State> state_;
};

struct GenerateResult {
  std::string text = {};  ///< complete UTF-8, without the stop string
  /// The tokens drawn. GenerateOptions::append_last says whether the session has the last.
  std::vector<int32_t> tokens = {};
  StopReason reason = StopReason::kMaxTokens;
  size_t prompt_tokens = 0;  ///< appended; fewer than given if cancelled
  double prompt_seconds = 0, decode_seconds = 0;
  double prompt_per_second() const {
    return prompt_seconds > 0 ? static_cast<double>(prompt_tokens) / prompt_seconds : 0;
  }
  double decode_per_second() const {
    if (decode_seconds <= 0 || tokens.size() < 2) return 0;
    return static_cast<double>(tokens.size() - 1) / decode_seconds;
  }
};

/// Appends `prompt` to the session and draws tokens until the answer ends. `on_text` (may be empty)
/// gets complete UTF-8 that is never part of a stop string. An empty prompt continues from the
/// session's last token.
/// Throws kInvalidArgument for an empty prompt to an empty session, an unknown token and an empty
/// stop string, and the errors of Session::prefill.
GenerateResult generate(Session& session, std::span<const int32_t> prompt,
                        const GenerateOptions& options,
                        const std::function<void(std::string_view)>& on_text = {},
                        const Progress& on_prefill = {});

}  // namespace pith

#pragma GCC visibility pop
