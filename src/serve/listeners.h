#pragma once
// The reply to a client from its tasks: a stream of events, or one answer at the end.

#include <memory>

#include "serve/events.h"
#include "serve/reply.h"
#include "serve/task.h"

namespace pith::serve {

/// Whose API is spoken.
enum class Shape : uint8_t {
  kCompletions,  ///< OpenAI's chat and text completions
  kResponses,    ///< OpenAI's responses
  kMessages,     ///< Anthropic's messages
  kInfill        ///< llama.cpp's
};

struct AnswerOptions {
  Shape shape = Shape::kCompletions;
  AnswerHead head;
  bool stream = false, logprobs = false, progress = false, tokens = false;
  size_t choices = 1, tasks = 1;
  uint64_t seed = 0;
  std::string policy;
  bool tools = false, call_begun = false;  ///< calls of tools may come; the text begins in one
  std::vector<std::string> echoes;         ///< text before each choice's own
  Json repeated;                           ///< fields of a request that responses have too
  size_t prompt_tokens = 0;                ///< of the first task
};

/// One listener for all tasks of a request.
std::shared_ptr<Listener> make_listener(std::shared_ptr<Reply> reply, AnswerOptions options);

}  // namespace pith::serve
