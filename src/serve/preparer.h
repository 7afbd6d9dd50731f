#pragma once
// From a call to tasks: the model's preset, the template, tokens, fork points, limits.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pith/chat.h"
#include "pith/engine.h"
#include "pith_serve/serve.h"
#include "serve/call.h"
#include "serve/forms.h"
#include "serve/task.h"

namespace pith::serve {

/// A model id and what it means.
struct Preset {
  std::string id;
  SessionOptions session;
  std::string key;  ///< of its policy, for the books
};

class Preparer {
 public:
  Preparer(std::shared_ptr<Engine> engine, std::shared_ptr<const ChatTemplate> chat,
           const ServeOptions& options);

  const std::vector<Preset>& presets() const { return presets_; }
  /// Throws Refusal (404) for a model that is none.
  const Preset& preset(const std::string& model) const;
  size_t context() const { return context_; }
  const Tokenizer& tokenizer() const { return engine_->model()->tokenizer(); }
  const ChatTemplate* chat() const { return chat_.get(); }

  /// One task a prompt. Throws Refusal and Error. `who`: the tenant. Listeners are the caller's to
  /// set.
  std::vector<std::shared_ptr<Task>> tasks(const Call& call, const std::string& who) const;
  /// The rendered conversation as text.
  std::string rendered(const Call& call) const;
  /// Its tokens, and the places from which others may continue.
  struct ChatTokens {
    std::vector<int32_t> ids;
    std::vector<size_t> fork_points;
    size_t system = 0;  ///< tokens of the system message
  };
  ChatTokens chat_tokens(const Call& call) const;
  /// Under which its prompts are shared.
  std::string prompt_tenant(const std::string& who, const std::string& salt) const;

 private:
  /// `call` as the template takes it; `room` holds what had to be changed.
  const Call& for_template(const Call& call, Call& room) const;
  std::vector<int32_t> encode(const Call& call, size_t messages, bool to_answer) const;
  /// Tokens that ask for the text between a beginning and an end.
  std::vector<int32_t> between(const TextPrompt& prompt) const;
  std::shared_ptr<Task> common(const Call& call, const std::string& who) const;
  void fit(Task& task, const Call& call) const;

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<const ChatTemplate> chat_;
  ServeOptions options_;
  Forms forms_;
  std::vector<Preset> presets_;
  size_t context_ = 0;
  std::vector<int32_t> ends_, chat_ends_;
  std::string chat_stop_;
};

}  // namespace pith::serve
