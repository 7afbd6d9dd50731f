// llama.cpp's own form, which editors ask /infill in: the text between a beginning and an end.

#include "serve/listener_agents.h"
#include "serve/listener_base.h"

namespace pith::serve {
namespace {

class Infill : public AnswerListener {
 public:
  using AnswerListener::AnswerListener;

  void begun(size_t, size_t) override {
    if (options_.stream) reply_->begin_events();
    open_ = options_.stream;
  }

 protected:
  void words(size_t, std::string_view text, std::span<const TokenShown>) override {
    if (open_)
      reply_->write(event({{"content", text}, {"stop", false}}));
    else
      text_ += text;
  }
  void complete(const Json& more) override {
    Json json{{"content", text_},
              {"stop", true},
              {"model", options_.head.model},
              {"tokens_predicted", usage_.completion_tokens},
              {"tokens_evaluated", usage_.prompt_tokens},
              {"tokens_cached", usage_.cached_tokens},
              {"truncated", false}};
    json.update(more);
    if (!open_) return reply_->json(json);
    reply_->write(event(json));
    reply_->end();
  }
  void tell(const Refusal& refusal) override {
    if (!open_) return reply_->refuse(refusal);
    reply_->write("data: " + error_json(refusal) + "\n\n");
    reply_->end();
  }

 private:
  bool open_ = false;
  std::string text_;
};

}  // namespace

std::shared_ptr<Listener> make_infill_listener(std::shared_ptr<Reply> reply,
                                               AnswerOptions options) {
  return std::make_shared<Infill>(std::move(reply), std::move(options));
}

}  // namespace pith::serve
