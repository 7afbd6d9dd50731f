#pragma once
// Conversations as token ids: messages go through a chat template, the model's own or a built-in
// one. Templates are Jinja, in the subset that public models use; a template that needs more is
// refused when it is read, with line and name. Special tokens count only where the template wrote
// them: in messages they are plain text (docs/chat.md).

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

class Tokenizer;  // pith/tokenizer.h

/// The input of a template. Lists and objects are JSON text, shaped as in OpenAI's API.
struct ChatRequest {
  /// [{"role": "user", "content": "Hello"}, ...]. Content may be a list of parts. Messages may have
  /// tool_calls, tool_call_id and any other field that the template reads.
  std::string messages = "[]";
  std::string tools = {}, documents = {};  ///< lists; "" = none
  std::string variables = {};              ///< {"enable_thinking": false}; "" = none
  bool add_generation_prompt = true;
  std::function<std::tm()> now = {};  ///< for strftime_now; empty = local time
};

/// A piece of a rendered conversation.
struct ChatRun {
  std::string text = {};
  bool from_template = true;  ///< false: from a message; special tokens in it are text
};

/// The end of an answer in a template: tokens, or a text if the tokenizer has no special token for
/// it. Pass them to GenerateOptions::ends and ::stop.
struct ChatTurnEnd {
  std::vector<int32_t> tokens = {};
  std::string text = {};
};

/// Immutable after construction. Any number of threads may use it at once.
class ChatTemplate {
 public:
  /// Reads a template. `name` is for error messages; the tokenizer gives bos_token and eos_token.
  /// Throws kCorrupt for text that is not Jinja, kUnsupported for Jinja outside the subset.
  ChatTemplate(std::string_view source, std::string name, const Tokenizer& tokenizer);
  /// The template of a model; `model` is its folder or GGUF file. Throws kNotFound if it has none,
  /// with the names of the built-in ones, and kCorrupt.
  static ChatTemplate of(const std::filesystem::path& model, const Tokenizer& tokenizer);
  /// One of built_in_names(). Throws kNotFound.
  static ChatTemplate built_in(std::string_view name, const Tokenizer& tokenizer);
  static std::vector<std::string_view> built_in_names();

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  const std::string& name() const;
  /// Renders a conversation. Throws kInvalidArgument for malformed JSON, for conversations that the
  /// template refuses (with its message), and above ten million steps or 64 MiB of text.
  std::vector<ChatRun> render(const ChatRequest& request) const;
  /// The rendered conversation as ids. The token that begins a text is added if the tokenizer adds
  /// one and the template did not.
  /// Throws as require_may_fit() does, for the rendered text.
  std::vector<int32_t> encode(const Tokenizer& tokenizer, const ChatRequest& request,
                              size_t context = SIZE_MAX) const;
  /// Ids of runs, with nothing added in front. Throws as require_may_fit() does.
  static std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::vector<ChatRun>& runs,
                                     size_t context = SIZE_MAX);
  /// The tokens or text that the template writes after an answer; empty if unknown.
  ChatTurnEnd turn_end(const Tokenizer& tokenizer) const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  explicit ChatTemplate(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pith

#pragma GCC visibility pop
