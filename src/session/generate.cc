// The generation loop: prompt in, then draw, show, append, until something ends it. One forward
// pass of one token per step; sampling and text handling are small beside it.

#include "pith/generate.h"

#include <algorithm>
#include <chrono>

#include "core/moved.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "session/stop_filter.h"

namespace pith {

struct Stepper::State {
  State(const Model& model, const GenerateOptions& o)
      : tokenizer(model.tokenizer()),
        sampling(o.sampling),
        max_tokens(o.max_tokens),
        ends(tokenizer.eos_ids()),
        filter(o.stop) {
    const auto& more = model.config().eos;
    ends.insert(ends.end(), more.begin(), more.end());
    ends.insert(ends.end(), o.ends.begin(), o.ends.end());
    if (o.form && o.ignore_eos)
      throw Error(ErrorCode::kInvalidArgument,
                  "an answer that is held to a form ends with it: ignore_eos makes no sense there");
    if (o.form) form.emplace(o.form, ends);
    if (o.ignore_eos) sampling.never.insert(sampling.never.end(), ends.begin(), ends.end());
  }

  const Tokenizer& tokenizer;
  SamplingOptions sampling;
  int64_t max_tokens;
  std::vector<int32_t> ends;
  Utf8Stream utf8;
  StopFilter filter;
  std::optional<FormFollower> form;
  std::string text;
  std::vector<int32_t> tokens;
  bool ended_text = false;

  bool at_limit() const {
    return max_tokens >= 0 && tokens.size() >= static_cast<size_t>(max_tokens);
  }
  std::string flush() {
    if (filter.stopped()) return {};
    std::string rest(filter.push(utf8.flush()));
    if (!filter.stopped()) rest += filter.finish();
    text += rest;
    return rest;
  }
  std::optional<StopReason> stop_of(int32_t token, size_t room, std::string& piece) {
    tokens.push_back(token);
    ended_text = std::find(ends.begin(), ends.end(), token) != ends.end();
    if (ended_text) return StopReason::kEndOfText;
    // A model may have more logits than its tokenizer has tokens: padding, which has no text.
    if (token < tokenizer.vocab_size() && !tokenizer.is_special(token)) {
      piece = filter.push(utf8.push(tokenizer.piece(token)));
      text += piece;
    }
    if (filter.stopped()) return StopReason::kStopString;
    if (form) form->push(token);
    if (form && form->complete()) return StopReason::kEndOfText;
    if (at_limit()) return StopReason::kMaxTokens;
    if (room == 0) return StopReason::kContextFull;
    return std::nullopt;
  }
};

Stepper::Stepper(const Model& model, const GenerateOptions& options)
    : state_(std::make_unique<State>(model, options)) {}
Stepper::~Stepper() = default;
Stepper::Stepper(Stepper&&) noexcept = default;
Stepper& Stepper::operator=(Stepper&&) noexcept = default;

const SamplingOptions& Stepper::sampling() const { return state().sampling; }
bool Stepper::at_limit() const { return state().at_limit(); }
const std::string& Stepper::text() const { return state().text; }
const std::vector<int32_t>& Stepper::tokens() const { return state().tokens; }
bool Stepper::ended_text() const { return state().ended_text; }
std::span<const uint32_t> Stepper::mask() {
  return state().form ? state().form->mask() : std::span<const uint32_t>();
}
std::string Stepper::finish() { return state().flush(); }
Stepper::State& Stepper::state() const { return there(state_, "a stepper"); }

Stepper::Out Stepper::push(int32_t token, size_t room) {
  Out out;
  out.stop = state().stop_of(token, room, out.text);
  if (out.stop) out.text += state().flush();
  return out;
}

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool cancelled(const GenerateOptions& options) {
  return options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed);
}

// Rows that a policy has dropped do not come back, so nothing but an end is left to do.
bool attention_fails(const Session& session) {
  const double most = session.options().error_probe.max_error;
  if (most <= 0) return false;
  const auto errors = session.attention_errors();
  return std::any_of(errors.begin(), errors.end(),
                     [&](const AttentionError& e) { return e.low > most; });
}

/// Appends the prompt; false if it was cancelled.
bool read_prompt(Session& session, std::span<const int32_t> prompt, const GenerateOptions& options,
                 const Progress& progress, GenerateResult& result) {
  bool stopped = false;
  const size_t before = session.tokens();
  const auto start = std::chrono::steady_clock::now();
  session.append(prompt, [&](size_t done, size_t total) {
    stopped = cancelled(options) || (progress && !progress(done, total));
    return !stopped;
  });
  result.prompt_seconds = seconds_since(start);
  result.prompt_tokens = session.tokens() - before;
  return !stopped;
}

/// Draws until something ends it; the last token is not appended yet, unless that was because of
/// the error that it made.
StopReason draw_until_end(Session& session, Stepper& stepper, const GenerateOptions& options,
                          const std::function<void(std::string_view)>& on_text) {
  Sampler sampler(stepper.sampling());
  if (stepper.at_limit()) return StopReason::kMaxTokens;
  for (;;) {
    if (cancelled(options)) return StopReason::kCancelled;
    if (options.form) sampler.set_mask(stepper.mask());
    const int32_t token = session.sample(sampler);
    const Stepper::Out out = stepper.push(token, session.context() - session.tokens());
    if (on_text && !out.text.empty()) on_text(out.text);
    if (out.stop) return *out.stop;
    session.append({&token, 1});
    if (attention_fails(session)) return StopReason::kAttentionError;
  }
}

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
  if (prompt.empty() && session.tokens() == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "the prompt is empty; at least one token is needed to go on from");
  }
  GenerateResult result;
  Stepper stepper(session.model(), options);
  const size_t before = session.tokens();
  const bool done = prompt.empty() || read_prompt(session, prompt, options, on_prefill, result);
  const auto start = std::chrono::steady_clock::now();
  result.reason =
      done ? draw_until_end(session, stepper, options, on_text) : StopReason::kCancelled;
  result.decode_seconds = seconds_since(start);
  const bool waits = done && session.tokens() - before < prompt.size() + stepper.tokens().size();
  if (options.append_last && waits && !stepper.ended_text() && session.tokens() < session.context())
    session.append({&stepper.tokens().back(), 1});
  const std::string rest = stepper.finish();
  if (on_text && !rest.empty()) on_text(rest);
  result.text = stepper.text();
  result.tokens = stepper.tokens();
  return result;
}

}  // namespace pith
