#pragma once
// A request as values in their ranges; no JSON is left but what templates read.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pith/form.h"
#include "pith/generate.h"

namespace pith::serve {

enum class Form : uint8_t { kChat, kText };

/// One prompt of a text completion: text or tokens.
struct TextPrompt {
  bool tokenised = false;
  std::string text;
  std::vector<int32_t> ids;
  std::string suffix;  ///< behind the answer; "" = the text ends with it
};

struct Call {
  Form form = Form::kChat;
  std::string model;  ///< as asked; "" = the first

  // Chat. JSON lists for the template, whose turns begin with a user's or a tool's message.
  std::vector<std::string> messages;  ///< each one JSON object; contents are strings
  std::vector<bool> opens_turn;       ///< of each message: a user's
  size_t user_bytes = 0;  ///< of users' words, without space around a message: templates trim it
  std::string tools, variables;  ///< JSON; "" = none
  std::string answer_begins;     ///< a last message of the assistant's, to go on with
  // Text.
  std::vector<TextPrompt> prompts;
  bool echo = false;

  // The form of the answer: a JSON document, of `schema` or any object; or calls of these tools.
  bool json = false;
  std::string schema, schema_field;  ///< "" = none; the field that it came in
  std::vector<FormTool> callable;
  bool must_call = false, many_calls = true;

  SamplingOptions sampling;
  bool seeded = false;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  int64_t max_tokens = -1;  ///< -1: not said
  size_t n = 1;
  int logprobs = -1;  ///< so many of the likeliest beside each token; -1: none, not its own either
  bool stream = false, include_usage = false, progress = false, return_tokens = false;
  int priority = 0;
  bool cache_prompt = true;

  // Pith's own.
  std::string policy, budget;  ///< "" = the model's
  std::optional<uint64_t> policy_seed;
  std::string conversation;  ///< a session's name; "" = none
  bool shared_name = false;  ///< requests at once may bear it: a hint where to look
  std::string salt;          ///< who may share its prompts
  bool protect_system = false;
};

}  // namespace pith::serve
