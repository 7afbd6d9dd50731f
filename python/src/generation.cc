#include "generation.h"

#include <algorithm>
#include <chrono>

namespace pith::python {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool attention_fails(const Session& session) {
  const double most = session.options().error_probe.max_error;
  if (most <= 0) return false;
  const auto errors = session.attention_errors();
  return std::ranges::any_of(errors, [&](const AttentionError& e) { return e.low > most; });
}

}  // namespace

Generation::Generation(std::shared_ptr<Conversation> conversation, Ids prompt,
                       GenerateOptions options, int top, std::unique_ptr<Listener> listener)
    : conversation_(std::move(conversation)),
      prompt_(std::move(prompt)),
      options_(std::move(options)),
      top_(top),
      listener_(std::move(listener)),
      stepper_(conversation_->asked().model(), options_),
      sampler_(stepper_.sampling()) {
  const Session& session = conversation_->asked();
  if (prompt_.empty() && session.tokens() == 0)
    throw Error(ErrorCode::kInvalidArgument, "the prompt is empty; at least one token is needed");
  if (prompt_.empty() && top_ >= 0)
    throw Error(ErrorCode::kInvalidArgument,
                "logprobs need a prompt of at least one token: the last one's are not kept");
  const Entered entered(*conversation_);  // no other thread draws from it
  conversation_->owner_ = this;
}

Generation::~Generation() {
  if (done_) return;
  leave();
  if (!listener_ || conversation_->closed) return;
  try {
    // Its last token was not read, so that the session does not hold the text.
    result_.text = stepper_.text(), result_.tokens = stepper_.tokens();
    result_.reason = StopReason::kStopString;
    listener_->took(result_);
  } catch (const Error&) {
    listener_->take_back();
  }
}

void Generation::leave() {
  if (conversation_->owner_ == this) conversation_->owner_ = nullptr;
}

void Generation::read(std::span<const int32_t> tokens, const Progress& progress) {
  Session& session = conversation_->session();
  if (top_ < 0) {
    session.append(tokens, progress);
  } else {
    const auto logits = session.prefill(tokens, progress);
    logits_.assign(logits.begin(), logits.end());
  }
}

bool Generation::read_prompt(const Progress& progress) {
  started_ = true;
  if (prompt_.empty()) return true;
  bool stopped = false;
  const size_t before = conversation_->session().tokens();
  const auto start = Clock::now();
  read(prompt_, [&](size_t done, size_t total) {
    stopped = !progress(done, total);
    return !stopped;
  });
  result_.prompt_seconds = seconds_since(start);
  result_.prompt_tokens = conversation_->session().tokens() - before;
  return !stopped;
}

/// Reads what was drawn last, as GenerateOptions::append_last says; the text that was held back.
std::string Generation::end(StopReason reason) {
  Session& session = conversation_->session();
  if (waiting_ && options_.append_last && !stepper_.ended_text() &&
      session.tokens() < session.context())
    session.append({&*waiting_, 1});
  waiting_.reset();
  std::string rest = stepper_.finish();
  result_.reason = reason;
  done_ = true;
  return rest;
}

std::optional<Piece> Generation::step(const Progress& progress) {
  if (!started_) {
    if (!read_prompt(progress)) {
      end(StopReason::kCancelled);
      return std::nullopt;
    }
    if (stepper_.at_limit()) end(StopReason::kMaxTokens);
    if (done_) return std::nullopt;
  }
  const auto start = Clock::now();
  Session& session = conversation_->session();
  if (waiting_) {
    read({&*waiting_, 1}, {});
    waiting_.reset();
    if (attention_fails(session)) {
      Piece rest{end(StopReason::kAttentionError), -1, {}};
      if (rest.text.empty()) return std::nullopt;
      return rest;
    }
  }
  Piece piece;
  piece.token = session.sample(sampler_);
  if (top_ >= 0)
    piece.logprobs = log_probabilities(logits_, piece.token, static_cast<size_t>(top_));
  Stepper::Out out = stepper_.push(piece.token, session.context() - session.tokens());
  waiting_ = piece.token;
  piece.text = std::move(out.text);
  if (out.stop) piece.text += end(*out.stop);
  result_.decode_seconds += seconds_since(start);
  return piece;
}

void Generation::report() {
  if (!done_) return;
  leave();
  result_.text = stepper_.text();
  result_.tokens = stepper_.tokens();
  if (listener_) listener_->took(result_);
}

std::optional<Piece> Generation::next() {
  if (done_) return std::nullopt;
  Watch watch;
  try {
    const Entered entered(*conversation_, this);
    auto piece = unlocked([&] { return step(watch.progress()); });
    watch.rethrow();
    report();
    return piece;
  } catch (...) {
    leave();
    done_ = true;
    if (listener_) listener_->take_back();
    throw;
  }
}

void Generation::finish() {
  while (!done_) {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    next();
  }
}

void Generation::close() {
  if (done_) return;
  const Entered entered(*conversation_, this);
  unlocked([&] { end(StopReason::kCancelled); });
  report();
}

}  // namespace pith::python
