#include "pith/chat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "chat/built_in.h"
#include "chat/sources.h"
#include "chat/template.h"
#include "model/tokenizers/tokenizer_vocab.h"
#include "pith/error.h"
#include "pith/tokenizer.h"

namespace pith {

using chat::Origin;
using chat::Template;
using chat::Text;
using chat::Value;

struct ChatTemplate::State {
  Template main;
  std::unique_ptr<const Template> with_tools;  // of models that have another one for tools
  std::string bos, eos;                        // empty: the tokenizer has none
  bool has_bos = false, has_eos = false;
  std::map<std::string, std::string> special;  // other tokens by their names
};

namespace {

using Variables = std::map<std::string, Value, std::less<>>;

[[noreturn]] void refuse_part(const char* what, const char* kind) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the {} of a chat must be a JSON {}", what, kind));
}

Value list_part(const std::string& text, const char* what) {
  auto value = chat::read_json(text);
  if (!value || value->list() == nullptr) refuse_part(what, "list");
  return *std::move(value);
}

/// Roles that are words of the template's language, not of a user's: some templates build special
/// tokens from them ('<|' + role + '|>').
bool is_known_role(std::string_view role) {
  static constexpr std::array<std::string_view, 9> kRoles = {
      "system", "developer", "user", "assistant", "tool", "function", "ipython", "model", "tools"};
  return std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end();
}

Value message_value(const Value& message) {
  const chat::Dict* dict = message.dict();
  if (dict == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "a message of a chat must be an object with role and content");
  }
  const Value* role = dict->find("role");
  const Text* name = role == nullptr ? nullptr : role->text();
  if (name == nullptr || !is_known_role(name->bytes())) return message;
  chat::Dict trusted = *dict;
  trusted.set(Text("role", Origin::kData), Text(name->bytes(), Origin::kTemplate));
  return trusted;
}

Value messages_value(const std::string& text) {
  const Value messages = list_part(text, "messages");
  chat::Values out;
  for (const Value& message : messages.list()->items) out.push_back(message_value(message));
  return chat::List(chat::List::Kind::kList, std::move(out));
}

Value list_value(const std::string& text, const char* what) {
  if (text.empty()) return chat::None{};
  return list_part(text, what);
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm out{};
  localtime_r(&now, &out);
  return out;
}

std::vector<ChatRun> runs_of(const Text& text) {
  std::vector<ChatRun> out;
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    out.push_back({text.bytes().substr(begin, run.end - begin), run.origin == Origin::kTemplate});
    begin = run.end;
  }
  return out;
}

std::vector<std::string_view> names_of_built_in() {
  std::vector<std::string_view> out;
  for (const chat::BuiltIn& built_in : chat::built_in_templates()) out.push_back(built_in.name);
  return out;
}

/// The first special token of what follows an answer; or its first line as text, and as a token if
/// it is one that the model's files do not call special.
ChatTurnEnd end_in(const std::string& text, const Tokenizer& tokenizer) {
  for (const int32_t id : tokenizer.encode(text)) {
    if (tokenizer.is_special(id)) return {.tokens = {id}, .text = {}};
  }
  const std::string line = text.substr(0, text.find('\n'));
  ChatTurnEnd end{.tokens = {}, .text = line};
  if (const auto token = tokenizer.find(line)) end.tokens.push_back(*token);
  return end;
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate::ChatTemplate(std::string_view source, std::string name, const Tokenizer& tokenizer)
    : state_(std::make_unique<State>(
          State{Template(source, std::move(name)), {}, {}, {}, false, false, {}})) {
  if (const auto* known = dynamic_cast<const VocabTokenizer*>(&tokenizer))
    state_->special = known->special_names();
  const auto spell = [&](int32_t id, std::string& text, bool& has) {
    has = id >= 0;
    if (has) text = tokenizer.piece(id);
  };
  spell(tokenizer.bos(), state_->bos, state_->has_bos);
  spell(tokenizer.eos(), state_->eos, state_->has_eos);
}

ChatTemplate ChatTemplate::of(const std::filesystem::path& model, const Tokenizer& tokenizer) {
  const chat::Sources sources = chat::sources_of(model);
  if (sources.main.empty()) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{} has no chat template, so how it was taught to talk is not known; "
                            "built-in ones to choose from: {}",
                            model.string(), fmt::join(names_of_built_in(), ", ")));
  }
  ChatTemplate out(sources.main, sources.name, tokenizer);
  if (!sources.with_tools.empty()) {
    out.state_->with_tools =
        std::make_unique<const Template>(sources.with_tools, sources.name + " (tool_use)");
  }
  return out;
}

ChatTemplate ChatTemplate::built_in(std::string_view name, const Tokenizer& tokenizer) {
  for (const chat::BuiltIn& one : chat::built_in_templates()) {
    if (one.name == name) return ChatTemplate(one.source, std::string(name), tokenizer);
  }
  throw Error(ErrorCode::kNotFound,
              fmt::format("there is no built-in chat template '{}'; there are {}", name,
                          fmt::join(names_of_built_in(), ", ")));
}

std::vector<std::string_view> ChatTemplate::built_in_names() { return names_of_built_in(); }

const std::string& ChatTemplate::name() const { return state_->main.name(); }

std::vector<ChatRun> ChatTemplate::render(const ChatRequest& request) const {
  Variables variables;
  if (!request.variables.empty()) {
    const auto more = chat::read_json(request.variables);
    if (!more || more->dict() == nullptr) refuse_part("variables", "object");
    for (const auto& [name, value] : more->dict()->items) variables[name.text()->bytes()] = value;
  }
  variables["messages"] = messages_value(request.messages);
  variables["tools"] = list_value(request.tools, "tools");
  variables["documents"] = list_value(request.documents, "documents");
  variables["add_generation_prompt"] = Value(request.add_generation_prompt);
  for (const auto& [name, text] : state_->special)
    variables.emplace(name, Text(text, Origin::kTemplate));
  if (state_->has_bos) variables["bos_token"] = Text(state_->bos, Origin::kTemplate);
  if (state_->has_eos) variables["eos_token"] = Text(state_->eos, Origin::kTemplate);
  const bool tools = !request.tools.empty() && state_->with_tools != nullptr;
  const Template& chosen = tools ? *state_->with_tools : state_->main;
  return runs_of(
      chosen.render(std::move(variables), request.now ? request.now : std::function(local_time)));
}

std::vector<int32_t> ChatTemplate::encode(const Tokenizer& tokenizer,
                                          const std::vector<ChatRun>& runs, size_t context) {
  std::string text;
  std::vector<TextSpan> trusted;
  for (const ChatRun& run : runs) {
    const size_t begin = text.size();
    text += run.text;
    if (run.from_template) trusted.push_back({begin, text.size()});
  }
  require_may_fit(tokenizer, text.size(), context);
  return encode_within(tokenizer, text, trusted);
}

std::vector<int32_t> ChatTemplate::encode(const Tokenizer& tokenizer, const ChatRequest& request,
                                          size_t context) const {
  std::vector<int32_t> ids = encode(tokenizer, render(request), context);
  const bool there = !ids.empty() && ids.front() == tokenizer.bos();
  if (tokenizer.add_bos() && !there) ids.insert(ids.begin(), tokenizer.bos());
  return ids;
}

// Seen by rendering an answer that is a word of ours: what follows it is the end.
ChatTurnEnd ChatTemplate::turn_end(const Tokenizer& tokenizer) const {
  static constexpr std::string_view kAnswer = "pith-answer";
  nlohmann::ordered_json messages{{{"role", "user"}, {"content", "question"}},
                                  {{"role", "assistant"}, {"content", kAnswer}}};
  // Some templates end an answer only where another message follows.
  for (const bool goes_on : {false, true}) {
    if (goes_on) messages.push_back({{"role", "user"}, {"content", "another"}});
    ChatRequest request;
    request.messages = messages.dump();
    request.add_generation_prompt = false;
    std::string text;
    try {
      for (const ChatRun& run : render(request)) text += run.text;
    } catch (const Error&) {
      return {};  // a template that refuses this conversation has its own idea of answers
    }
    const size_t found = text.rfind(kAnswer);
    if (found == text.npos) return {};
    text.erase(0, found + kAnswer.size());
    const size_t first = text.find_first_not_of(" \n");
    if (first == text.npos) continue;
    ChatTurnEnd end = end_in(text.substr(first), tokenizer);
    if (goes_on) end.text.clear();  // it may be what the user says next
    return end;
  }
  return {};
}

}  // namespace pith
