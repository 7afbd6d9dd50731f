#include "serve/forms.h"

#include <fmt/format.h>

#include <algorithm>

#include "serve/json_gate.h"
#include "serve/refusal.h"

namespace pith::serve {
namespace {

constexpr size_t kMostKnown = 32;
constexpr size_t kMostRemembered = size_t{64} << 20;  // bytes of all that are known

std::string shown(const ChatTemplate& chat, const std::string& messages,
                  const std::string& tools = "") {
  ChatRequest request;
  request.messages = messages;
  request.tools = tools;
  std::string out;
  for (const ChatRun& run : chat.render(request)) out += run.text;
  return out;
}

bool shows_users(const ChatTemplate& chat) {
  try {
    const std::string all = shown(chat, R"([{"role":"user","content":"pith-first"},)"
                                        R"({"role":"assistant","content":"pith-answer"},)"
                                        R"({"role":"user","content":"pith-second"}])");
    return all.find("pith-first") != all.npos && all.find("pith-second") != all.npos;
  } catch (const Error&) {  // a conversation that it refuses shows nothing
    return false;
  }
}

bool shows_tools(const ChatTemplate& chat) {
  constexpr const char* kAsked = R"([{"role":"user","content":"a"}])";
  try {
    const std::string with =
        shown(chat, kAsked,
              R"([{"type":"function","function":{"name":"f","description":"d",)"
              R"("parameters":{"type":"object","properties":{}}}}])");
    return with != shown(chat, kAsked) && with.find(kCallOpens) != std::string::npos;
  } catch (const Error&) {  // ours is shown instead
    return false;
  }
}

std::string key_of(const Call& call) {
  if (call.json) return "json" + call.schema;
  std::string key = fmt::format("calls {} {}", call.must_call, call.many_calls);
  for (const FormTool& tool : call.callable)
    key += fmt::format("\n{} {} {}", tool.name, tool.strict, tool.parameters);
  return key;
}

std::string called(const Json& call) {
  const Json& function = call["function"];
  return fmt::format("{}\n{}\n{}", kCallOpens,
                     dump_wide({{"name", function["name"]}, {"arguments", function["arguments"]}}),
                     kCallCloses);
}

std::string explained(const std::string& tools) {
  std::string out = "You may call these functions, each told as JSON:\n";
  for (const Json& tool : Json::parse(tools)) out += dump(tool["function"]) + "\n";
  return out + fmt::format(
                   "To call one, answer with its name and its arguments:\n{}\n"
                   "{{\"name\": NAME, \"arguments\": {{...}}}}\n{}\n"
                   "Its result comes in the next message.",
                   kCallOpens, kCallCloses);
}

}  // namespace

Forms::Forms(const Tokenizer& tokenizer, const ChatTemplate* chat)
    : tokenizer_(tokenizer),
      template_has_tools_(chat != nullptr && shows_tools(*chat)),
      template_shows_users_(chat != nullptr && shows_users(*chat)) {}

std::shared_ptr<const AnswerForm> Forms::make(const Call& call) const {
  if (!vocabulary_) vocabulary_ = std::make_shared<const FormVocabulary>(tokenizer_);
  try {
    if (call.json && call.schema.empty()) return AnswerForm::json_object(vocabulary_);
    if (call.json) return AnswerForm::json_schema(call.schema, vocabulary_);
    FormCalls calls{kCallOpens, kCallCloses, call.must_call, call.many_calls};
    return AnswerForm::tool_calls(call.callable, calls, vocabulary_);
  } catch (const Error& error) {
    throw Refusal(400, error.code() == ErrorCode::kUnsupported ? "unsupported" : "invalid_value",
                  error.what(), call.json ? call.schema_field : "tools");
  }
}

std::shared_ptr<const AnswerForm> Forms::of(const Call& call) const {
  if (!call.json && call.callable.empty()) return nullptr;
  const std::string key = key_of(call);
  const std::lock_guard guard(lock_);
  const auto at = std::ranges::find(known_, key, &Known::first);
  if (at != known_.end())
    known_.splice(known_.begin(), known_, at);
  else
    known_.emplace_front(key, make(call));
  forget();
  return known_.front().second;
}

void Forms::forget() const {
  size_t count = 0, bytes = 0;
  const auto too_much = [&](const Known& known) {
    bytes += known.second->bytes_remembered();
    return ++count > 1 && (count > kMostKnown || bytes > kMostRemembered);
  };
  known_.erase(std::ranges::find_if(known_, too_much), known_.end());
}

Call tools_as_text(const Call& call) {
  Call out = call;
  out.messages.clear();
  out.opens_turn.clear();
  std::string told = call.tools.empty() ? "" : explained(call.tools);
  out.tools.clear();
  for (size_t i = 0; i < call.messages.size(); ++i) {
    Json message = Json::parse(hide_wide(call.messages[i]));
    auto text = message["content"].get<std::string>();
    bool opens = call.opens_turn[i];
    if (i == 0 && message["role"] == "system" && !told.empty())
      text = std::exchange(told, "").insert(0, text + "\n\n");
    if (message.contains("tool_calls")) {
      for (const Json& one : message["tool_calls"])
        text += (text.empty() ? "" : "\n") + called(one);
      message.erase("tool_calls");
    }
    if (message["role"] == "tool") {
      message = {{"role", "user"}};
      text = "<tool_response>\n" + text + "\n</tool_response>";
      // Templates want turns to change: results of one answer's calls are one message.
      if (!out.messages.empty() && i > 0 && Json::parse(call.messages[i - 1])["role"] == "tool") {
        Json last = Json::parse(out.messages.back());
        last["content"] = last["content"].get<std::string>() + "\n" + text;
        out.messages.back() = dump(last);
        continue;
      }
      opens = true;
    }
    message["content"] = text;
    out.messages.push_back(dump(message));
    out.opens_turn.push_back(opens);
  }
  if (told.empty()) return out;
  out.messages.insert(out.messages.begin(), dump({{"role", "system"}, {"content", told}}));
  out.opens_turn.insert(out.opens_turn.begin(), false);
  return out;
}

}  // namespace pith::serve
