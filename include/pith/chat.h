#pragma once
// Conversations as token ids: messages go through a chat template, the model's own or a built-in
// one. Templates are Jinja, in the subset that public models use; what a template needs and is not
// there is refused when it is read, by line and name. Special tokens count where the template wrote
// them: in the text of messages they are text, whatever a user types.

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

/// What a template is given. Lists and objects are JSON text, shaped as in OpenAI's API.
struct ChatRequest {
  /// [{"role": "user", "content": "Hello"}, ...]; content may be a list of parts, and messages may
  /// have tool_calls, tool_call_id and whatever else the template reads.
  std::string messages = "[]";
  std::string tools = {}, documents = {};  ///< lists; "" = none
  std::string variables = {};              ///< {"enable_thinking": false}; "" = none
  bool add_generation_prompt = true;
  std::function<std::tm()> now = {};  ///< of strftime_now; empty = this machine's local time
};

/// A stretch of a rendered conversation.
struct ChatRun {
  std::string text = {};
  bool from_template = true;  ///< false: of the messages, in which special tokens are text
};

/// What ends an answer in a template: tokens, and a text where the tokenizer has no special one for
/// it. They are for GenerateOptions::ends and ::stop.
struct ChatTurnEnd {
  std::vector<int32_t> tokens = {};
  std::string text = {};
};

/// Immutable after construction; any number of threads may use one at a time.
class ChatTemplate {
 public:
  /// Reads a template. `name` is for messages; the tokenizer's special tokens are bos_token and
  /// eos_token. Throws kCorrupt for what is no Jinja, kUnsupported for what this subset lacks.
  ChatTemplate(std::string_view source, std::string name, const Tokenizer& tokenizer);
  /// The model's own; `model` is its folder or its GGUF file. Throws kNotFound, with the names of
  /// the built-in ones, if it has none, and kCorrupt.
  static ChatTemplate of(const std::filesystem::path& model, const Tokenizer& tokenizer);
  /// One of built_in_names(). Throws kNotFound.
  static ChatTemplate built_in(std::string_view name, const Tokenizer& tokenizer);
  static std::vector<std::string_view> built_in_names();

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  const std::string& name() const;
  /// Throws kInvalidArgument for JSON that is malformed or no list of messages, for conversations
  /// that the template refuses (with its words), and past the limits: ten million steps, 64 MiB.
  std::vector<ChatRun> render(const ChatRequest& request) const;
  /// The rendered conversation as ids, with the token that begins a text if the tokenizer adds one
  /// and the template has not.
  std::vector<int32_t> encode(const Tokenizer& tokenizer, const ChatRequest& request) const;
  /// Ids of runs, and nothing in front of them.
  static std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::vector<ChatRun>& runs);
  /// What the template puts behind an answer. Empty if it cannot be told.
  ChatTurnEnd turn_end(const Tokenizer& tokenizer) const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  explicit ChatTemplate(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pith

#pragma GCC visibility pop
