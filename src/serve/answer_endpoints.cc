#include "serve/answer_endpoints.h"

#include <fmt/format.h>

#include <ctime>

#include "pith/tokenizer.h"
#include "pith/version.h"
#include "serve/listeners.h"

namespace pith::serve {
namespace {

/// The same for the same build and policy: what decides an answer beside the request.
std::string fingerprint(const std::string& key) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("pith-" PITH_VERSION "-{:08x}", hash >> 32);
}

std::string prefix_of(Shape shape, Form form) {
  switch (shape) {
    case Shape::kResponses: return "resp_";
    case Shape::kMessages: return "msg_";
    case Shape::kInfill:
    case Shape::kCompletions: break;
  }
  return form == Form::kChat ? "chatcmpl-" : "cmpl-";
}

}  // namespace

void AnswerEndpoints::chat(Visit& v) {
  answer(v, chat_call(parse_object(v.request.body), gate_options_), Shape::kCompletions);
}

void AnswerEndpoints::completions(Visit& v) {
  answer(v, text_call(parse_object(v.request.body), gate_options_), Shape::kCompletions);
}

void AnswerEndpoints::responses(Visit& v) {
  const Json body = parse_object(v.request.body);
  try {
    answer(v, responses_call(body, gate_options_), Shape::kResponses, responses_echo(body));
  } catch (Refusal& refusal) {
    if (refusal.param == "messages") refusal.param = "input";  // of a request's own fields
    throw;
  }
}

void AnswerEndpoints::messages(Visit& v) {
  answer(v, messages_call(parse_object(v.request.body), gate_options_), Shape::kMessages);
}

void AnswerEndpoints::infill(Visit& v) {
  answer(v, infill_call(parse_object(v.request.body), gate_options_), Shape::kInfill);
}

void AnswerEndpoints::answer(Visit& v, Call call, Shape shape, Json repeated) {
  if (call.conversation.empty())
    if (const std::string* session = v.request.find("X-Session-ID")) call.conversation = *session;
  auto tasks = preparer_.tasks(call, v.reply->tenant());
  const Task& first = *tasks.front();
  AnswerOptions options;
  AnswerHead& head = options.head;
  head.form = call.form;
  head.id = prefix_of(shape, call.form) + v.reply->id();
  head.model = call.model.empty() ? preparer_.presets()[0].id : call.model;
  head.fingerprint = fingerprint(first.policy);
  head.created = std::time(nullptr);
  head.usage_asked = call.include_usage;
  options.shape = shape;
  options.repeated = std::move(repeated);
  options.prompt_tokens = first.prompt.size();
  options.stream = call.stream;
  options.logprobs = call.logprobs >= 0;
  options.tools = !call.callable.empty();
  options.call_begun = call.must_call;
  if (options.tools && options.stream && options.logprobs)
    throw unsupported("logprobs", "in a stream with tools is not there");
  options.progress = call.progress;
  options.tokens = call.return_tokens;
  options.tasks = tasks.size();
  options.choices = tasks.size() * call.n;
  options.seed = first.sampling.seed;
  options.policy = first.session.policy.to_string();
  if (call.echo) {
    for (size_t i = 0; i < options.choices; ++i) {
      const TextPrompt& prompt = call.prompts[i / call.n];
      options.echoes.push_back(prompt.tokenised ? preparer_.tokenizer().decode(prompt.ids)
                                                : prompt.text);
    }
    if (options.logprobs) throw unsupported("echo", "with logprobs is not there yet");
  }
  v.reply->note("model", head.model.substr(0, 200));
  const auto listener = make_listener(v.reply, std::move(options));
  for (const auto& task : tasks) {
    task->listener = listener;
    try {
      scheduler_.submit(task);
    } catch (const Refusal& refusal) {
      listener->failed(refusal);  // those that were taken already end with it
      return;
    }
  }
}

}  // namespace pith::serve
