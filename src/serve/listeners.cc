// Chat and text completions: a stream of events, or one answer at the end.

#include "serve/listeners.h"

#include <chrono>
#include <utility>

#include "serve/listener_agents.h"
#include "serve/listener_base.h"

namespace pith::serve {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPingAfter = std::chrono::seconds(15);

class Stream : public AnswerListener {
 public:
  using AnswerListener::AnswerListener;

  void begun(size_t first, size_t choices) override {
    open();
    offsets_.resize(options_.choices);
    calls_.resize(options_.choices);
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

 protected:
  void drawn(size_t choice, std::span<const TokenShown>, std::span<const int32_t> ids) override {
    if (options_.tokens && !ids.empty()) write(tokens_event(options_.head, choice, ids));
  }
  void words(size_t choice, std::string_view text, std::span<const TokenShown> tokens) override {
    write(text_event(options_.head, choice, text, tokens, options_.logprobs, offsets_[choice]));
    offsets_[choice] += text.size();
  }
  void call_begins(size_t choice, const std::string& name) override {
    write(call_event(options_.head, choice, calls_[choice]++, {call_id(), name, ""}));
  }
  void call_grows(size_t choice, std::string_view piece) override {
    write(arguments_event(options_.head, choice, calls_[choice] - 1, piece));
  }
  void over(size_t choice, StopReason reason) override {
    const bool calls = called(choice, reason);
    write(end_event(options_.head, choice, calls ? "tool_calls" : finish_reason(reason)));
  }
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
    opened_ = last_ = Clock::now();
    reply_->begin_events();
  }
  void write(std::string text) {
    last_ = Clock::now();
    reply_->write(std::move(text));
  }

  bool open_ = false;
  Clock::time_point opened_, last_;
  std::vector<size_t> offsets_;
  std::vector<size_t> calls_;  // of each choice, told so far
};

class Whole : public AnswerListener {
 public:
  Whole(std::shared_ptr<Reply> reply, AnswerOptions options)
      : AnswerListener(std::move(reply), std::move(options)), choices_(options_.choices) {
    for (size_t i = 0; i < options_.echoes.size(); ++i) choices_[i].text = options_.echoes[i];
    if (options_.tokens)
      for (Choice& choice : choices_) choice.ids.emplace();
  }

  void begun(size_t, size_t) override {}

 protected:
  void words(size_t choice, std::string_view text, std::span<const TokenShown>) override {
    choices_[choice].text += text;
  }
  void drawn(size_t choice, std::span<const TokenShown> tokens,
             std::span<const int32_t> ids) override {
    Choice& c = choices_[choice];
    c.tokens.insert(c.tokens.end(), tokens.begin(), tokens.end());
    if (c.ids) c.ids->insert(c.ids->end(), ids.begin(), ids.end());
  }
  void call_begins(size_t choice, const std::string& name) override {
    choices_[choice].calls.push_back({call_id(), name, ""});
  }
  void call_grows(size_t choice, std::string_view piece) override {
    choices_[choice].calls.back().arguments += piece;
  }
  void over(size_t choice, StopReason reason) override {
    choices_[choice].finish = called(choice, reason) ? "tool_calls" : finish_reason(reason);
  }
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
  switch (options.shape) {
    case Shape::kResponses: return make_responses_listener(std::move(reply), std::move(options));
    case Shape::kMessages: return make_messages_listener(std::move(reply), std::move(options));
    case Shape::kInfill: return make_infill_listener(std::move(reply), std::move(options));
    case Shape::kCompletions: break;
  }
  if (options.stream) return std::make_shared<Stream>(std::move(reply), std::move(options));
  return std::make_shared<Whole>(std::move(reply), std::move(options));
}

}  // namespace pith::serve
