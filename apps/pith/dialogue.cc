#include "dialogue.h"

#include <algorithm>

#include "pith/error.h"
#include "pith/tokenizer.h"

namespace pith::cli {
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

bool starts_with(const std::vector<int32_t>& ids, const std::vector<int32_t>& start) {
  return ids.size() >= start.size() && std::equal(start.begin(), start.end(), ids.begin());
}

}  // namespace

Dialogue::Dialogue(std::shared_ptr<const Model> model, const StandaloneOptions& options,
                   ChatTemplate tmpl, DialogueSetup setup)
    : model_(std::move(model)),
      template_(std::move(tmpl)),
      setup_(std::move(setup)),
      empty_(model_, options),
      session_(empty_.fork()) {
  reset();
}

void Dialogue::start_anew() {
  session_ = empty_.fork();
  held_.clear();
  pending_.clear();
  shown_.clear();
}

void Dialogue::reset() {
  start_anew();
  messages_ = Json::array();
  if (!setup_.system.empty()) messages_.push_back({{"role", "system"}, {"content", setup_.system}});
}

void Dialogue::load(Json messages) {
  start_anew();
  messages_ = std::move(messages);
}

/// What has to be appended so that the session holds `runs`. Three cases: the session's tokens
/// begin the new ones; the text that it holds begins the new text, and only what is behind it is
/// tokenized; or the template has changed its mind about the past, and all is read again.
std::vector<int32_t> Dialogue::prompt_for(const std::vector<ChatRun>& runs, bool& read_again) {
  const Tokenizer& tokenizer = model_->tokenizer();
  std::vector<int32_t> ids = ChatTemplate::encode(tokenizer, runs);
  if (tokenizer.add_bos() && (ids.empty() || ids.front() != tokenizer.bos()))
    ids.insert(ids.begin(), tokenizer.bos());
  if (starts_with(ids, held_) && ids.size() > held_.size())
    return {ids.begin() + static_cast<ptrdiff_t>(held_.size()), ids.end()};
  const std::string text = text_of(runs);
  for (const std::string& shown : shown_) {
    if (!text.starts_with(shown)) continue;
    std::vector<int32_t> prompt = pending_;
    const auto rest = ChatTemplate::encode(tokenizer, runs_after(runs, shown.size()));
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    if (!prompt.empty()) return prompt;
  }
  read_again = !held_.empty();
  start_anew();
  return ids;
}

Dialogue::Answer Dialogue::answer(const std::string& text,
                                  const std::function<void(std::string_view)>& on_text,
                                  const Progress& on_read) {
  messages_.push_back({{"role", "user"}, {"content", text}});
  Answer answer;
  try {
    ChatRequest request;
    request.messages = messages_.dump();
    request.tools = setup_.tools;
    request.variables = setup_.variables;
    const auto runs = template_.render(request);
    const auto prompt = prompt_for(runs, answer.read_again);
    GenerateOptions options = setup_.generate;
    options.history = held_;
    answer.result = generate(session_, prompt, options, on_text, on_read);
    take(prompt, answer.result);
    if (answer.result.tokens.empty()) {  // ended before a word was said: as if never asked
      messages_.erase(messages_.size() - 1);
      start_anew();
      return answer;
    }
    messages_.push_back({{"role", "assistant"}, {"content", answer.result.text}});
    // Many templates trim an answer; a stop string leaves tokens that its text does not have.
    const std::string& said = answer.result.text;
    shown_.clear();
    if (answer.result.reason != StopReason::kStopString)
      shown_ = {text_of(runs) + said, text_of(runs) + trimmed(said)};
  } catch (...) {
    messages_.erase(messages_.size() - 1);
    // Where nothing was appended the cache is as it was; else it holds half a message.
    if (session_.tokens() != held_.size()) start_anew();
    throw;
  }
  return answer;
}

void Dialogue::take(const std::vector<int32_t>& prompt, const GenerateResult& result) {
  const auto read = prompt.begin() + static_cast<ptrdiff_t>(result.prompt_tokens);
  held_.insert(held_.end(), prompt.begin(), read);
  pending_.clear();
  if (result.tokens.empty()) return;
  held_.insert(held_.end(), result.tokens.begin(), result.tokens.end() - 1);
  if (result.reason != StopReason::kEndOfText) pending_.push_back(result.tokens.back());
}

size_t Dialogue::set_policy(const Policy& policy, const Progress& on_read) {
  StandaloneOptions options{session_.options(), session_.engine()->options()};
  options.policy = policy;
  Session fresh(model_, options);
  Session empty = fresh.fork();
  if (!held_.empty()) {
    bool whole = true;
    fresh.append(held_, [&](size_t done, size_t total) {
      whole = !on_read || on_read(done, total);
      return whole;
    });
    if (!whole) throw Error(ErrorCode::kIo, "stopped; the policy is as it was");
  }
  empty_ = std::move(empty);
  session_ = std::move(fresh);
  return held_.size();
}

}  // namespace pith::cli
