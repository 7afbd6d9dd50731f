#pragma once
// Answers in the forms that agents speak: OpenAI's responses, Anthropic's messages,
// llama.cpp's infill.

#include "serve/listeners.h"

namespace pith::serve {

std::shared_ptr<Listener> make_responses_listener(std::shared_ptr<Reply> reply,
                                                  AnswerOptions options);
std::shared_ptr<Listener> make_messages_listener(std::shared_ptr<Reply> reply,
                                                 AnswerOptions options);

std::shared_ptr<Listener> make_infill_listener(std::shared_ptr<Reply> reply, AnswerOptions options);

/// "event: NAME\ndata: {...}\n\n", where NAME is the data's "type".
std::string named_event(const Json& json);
/// {"type":"error","error":{...}}: Anthropic's form.
std::string messages_error_json(const Refusal& refusal);

}  // namespace pith::serve
