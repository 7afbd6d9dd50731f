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
    while (options_.tools && readers_.size() < options_.choices)
      readers_.emplace_back(options_.call_begun);
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
    if (options_.tools) return write_pieces(choice, readers_[choice].push(text));
    write(text_event(options_.head, choice, text, tokens, options_.logprobs, offsets_[choice]));
    offsets_[choice] += text.size();
  }
  void choice_ended(size_t choice, StopReason reason) override {
    size_t calls = 0;
    if (options_.tools) {
      write_pieces(choice, readers_[choice].finish());
      calls = readers_[choice].calls();
    }
    write(end_event(options_.head, choice, finish_of(reason, calls)));
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
  void write_pieces(size_t choice, const std::vector<ToolPiece>& pieces) {
    using Kind = ToolPiece::Kind;
    for (const ToolPiece& piece : pieces) {
      // Of the choice's calls, the one that was begun last.
      if (piece.kind == Kind::kBegins) ++calls_[choice];
      const size_t call = calls_[choice] - 1;
      if (piece.kind == Kind::kText)
        write(text_event(options_.head, choice, piece.text, {}, false, 0));
      else if (piece.kind == Kind::kBegins)
        write(call_event(options_.head, choice, call, {call_id(), piece.text, ""}));
      else if (piece.kind == Kind::kArguments)
        write(arguments_event(options_.head, choice, call, piece.text));
    }
  }
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
  std::vector<ToolReader> readers_;  // of each choice, where there are tools
  std::vector<size_t> calls_;        // of each choice, told so far
};

class Whole : public AnswerListener {
 public:
  Whole(std::shared_ptr<Reply> reply, AnswerOptions options)
      : AnswerListener(std::move(reply), std::move(options)), choices_(options_.choices) {
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
    Choice& c = choices_[choice];
    if (options_.tools) take_calls(c);
    c.finish = finish_of(reason, c.calls.size());
  }

 protected:
  void complete(const Json& more) override {
    reply_->send(
        json_response(answer_json(options_.head, choices_, options_.logprobs, usage_, more)));
  }
  void tell(const Refusal& refusal) override { reply_->refuse(refusal); }

 private:
  void take_calls(Choice& c) const {
    ToolReader reader(options_.call_begun);
    std::vector<ToolPiece> pieces = reader.push(std::exchange(c.text, {}));
    for (ToolPiece& last : reader.finish()) pieces.push_back(std::move(last));
    for (ToolPiece& piece : pieces) {
      if (piece.kind == ToolPiece::Kind::kText) c.text += piece.text;
      if (piece.kind == ToolPiece::Kind::kBegins)
        c.calls.push_back({call_id(), std::move(piece.text), ""});
      if (piece.kind == ToolPiece::Kind::kArguments) c.calls.back().arguments += piece.text;
    }
  }

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
