// The generation loop: prompt in, then draw, show, append, until something ends it. One forward
// pass of one token per step; sampling and text handling are small beside it.

#include "pith/generate.h"

#include <algorithm>
#include <chrono>

#include "pith/error.h"
#include "pith/tokenizer.h"
#include "session/stop_filter.h"

namespace pith {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool cancelled(const GenerateOptions& options) {
  return options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed);
}

// Tokens become text that is certain: complete characters, and no part of a stop string.
class TextOut {
 public:
  TextOut(const GenerateOptions& options, const std::function<void(std::string_view)>& sink)
      : filter_(options.stop), sink_(sink) {}

  void push(std::string_view bytes) { emit(filter_.push(utf8_.push(bytes))); }
  void finish() {
    if (filter_.stopped()) return;
    emit(filter_.push(utf8_.flush()));
    emit(filter_.finish());
  }
  bool stopped() const { return filter_.stopped(); }
  std::string take() { return std::move(text_); }

 private:
  void emit(std::string_view piece) {
    if (piece.empty()) return;
    text_ += piece;
    if (sink_) sink_(piece);
  }

  Utf8Stream utf8_;
  StopFilter filter_;
  const std::function<void(std::string_view)>& sink_;
  std::string text_;
};

class Generation {
 public:
  Generation(Session& session, const GenerateOptions& options, TextOut& text,
             GenerateResult& result)
      : session_(session),
        options_(options),
        tokenizer_(session.model().tokenizer()),
        ends_(ends_of(session, options)),
        sampler_(sampling(options, ends_), session.tokens()),
        text_(text),
        result_(result),
        history_(options.history) {}

  /// Appends the prompt; false if it was cancelled.
  bool prefill(std::span<const int32_t> prompt, const Progress& progress) {
    bool stopped = false;
    const size_t before = session_.tokens();
    const auto start = std::chrono::steady_clock::now();
    session_.append(prompt, [&](size_t done, size_t total) {
      stopped = cancelled(options_) || (progress && !progress(done, total));
      return !stopped;
    });
    result_.prompt_seconds = seconds_since(start);
    result_.prompt_tokens = session_.tokens() - before;
    history_.insert(history_.end(), prompt.begin(), prompt.end());
    return !stopped;
  }

  StopReason decode() {
    const auto start = std::chrono::steady_clock::now();
    const StopReason reason = draw_until_end();
    result_.decode_seconds = seconds_since(start);
    return reason;
  }

 private:
  static std::vector<int32_t> ends_of(const Session& session, const GenerateOptions& options) {
    std::vector<int32_t> ends = session.model().tokenizer().eos_ids();
    const auto& more = session.model().config().eos;
    ends.insert(ends.end(), more.begin(), more.end());
    ends.insert(ends.end(), options.ends.begin(), options.ends.end());
    return ends;
  }
  static SamplingOptions sampling(const GenerateOptions& options, std::span<const int32_t> ends) {
    SamplingOptions sampling = options.sampling;
    if (options.ignore_eos) sampling.never.insert(sampling.never.end(), ends.begin(), ends.end());
    return sampling;
  }

  StopReason draw_until_end() {
    for (;;) {
      if (cancelled(options_)) return StopReason::kCancelled;
      if (at_limit()) return StopReason::kMaxTokens;
      const int32_t token = session_.sample(sampler_, history_);
      result_.tokens.push_back(token);
      history_.push_back(token);
      if (is_end(token)) return StopReason::kEndOfText;
      // A model may have more logits than its tokenizer has tokens: padding, which has no text.
      if (token < tokenizer_.vocab_size() && !tokenizer_.is_special(token)) {
        text_.push(tokenizer_.piece(token));
      }
      if (text_.stopped()) return StopReason::kStopString;
      if (at_limit()) return StopReason::kMaxTokens;
      if (session_.tokens() >= session_.context()) return StopReason::kContextFull;
      session_.append({&token, 1});
      if (attention_fails()) return StopReason::kAttentionError;
    }
  }

  bool at_limit() const {
    return options_.max_tokens >= 0 &&
           result_.tokens.size() >= static_cast<size_t>(options_.max_tokens);
  }

  // Rows that a policy has dropped do not come back, so nothing but an end is left to do.
  bool attention_fails() const {
    const double most = session_.options().error_probe.max_error;
    if (most <= 0) return false;
    const auto errors = session_.attention_errors();
    return std::any_of(errors.begin(), errors.end(),
                       [&](const AttentionError& e) { return e.low > most; });
  }

  bool is_end(int32_t token) const {
    return std::find(ends_.begin(), ends_.end(), token) != ends_.end();
  }

  Session& session_;
  const GenerateOptions& options_;
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ends_;
  Sampler sampler_;
  TextOut& text_;
  GenerateResult& result_;
  std::vector<int32_t> history_;
};

}  // namespace

const char* to_string(StopReason reason) {
  switch (reason) {
    case StopReason::kEndOfText: return "end of text";
    case StopReason::kStopString: return "stop string";
    case StopReason::kMaxTokens: return "token limit";
    case StopReason::kContextFull: return "context full";
    case StopReason::kCancelled: return "cancelled";
    case StopReason::kAttentionError: return "attention error above the limit";
  }
  return "unknown";
}

GenerateResult generate(Session& session, std::span<const int32_t> prompt,
                        const GenerateOptions& options,
                        const std::function<void(std::string_view)>& on_text,
                        const Progress& on_prefill) {
  if (prompt.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the prompt is empty; at least one token is needed to go on from");
  }
  GenerateResult result;
  TextOut text(options, on_text);
  Generation generation(session, options, text, result);
  const bool done = generation.prefill(prompt, on_prefill);
  result.reason = done ? generation.decode() : StopReason::kCancelled;
  text.finish();
  result.text = text.take();
  return result;
}

}  // namespace pith
