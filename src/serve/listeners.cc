#include "serve/listeners.h"

#include <atomic>
#include <chrono>

namespace pith::serve {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPingAfter = std::chrono::seconds(15);

const char* word(StopReason reason) {
  switch (reason) {
    case StopReason::kEndOfText: return "end_of_text";
    case StopReason::kStopString: return "stop_string";
    case StopReason::kMaxTokens: return "token_limit";
    case StopReason::kContextFull: return "context_full";
    case StopReason::kCancelled: return "cancelled";
    case StopReason::kAttentionError: return "attention_error";
  }
  return "unknown";
}

double rate(size_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

class Both : public Listener {
 public:
  Both(std::shared_ptr<Reply> reply, AnswerOptions options)
      : reply_(std::move(reply)), options_(std::move(options)), left_(options_.tasks) {}

  bool gone() const override { return failed_ || reply_->gone(); }

  void ended(const Totals& totals) override {
    sum(totals);
    if (--left_ > 0 || failed_) return;
    reply_->note("prompt_tokens", usage_.prompt_tokens);
    reply_->note("cached_tokens", usage_.cached_tokens);
    reply_->note("completion_tokens", usage_.completion_tokens);
    complete(more());
  }

  void failed(const Refusal& refusal) override {
    if (failed_.exchange(true)) return;
    tell(refusal);
  }

 protected:
  virtual void complete(const Json& more) = 0;
  virtual void tell(const Refusal& refusal) = 0;

  std::shared_ptr<Reply> reply_;
  const AnswerOptions options_;
  Usage usage_;
  Totals totals_;

 private:
  void sum(const Totals& t) {
    usage_.prompt_tokens += t.prompt_tokens;
    usage_.cached_tokens += t.cached_tokens;
    usage_.completion_tokens += t.drawn_tokens;
    const double prompt = totals_.prompt_seconds + t.prompt_seconds;
    const double decode = totals_.decode_seconds + t.decode_seconds;
    totals_ = t;
    totals_.prompt_seconds = prompt;
    totals_.decode_seconds = decode;
  }

  Json more() const {
    const size_t read = usage_.prompt_tokens - usage_.cached_tokens;
    const Json timings{
        {"prompt_n", read},
        {"prompt_ms", totals_.prompt_seconds * 1000},
        {"prompt_per_second", rate(read, totals_.prompt_seconds)},
        {"predicted_n", usage_.completion_tokens},
        {"predicted_ms", totals_.decode_seconds * 1000},
        {"predicted_per_second", rate(usage_.completion_tokens, totals_.decode_seconds)}};
    const Json pith{{"policy", options_.policy},
                    {"seed", options_.seed},
                    {"stop_reason", word(totals_.reason)},
                    {"reuse",
                     {{"kind", totals_.reuse_kind},
                      {"tokens", totals_.cached_tokens},
                      {"reason_of_miss", totals_.reuse_reason}}},
                    {"cache_bytes", totals_.bytes},
                    {"reserved_bytes", totals_.reserved_bytes},
                    {"bits", totals_.bits}};
    return {{"timings", timings}, {"pith", pith}};
  }

  size_t left_;
  std::atomic<bool> failed_{false};
};

class Stream : public Both {
 public:
  using Both::Both;

  void begun(size_t first, size_t choices) override {
    open();
    offsets_.resize(options_.choices);
    for (size_t i = first; i < first + choices; ++i) {
      if (options_.head.form == Form::kChat) write(role_event(options_.head, i));
      if (i < options_.echoes.size() && !options_.echoes[i].empty())
        write(text_event(options_.head, i, options_.echoes[i], {}, false, 0));
    }
  }
  void read(size_t done, size_t cached, size_t total) override {
    const auto now = Clock::now();
    if (options_.progress) {
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - opened_).count();
      write(progress_event(
          options_.head,
          {{"total", total}, {"cache", cached}, {"processed", done}, {"time_ms", ms}}));
    } else if (now - last_ > kPingAfter) {
      write(std::string(kPing));
    }
  }
  void piece(size_t choice, std::string_view text, std::span<const TokenShown> tokens,
             std::span<const int32_t>) override {
    write(text_event(options_.head, choice, text, tokens, options_.logprobs, offsets_[choice]));
    offsets_[choice] += text.size();
  }
  void choice_ended(size_t choice, StopReason reason) override {
    write(end_event(options_.head, choice, finish_reason(reason)));
  }

 protected:
  void complete(const Json& more) override {
    if (options_.head.usage_asked) write(usage_event(options_.head, usage_, more));
    write(std::string(kDone));
    reply_->end();
  }
  void tell(const Refusal& refusal) override {
    if (!open_) return reply_->refuse(refusal);
    reply_->note("error", refusal.code);
    write("data: " + error_json(refusal) + "\n\n");
    reply_->end();
  }

 private:
  void open() {
    if (std::exchange(open_, true)) return;
    opened_ = Clock::now();
    reply_->begin_events();
  }
  void write(std::string text) {
    last_ = Clock::now();
    reply_->write(std::move(text));
  }

  bool open_ = false;
  Clock::time_point opened_, last_;
  std::vector<size_t> offsets_;
};

class Whole : public Both {
 public:
  Whole(std::shared_ptr<Reply> reply, AnswerOptions options)
      : Both(std::move(reply), std::move(options)), choices_(options_.choices) {
    for (size_t i = 0; i < options_.echoes.size(); ++i) choices_[i].text = options_.echoes[i];
  }

  void begun(size_t, size_t) override {}
  void read(size_t, size_t, size_t) override {}
  void piece(size_t choice, std::string_view text, std::span<const TokenShown> tokens,
             std::span<const int32_t> ids) override {
    Choice& c = choices_[choice];
    c.text += text;
    c.tokens.insert(c.tokens.end(), tokens.begin(), tokens.end());
    if (options_.tokens) c.ids.insert(c.ids.end(), ids.begin(), ids.end());
  }
  void choice_ended(size_t choice, StopReason reason) override {
    choices_[choice].finish = finish_reason(reason);
  }

 protected:
  void complete(const Json& more) override {
    reply_->send(
        json_response(answer_json(options_.head, choices_, options_.logprobs, usage_, more)));
  }
  void tell(const Refusal& refusal) override { reply_->refuse(refusal); }

 private:
  std::vector<Choice> choices_;
};

}  // namespace

std::shared_ptr<Listener> make_listener(std::shared_ptr<Reply> reply, AnswerOptions options) {
  if (options.stream) return std::make_shared<Stream>(std::move(reply), std::move(options));
  return std::make_shared<Whole>(std::move(reply), std::move(options));
}

}  // namespace pith::serve
