#pragma once
// The generation loop of pith/generate.h, a token at a time, for an iterator: what is drawn is
// shown before it is read, so that text comes as early as it can.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "binding.h"

namespace pith {
class Dialogue;
}

namespace pith::python {

/// One token of an answer.
struct Piece {
  std::string text;  ///< complete UTF-8; empty while it may be a part of a character or a stop
  int32_t token;
  std::optional<TokenLogprobs> logprobs;
};

/// Of a chat's answer: hears how it ended.
struct Listener {
  virtual ~Listener() = default;
  virtual void took(const GenerateResult& result) = 0;
  virtual void take_back() = 0;
};

class Generation {
 public:
  /// `top` < 0: no probabilities.
  Generation(std::shared_ptr<Conversation> conversation, Ids prompt, GenerateOptions options,
             int top, std::unique_ptr<Listener> listener);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// The next token, or nothing at the end. With the interpreter's lock held.
  std::optional<Piece> next();
  /// To its end.
  void finish();
  /// Ends it here; what was drawn is in the session.
  void close();
  bool done() const { return done_; }
  const GenerateResult& result() const { return result_; }
  const std::shared_ptr<Conversation>& conversation() const { return conversation_; }
  std::string text() const { return stepper_.text(); }

 private:
  std::optional<Piece> step(const Progress& progress);
  void read(std::span<const int32_t> tokens, const Progress& progress);
  bool read_prompt(const Progress& progress);
  std::string end(StopReason reason);
  void report();
  void leave();

  std::shared_ptr<Conversation> conversation_;
  Ids prompt_;
  GenerateOptions options_;
  int top_;
  std::unique_ptr<Listener> listener_;
  Stepper stepper_;
  Sampler sampler_;
  std::vector<float> logits_;       // [V] after the last token, where probabilities are wanted
  std::optional<int32_t> waiting_;  // drawn and shown, not read yet
  GenerateResult result_;
  bool started_ = false, done_ = false;
};

}  // namespace pith::python
