// Anthropic's messages: one content block of text.

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
    event({{"type", "content_block_start"},
           {"index", 0},
           {"content_block", {{"type", "text"}, {"text", ""}}}});
  }
  void read(size_t, size_t, size_t) override {
    if (open_) event({{"type", "ping"}});
  }
  void piece(size_t, std::string_view text, std::span<const TokenShown>,
             std::span<const int32_t>) override {
    text_ += text;
    if (open_)
      event({{"type", "content_block_delta"},
             {"index", 0},
             {"delta", {{"type", "text_delta"}, {"text", text}}}});
  }
  void choice_ended(size_t, StopReason) override {}

 protected:
  void complete(const Json& more) override {
    if (!open_) {
      Json json = message(stop_reason());
      json.update(more);
      return reply_->json(json);
    }
    event({{"type", "content_block_stop"}, {"index", 0}});
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
  const char* stop_reason() const {
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
    Json content = Json::array();
    if (!options_.stream) content.push_back({{"type", "text"}, {"text", text_}});
    return {{"id", options_.head.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", options_.head.model},
            {"content", content},
            {"stop_reason", reason == nullptr ? Json(nullptr) : Json(reason)},
            {"stop_sequence", nullptr},
            {"usage", usage()}};
  }

  bool open_ = false;
  std::string text_;
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
