#pragma once
// Shared by the listeners of all shapes: text parted into words and calls of tools, sums over a
// request's tasks, and one end for all.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "serve/listeners.h"
#include "serve/tool_reader.h"

namespace pith::serve {

class AnswerListener : public Listener {
 public:
  AnswerListener(std::shared_ptr<Reply> reply, AnswerOptions options)
      : reply_(std::move(reply)), options_(std::move(options)), left_(options_.tasks) {
    for (size_t i = 0; options_.tools && i < options_.choices; ++i)
      readers_.emplace_back(options_.call_begun);
  }

  bool gone() const override { return failed_ || reply_->gone(); }
  void read(size_t, size_t, size_t) override {}
  void piece(size_t choice, std::string_view text, std::span<const TokenShown> tokens,
             std::span<const int32_t> ids) final;
  void choice_ended(size_t choice, StopReason reason) final;
  void ended(const Totals& totals) override;
  void failed(const Refusal& refusal) override;

 protected:
  /// A piece of a choice's words. Its tokens are told apart where there may be calls.
  virtual void words(size_t choice, std::string_view text, std::span<const TokenShown> tokens) = 0;
  virtual void drawn(size_t, std::span<const TokenShown>, std::span<const int32_t>) {}
  /// A call of a tool, a piece of its arguments, and that it is over or was cut.
  virtual void call_begins(size_t, const std::string&) {}
  virtual void call_grows(size_t, std::string_view) {}
  virtual void call_ends(size_t) {}
  virtual void over(size_t, StopReason) {}
  size_t calls(size_t choice) const { return options_.tools ? readers_[choice].calls() : 0; }
  /// All tasks have ended; `more` is timings and what is Pith's own.
  virtual void complete(const Json& more) = 0;
  virtual void tell(const Refusal& refusal) = 0;

  static std::string call_id(const char* kind = "call_") {
    return kind + random_id().substr(0, 24);
  }
  /// A choice ended by its own calls, all of them whole.
  bool called(size_t choice, StopReason reason) const {
    return calls(choice) > 0 && !readers_[choice].cut() &&
           std::string_view(finish_reason(reason)) == "stop";
  }

  std::shared_ptr<Reply> reply_;
  const AnswerOptions options_;
  Usage usage_;
  Totals totals_;

 private:
  void tell_pieces(size_t choice, const std::vector<ToolPiece>& pieces);
  void sum(const Totals& totals);
  Json more() const;

  std::vector<ToolReader> readers_;  // of each choice, where there are tools
  size_t left_;
  std::atomic<bool> failed_{false};
};

}  // namespace pith::serve
