// OpenAI's responses: one output item, a message of one part of text.

#include "serve/listener_agents.h"
#include "serve/listener_base.h"

namespace pith::serve {
namespace {

class Responses : public AnswerListener {
 public:
  using AnswerListener::AnswerListener;

  void begun(size_t, size_t) override {
    if (!options_.stream) return;
    open_ = true;
    reply_->begin_events();
    event("response.created", {{"response", response("in_progress")}});
    event("response.in_progress", {{"response", response("in_progress")}});
    event("response.output_item.added", {{"output_index", 0}, {"item", item("in_progress")}});
    event("response.content_part.added", in_item({{"part", part("")}}));
  }
  void read(size_t, size_t, size_t) override {}
  void piece(size_t, std::string_view text, std::span<const TokenShown>,
             std::span<const int32_t>) override {
    text_ += text;
    if (open_)
      event("response.output_text.delta", in_item({{"delta", text}, {"logprobs", Json::array()}}));
  }
  void choice_ended(size_t, StopReason) override {}

 protected:
  void complete(const Json& more) override {
    const bool whole = std::string_view(finish_reason(totals_.reason)) == "stop";
    const char* status = whole ? "completed" : "incomplete";
    done_ = true;
    Json json = response(status);
    json.update(more);
    if (!open_) return reply_->json(json);
    event("response.output_text.done", in_item({{"text", text_}, {"logprobs", Json::array()}}));
    event("response.content_part.done", in_item({{"part", part(text_)}}));
    event("response.output_item.done", {{"output_index", 0}, {"item", item(status)}});
    event(std::string("response.") + status, {{"response", json}});
    reply_->end();
  }
  void tell(const Refusal& refusal) override {
    if (!open_) return reply_->refuse(refusal);
    Json json = response("failed");
    json["error"] = {{"code", refusal.code}, {"message", refusal.what()}};
    event("response.failed", {{"response", json}});
    reply_->end();
  }

 private:
  void event(const std::string& type, const Json& fields) {
    Json json{{"type", type}, {"sequence_number", sequence_++}};
    json.update(fields);
    reply_->write(named_event(json));
  }
  std::string item_id() const { return "msg_" + reply_->id(); }
  Json part(const std::string& text) const {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
  }
  Json in_item(const Json& fields) const {
    Json json{{"item_id", item_id()}, {"output_index", 0}, {"content_index", 0}};
    json.update(fields);
    return json;
  }
  Json item(const char* status) const {
    Json content = Json::array();
    if (done_) content.push_back(part(text_));
    return {{"id", item_id()},
            {"type", "message"},
            {"status", status},
            {"role", "assistant"},
            {"content", content}};
  }
  Json response(const char* status) const {
    Json output = Json::array(), usage;
    if (done_) {
      output.push_back(item(status));
      usage = {{"input_tokens", usage_.prompt_tokens},
               {"input_tokens_details", {{"cached_tokens", usage_.cached_tokens}}},
               {"output_tokens", usage_.completion_tokens},
               {"output_tokens_details", {{"reasoning_tokens", 0}}},
               {"total_tokens", usage_.prompt_tokens + usage_.completion_tokens}};
    }
    Json incomplete;
    if (std::string_view(status) == "incomplete") incomplete = {{"reason", "max_output_tokens"}};
    return {{"id", options_.head.id},
            {"object", "response"},
            {"created_at", options_.head.created},
            {"status", status},
            {"error", nullptr},
            {"incomplete_details", incomplete},
            {"instructions", nullptr},
            {"model", options_.head.model},
            {"output", output},
            {"parallel_tool_calls", false},
            {"previous_response_id", nullptr},
            {"store", false},
            {"text", {{"format", {{"type", "text"}}}}},
            {"tool_choice", "auto"},
            {"tools", Json::array()},
            {"truncation", "disabled"},
            {"usage", usage},
            {"metadata", Json::object()}};
  }

  bool open_ = false, done_ = false;
  int sequence_ = 0;
  std::string text_;
};

}  // namespace

std::shared_ptr<Listener> make_responses_listener(std::shared_ptr<Reply> reply,
                                                  AnswerOptions options) {
  return std::make_shared<Responses>(std::move(reply), std::move(options));
}

}  // namespace pith::serve
