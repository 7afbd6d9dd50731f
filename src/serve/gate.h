#pragma once
// Requests in OpenAI's form become calls. Every field is checked here and nowhere else; a field
// that would change the answer and is not there is refused by name.

#include "serve/call.h"
#include "serve/json_gate.h"

namespace pith::serve {

struct GateOptions {
  SamplingOptions sampling;  ///< where a request says nothing
  int32_t vocabulary = 0;    ///< of the tokenizer
  size_t context = 0;        ///< tokens
  bool strict = false;       ///< fields that are not known are refused too
};

/// Throw Refusal (400).
Call chat_call(const Json& body, const GateOptions& options);
Call text_call(const Json& body, const GateOptions& options);
/// OpenAI's responses; Anthropic's messages, `to_answer` or to count their tokens.
Call responses_call(const Json& body, const GateOptions& options);
/// The fields of a request that an answer in that form repeats.
Json responses_echo(const Json& body);
Call messages_call(const Json& body, const GateOptions& options, bool to_answer = true);
/// llama.cpp's infill.
Call infill_call(const Json& body, const GateOptions& options);
/// The messages alone, with tools: of /apply-template and the counting of tokens.
Call template_call(const Json& body, const GateOptions& options);

}  // namespace pith::serve
