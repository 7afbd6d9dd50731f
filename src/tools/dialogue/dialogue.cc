// Which part of a conversation the session holds, by tokens or by text.

#include "pith_tools/dialogue.h"

#include <algorithm>
#include <charconv>

#include "core/json_file.h"
#include "pith/error.h"
#include "pith/saved.h"
#include "pith/tokenizer.h"

namespace pith {
namespace {

std::string text_of(const std::vector<ChatRun>& runs) {
  std::string out;
  for (const ChatRun& run : runs) out += run.text;
  return out;
}

/// Runs from byte `begin` on.
std::vector<ChatRun> runs_after(const std::vector<ChatRun>& runs, size_t begin) {
  std::vector<ChatRun> out;
  for (const ChatRun& run : runs) {
    if (begin < run.text.size()) out.push_back({run.text.substr(begin), run.from_template});
    begin -= std::min(begin, run.text.size());
  }
  return out;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

bool has_role(const Dialogue::Json& message, std::string_view role) {
  return message.is_object() && message.contains("role") && message["role"] == role;
}

bool starts_with(std::span<const int32_t> ids, std::span<const int32_t> start) {
  return ids.size() >= start.size() && std::equal(start.begin(), start.end(), ids.begin());
}

}  // namespace

Dialogue::Dialogue(std::shared_ptr<const Model> model, const StandaloneOptions& options,
                   ChatTemplate tmpl, DialogueSetup setup)
    : Dialogue(Session(std::move(model), options), std::move(tmpl), std::move(setup)) {}

Dialogue::Dialogue(Session empty, ChatTemplate tmpl, DialogueSetup setup)
    : model_(empty.engine()->model()),
      template_(std::move(tmpl)),
      setup_(std::move(setup)),
      empty_(std::move(empty)),
      session_(empty_.fork()) {
  reset();
}

void Dialogue::start_anew() {
  session_ = empty_.fork();
  shown_.clear();
}

void Dialogue::reset() {
  start_anew();
  messages_ = Json::array();
  if (setup_.system) messages_.push_back({{"role", "system"}, {"content", *setup_.system}});
}

std::optional<Dialogue::Json> Dialogue::undo() {
  size_t at = messages_.size();
  while (at > 0 && !has_role(messages_[at - 1], "user")) --at;
  if (at == 0) return std::nullopt;
  const Json& message = messages_[at - 1];
  const Json content = message.contains("content") ? message["content"] : Json();
  messages_.erase(messages_.begin() + static_cast<ptrdiff_t>(at - 1), messages_.end());
  start_anew();
  return content;
}

void Dialogue::set_system(std::optional<std::string> text) {
  Json messages = messages_;
  if (!messages.empty() && has_role(messages[0], "system")) messages.erase(0);
  if (text) messages.insert(messages.begin(), Json{{"role", "system"}, {"content", *text}});
  Json with_next = messages;
  with_next.push_back({{"role", "user"}, {"content", "?"}});
  rendered(with_next);
  setup_.system = std::move(text);
  messages_ = std::move(messages);
  start_anew();
}

Dialogue::Json Dialogue::parse_messages(std::string_view text, const std::string& what) {
  refuse_wide_integers(text, what);
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("messages")) json = Json(json["messages"]);
  const auto is_message = [](const Json& m) {
    return m.is_object() && m.contains("role") && m["role"].is_string();
  };
  if (!json.is_array() || !std::all_of(json.begin(), json.end(), is_message))
    throw Error(ErrorCode::kCorrupt,
                what +
                    ": expected a JSON list of messages, each with a \"role\", or an object that "
                    "has one under \"messages\"");
  return json;
}

void Dialogue::load(Json messages) {
  start_anew();
  messages_ = std::move(messages);
}

/// The tokens to append so that the session holds `runs`. Three cases: the session's tokens
/// begin the new ones; the text that it holds begins the new text, and only what is behind it is
/// tokenized; or the template has changed its mind about the past, and all is read again.
std::vector<int32_t> Dialogue::prompt_for(const std::vector<ChatRun>& runs, bool& read_again) {
  const Tokenizer& tokenizer = model_->tokenizer();
  std::vector<int32_t> ids = ChatTemplate::encode(tokenizer, runs, session_.context());
  if (tokenizer.add_bos() && (ids.empty() || ids.front() != tokenizer.bos()))
    ids.insert(ids.begin(), tokenizer.bos());
  const std::span<const int32_t> held = session_.token_ids();
  if (starts_with(ids, held) && ids.size() > held.size())
    return {ids.begin() + static_cast<ptrdiff_t>(held.size()), ids.end()};
  const std::string text = text_of(runs);
  for (const std::string& shown : shown_) {
    if (!text.starts_with(shown)) continue;
    auto rest = ChatTemplate::encode(tokenizer, runs_after(runs, shown.size()));
    if (!rest.empty()) return rest;
  }
  read_again = !held.empty();
  start_anew();
  return ids;
}

Dialogue::Answer Dialogue::answer(const std::string& text,
                                  const std::function<void(std::string_view)>& on_text,
                                  const Progress& on_read) {
  Answer answer;
  const Asked asked = ask(text);
  answer.read_again = asked.read_again;
  try {
    answer.result = generate(session_, asked.prompt, setup_.generate, on_text, on_read);
    took(answer.result);
  } catch (...) {
    take_back();
    throw;
  }
  return answer;
}

Dialogue::Asked Dialogue::ask(const std::string& text) {
  // Before it is rendered, which takes longer than to tokenize it.
  require_may_fit(model_->tokenizer(), text.size(), session_.context());
  messages_.push_back({{"role", "user"}, {"content", text}});
  asked_at_ = session_.tokens();
  try {
    Asked asked;
    asked.prompt = prompt_for(rendered(messages_), asked.read_again);
    return asked;
  } catch (...) {
    take_back();
    throw;
  }
}

void Dialogue::took(const GenerateResult& said) {
  if (said.tokens.empty()) {  // ended before a word was said
    messages_.erase(messages_.size() - 1);
    start_anew();
    return;
  }
  const auto runs = rendered(messages_);
  messages_.push_back({{"role", "assistant"}, {"content", said.text}});
  remember(runs, said.text, said.reason != StopReason::kStopString);
}

// Where nothing was appended the cache is as it was.
void Dialogue::take_back() {
  messages_.erase(messages_.size() - 1);
  if (session_.tokens() != asked_at_) start_anew();
}

std::vector<ChatRun> Dialogue::rendered(const Json& messages) const {
  ChatRequest request;
  request.messages = messages.dump();
  request.tools = setup_.tools;
  request.variables = setup_.variables;
  return template_.render(request);
}

// Many templates trim an answer; a stop string leaves tokens that its text does not have.
void Dialogue::remember(const std::vector<ChatRun>& runs, const std::string& said, bool whole) {
  shown_.clear();
  if (whole) shown_ = {text_of(runs) + said, text_of(runs) + trimmed(said)};
}

void Dialogue::save(const std::filesystem::path& path, bool replace) const {
  if (session_.tokens() == 0)
    throw Error(ErrorCode::kInvalidArgument,
                "there is no session to save: nothing was read yet; ask something first");
  const Json note{{"messages", messages_}, {"text_is_whole", !shown_.empty()}};
  session_.save(path, {.replace = replace, .note = note.dump()});
}

void Dialogue::resume(const std::filesystem::path& path) {
  const SavedSession saved = read_saved(path);
  const Json note = Json::parse(saved.note, nullptr, /*allow_exceptions=*/false);
  const auto is_answer = [](const Json& message) {
    return has_role(message, "assistant") && message.contains("content") &&
           message["content"].is_string();
  };
  const bool of_chat = note.is_object() && note.contains("messages") &&
                       note["messages"].is_array() && !note["messages"].empty() &&
                       is_answer(note["messages"].back());
  if (!of_chat)
    throw Error(ErrorCode::kInvalidArgument,
                path.string() +
                    " was not saved by a chat, so its messages are not known; continue "
                    "from it without a template ('pith run --session-load')");
  // Per cent of a budget are of what the session's first prompt said.
  SessionOptions options = empty_.options();
  const std::string percent_of = saved.field("per cent of");
  std::from_chars(percent_of.data(), percent_of.data() + percent_of.size(), options.percent_of);
  Session session = Session::restore(empty_.engine(), path, options);
  Json messages = note["messages"];
  const std::string said = messages.back()["content"];
  Json before_answer = messages;
  before_answer.erase(before_answer.size() - 1);
  const auto runs = rendered(before_answer);
  const bool whole = note.contains("text_is_whole") && note["text_is_whole"] == true;
  if (options.percent_of != empty_.options().percent_of) empty_ = Session(empty_.engine(), options);
  messages_ = std::move(messages);
  session_ = std::move(session);
  remember(runs, said, whole);
}

size_t Dialogue::set_policy(const Policy& policy, const Progress& on_read) {
  StandaloneOptions options{session_.options(), session_.engine()->options()};
  options.policy = policy;
  Session fresh(model_, options);
  Session empty = fresh.fork();
  const std::span<const int32_t> held = session_.token_ids();
  const size_t count = held.size();
  if (!held.empty()) {
    bool whole = true;
    fresh.append(held, [&](size_t done, size_t total) {
      whole = !on_read || on_read(done, total);
      return whole;
    });
    if (!whole) throw Error(ErrorCode::kIo, "stopped; the policy is as it was");
  }
  empty_ = std::move(empty);
  session_ = std::move(fresh);
  return count;
}

}  // namespace pith
