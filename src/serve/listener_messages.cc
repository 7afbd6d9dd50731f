// Anthropic's messages: content blocks of text and of calls of tools.

#include <utility>

#include "serve/listener_agents.h"
#include "serve/listener_base.h"

namespace pith::serve {
namespace {

class Messages : public AnswerListener {
 public:
  using AnswerListener::AnswerListener;

  void begun(size_t, size_t) override {
    if (!options_.stream) return;
    open_ = true;
    reply_->begin_events();
    event({{"type", "message_start"}, {"message", message(nullptr)}});
  }
  void read(size_t, size_t, size_t) override {
    if (open_) event({{"type", "ping"}});
  }

 protected:
  void words(size_t, std::string_view text, std::span<const TokenShown>) override {
    if (!in_text_) open_block({{"type", "text"}, {"text", ""}});
    in_text_ = true;
    grow(text, {{"type", "text_delta"}, {"text", text}});
  }
  void call_begins(size_t, const std::string& name) override {
    in_text_ = false;
    open_block({{"type", "tool_use"},
                {"id", call_id("toolu_")},
                {"name", name},
                {"input", Json::object()}});
  }
  void call_grows(size_t, std::string_view piece) override {
    grow(piece, {{"type", "input_json_delta"}, {"partial_json", piece}});
  }
  void complete(const Json& more) override {
    if (blocks_.empty()) open_block({{"type", "text"}, {"text", ""}});
    close_block();
    if (!open_) {
      Json json = message(stop_reason());
      json.update(more);
      return reply_->json(json);
    }
    Json delta{{"type", "message_delta"},
               {"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", nullptr}}},
               {"usage", usage()}};
    delta.update(more);
    event(delta);
    event({{"type", "message_stop"}});
    reply_->end();
  }
  void tell(const Refusal& refusal) override {
    if (!open_) {
      http::Response response = response_of(refusal);
      response.body = messages_error_json(refusal);
      return reply_->send(std::move(response));
    }
    reply_->write("event: error\ndata: " + messages_error_json(refusal) + "\n\n");
    reply_->end();
  }

 private:
  void event(const Json& json) { reply_->write(named_event(json)); }
  /// The blocks before it are over.
  void open_block(Json block) {
    close_block();
    if (open_)
      event({{"type", "content_block_start"}, {"index", blocks_.size()}, {"content_block", block}});
    blocks_.push_back(std::move(block));
  }
  void grow(std::string_view piece, const Json& delta) {
    grown_ += piece;
    if (open_)
      event({{"type", "content_block_delta"}, {"index", blocks_.size() - 1}, {"delta", delta}});
  }
  void close_block() {
    if (blocks_.empty() || closed_ == blocks_.size()) return;
    Json& last = blocks_.back();
    const std::string grown = std::exchange(grown_, {});
    const bool text = last["type"] == "text";
    // A call that was cut has no input that is JSON: stop_reason is max_tokens.
    const Json input = text ? Json() : Json::parse(grown, nullptr, false);
    if (text)
      last["text"] = grown;
    else if (!input.is_discarded())
      last["input"] = input;
    if (open_) event({{"type", "content_block_stop"}, {"index", closed_}});
    if (input.is_discarded()) blocks_.pop_back();
    closed_ = blocks_.size();
  }
  const char* stop_reason() const {
    if (called(0, totals_.reason)) return "tool_use";
    switch (totals_.reason) {
      case StopReason::kEndOfText: return "end_turn";
      case StopReason::kStopString: return "stop_sequence";
      default: return "max_tokens";
    }
  }
  Json usage() const {
    return {{"input_tokens", options_.prompt_tokens - usage_.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage_.cached_tokens},
            {"output_tokens", usage_.completion_tokens}};
  }
  Json message(const char* reason) const {
    return {{"id", options_.head.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", options_.head.model},
            {"content", open_ ? Json::array() : Json(blocks_)},
            {"stop_reason", reason == nullptr ? Json(nullptr) : Json(reason)},
            {"stop_sequence", nullptr},
            {"usage", usage()}};
  }

  bool open_ = false, in_text_ = false;
  std::vector<Json> blocks_;  // all so far; the last may grow
  size_t closed_ = 0;         // of them
  std::string grown_;         // of the last: its text, or its input as JSON
};

}  // namespace

std::string named_event(const Json& json) {
  return "event: " + json["type"].get<std::string>() + "\ndata: " + dump(json) + "\n\n";
}

std::string messages_error_json(const Refusal& refusal) {
  Json error = Json::parse(error_json(refusal))["error"];
  return dump({{"type", "error"}, {"error", error}});
}

std::shared_ptr<Listener> make_messages_listener(std::shared_ptr<Reply> reply,
                                                 AnswerOptions options) {
  return std::make_shared<Messages>(std::move(reply), std::move(options));
}

}  // namespace pith::serve
