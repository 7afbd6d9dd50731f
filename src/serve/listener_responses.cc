// OpenAI's responses: output items, which are messages of one part of text and calls of tools.

#include <utility>

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
  }

 protected:
  void words(size_t, std::string_view text, std::span<const TokenShown>) override {
    if (!in_text_) open_message();
    grown_ += text;
    if (open_)
      event("response.output_text.delta", in_part({{"delta", text}, {"logprobs", Json::array()}}));
  }
  void call_begins(size_t, const std::string& name) override {
    open_item({{"id", "fc_" + item_id()},
               {"type", "function_call"},
               {"status", "in_progress"},
               {"call_id", call_id()},
               {"name", name},
               {"arguments", ""}});
  }
  void call_grows(size_t, std::string_view piece) override {
    grown_ += piece;
    if (open_) event("response.function_call_arguments.delta", in_item({{"delta", piece}}));
  }

  void complete(const Json& more) override {
    const bool whole = std::string_view(finish_reason(totals_.reason)) == "stop";
    const char* status = whole ? "completed" : "incomplete";
    if (items_.empty()) open_message();
    close_item(status);
    done_ = true;
    Json json = response(status);
    json.update(more);
    if (!open_) return reply_->json(json);
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
  /// The items before it are over.
  void open_item(Json item) {
    close_item("completed");
    in_text_ = item["type"] == "message";
    items_.push_back(std::move(item));
    if (open_)
      event("response.output_item.added",
            {{"output_index", items_.size() - 1}, {"item", items_.back()}});
  }
  void open_message() {
    open_item({{"id", "msg_" + item_id()},
               {"type", "message"},
               {"status", "in_progress"},
               {"role", "assistant"},
               {"content", Json::array()}});
    if (open_) event("response.content_part.added", in_part({{"part", part("")}}));
  }
  void close_item(const char* status) {
    if (items_.empty()) return;
    Json& item = items_.back();
    if (item["status"] != "in_progress") return;
    const std::string grown = std::exchange(grown_, {});
    item["status"] = status;
    if (in_text_)
      item["content"].push_back(part(grown));
    else
      item["arguments"] = grown;
    if (!open_) return;
    if (in_text_) {
      event("response.output_text.done", in_part({{"text", grown}, {"logprobs", Json::array()}}));
      event("response.content_part.done", in_part({{"part", part(grown)}}));
    } else {
      event("response.function_call_arguments.done",
            in_item({{"name", item["name"]}, {"arguments", grown}}));
    }
    event("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", item}});
  }
  /// Items of one answer have their place behind its id.
  std::string item_id() const { return reply_->id() + "_" + std::to_string(items_.size()); }
  static Json part(const std::string& text) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
  }
  Json in_item(const Json& fields) const {
    Json json{{"item_id", items_.back()["id"]}, {"output_index", items_.size() - 1}};
    json.update(fields);
    return json;
  }
  Json in_part(const Json& fields) const {
    Json json = in_item({{"content_index", 0}});
    json.update(fields);
    return json;
  }
  Json response(const char* status) const {
    Json usage;
    if (done_) {
      usage = {{"input_tokens", usage_.prompt_tokens},
               {"input_tokens_details", {{"cached_tokens", usage_.cached_tokens}}},
               {"output_tokens", usage_.completion_tokens},
               {"output_tokens_details", {{"reasoning_tokens", 0}}},
               {"total_tokens", usage_.prompt_tokens + usage_.completion_tokens}};
    }
    Json incomplete;
    if (std::string_view(status) == "incomplete") incomplete = {{"reason", "max_output_tokens"}};
    Json json{{"id", options_.head.id},
              {"object", "response"},
              {"created_at", options_.head.created},
              {"status", status},
              {"error", nullptr},
              {"incomplete_details", incomplete},
              {"model", options_.head.model},
              {"output", done_ ? items_ : Json::array()},
              {"previous_response_id", nullptr},
              {"store", false},
              {"truncation", "disabled"},
              {"usage", usage}};
    json.update(options_.repeated);
    return json;
  }

  bool open_ = false, done_ = false, in_text_ = false;
  int sequence_ = 0;
  Json items_ = Json::array();  // all so far; the last may grow
  std::string grown_;           // of the last: its text, or its arguments
};

}  // namespace

std::shared_ptr<Listener> make_responses_listener(std::shared_ptr<Reply> reply,
                                                  AnswerOptions options) {
  return std::make_shared<Responses>(std::move(reply), std::move(options));
}

}  // namespace pith::serve
