#pragma once
// The forms of answers, made once for many requests; and tools for models whose template shows
// none.

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "pith/chat.h"
#include "pith/form.h"
#include "pith/tokenizer.h"
#include "serve/call.h"

namespace pith::serve {

/// Around the calls of all models: Qwen's and Hermes' words, and ours where we explain them.
inline constexpr const char *kCallOpens = "<tool_call>", *kCallCloses = "</tool_call>";

class Forms {
 public:
  /// Both must outlive it; `chat` may be null.
  Forms(const Tokenizer& tokenizer, const ChatTemplate* chat);

  /// Null: free text. Throws Refusal for a schema that is not supported.
  std::shared_ptr<const AnswerForm> of(const Call& call) const;
  /// The template shows tools, and has the model call them by our words.
  bool template_has_tools() const { return template_has_tools_; }
  /// The template shows what users say in every turn. Some read the last message alone.
  bool template_shows_users() const { return template_shows_users_; }

 private:
  using Known = std::pair<std::string, std::shared_ptr<const AnswerForm>>;

  std::shared_ptr<const AnswerForm> make(const Call& call) const;
  /// Drops the forms used least recently, past 32 and past 64 MiB.
  void forget() const;

  const Tokenizer& tokenizer_;
  bool template_has_tools_ = false, template_shows_users_ = false;
  mutable std::mutex lock_;  // of the next
  mutable std::shared_ptr<const FormVocabulary> vocabulary_;
  mutable std::list<Known> known_;  // the last asked for first
};

/// The same call without tools: the system message lists them, and calls and their results in
/// the history are text.
Call tools_as_text(const Call& call);

}  // namespace pith::serve
