#pragma once
// What the listeners of all shapes share: sums over a request's tasks, and one end for all.

#include <atomic>
#include <memory>

#include "serve/listeners.h"
#include "serve/tool_reader.h"

namespace pith::serve {

class AnswerListener : public Listener {
 public:
  AnswerListener(std::shared_ptr<Reply> reply, AnswerOptions options)
      : reply_(std::move(reply)), options_(std::move(options)), left_(options_.tasks) {}

  bool gone() const override { return failed_ || reply_->gone(); }
  void ended(const Totals& totals) override;
  void failed(const Refusal& refusal) override;

 protected:
  /// All tasks have ended; `more` is timings and what is Pith's own.
  virtual void complete(const Json& more) = 0;
  virtual void tell(const Refusal& refusal) = 0;

  static std::string call_id() { return "call_" + random_id().substr(0, 24); }
  /// A choice ended by its own calls has another reason.
  static const char* finish_of(StopReason reason, size_t calls) {
    const char* word = finish_reason(reason);
    return calls > 0 && std::string_view(word) == "stop" ? "tool_calls" : word;
  }

  std::shared_ptr<Reply> reply_;
  const AnswerOptions options_;
  Usage usage_;
  Totals totals_;

 private:
  void sum(const Totals& totals);
  Json more() const;

  size_t left_;
  std::atomic<bool> failed_{false};
};

}  // namespace pith::serve
