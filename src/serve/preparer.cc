#include "serve/preparer.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "pith/tokenizer.h"

namespace pith::serve {
namespace {

/// A prompt is cut before each of the first user turns, and then before every eighth: rendering a
/// conversation once a turn takes the square of its length.
constexpr size_t kTurnsCut = 32, kTurnsStep = 8;

std::string list_of(const std::vector<std::string>& messages, size_t count) {
  return fmt::format("[{}]", fmt::join(messages.begin(),
                                       messages.begin() + static_cast<std::ptrdiff_t>(count), ","));
}

uint64_t any_seed() {
  std::random_device device;
  // 53 bits: what JSON's readers keep.
  return (static_cast<uint64_t>(device()) << 32 | device()) >> 11;
}

std::string key_of(const SessionOptions& o) {
  return fmt::format("{}|{}|{}|{}|{}", o.policy.to_string(), o.context, o.percent_of, o.seed,
                     to_string(o.protect));
}

/// A policy, budget and seed of the request.
void set_policy(SessionOptions& session, const Call& call) {
  const char* field = "pith.policy";
  try {
    if (!call.policy.empty()) session.policy = Policy::parse(call.policy);
    field = "pith.budget";
    if (!call.budget.empty()) session.policy.set_budget(call.budget);
  } catch (const Error& error) {
    throw refusal_of(error, field);
  }
  if (call.policy_seed) session.seed = *call.policy_seed;
}

/// A prompt that is too long for the context is refused by its field.
template <class F>
auto within_context(const char* field, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kContextFull) throw;
    throw Refusal(400, "context_length_exceeded", error.what(), field);
  }
}

}  // namespace

Preparer::Preparer(std::shared_ptr<Engine> engine, std::shared_ptr<const ChatTemplate> chat,
                   const ServeOptions& options)
    : engine_(std::move(engine)),
      chat_(std::move(chat)),
      options_(options),
      forms_(engine_->model()->tokenizer(), chat_.get()) {
  SessionOptions session = options.session;
  const ModelConfig& config = engine_->model()->config();
  if (session.context == 0) session.context = static_cast<size_t>(config.context);
  context_ = session.context;
  presets_.push_back({options.name, session, key_of(session)});
  for (const ServeOptions::Preset& preset : options.presets) {
    session.policy = preset.policy;
    presets_.push_back({options.name + ":" + preset.name, session, key_of(session)});
  }
  ends_ = tokenizer().eos_ids();
  ends_.insert(ends_.end(), config.eos.begin(), config.eos.end());
  chat_ends_ = ends_;
  if (!chat_) return;
  const ChatTurnEnd end = chat_->turn_end(tokenizer());
  chat_ends_.insert(chat_ends_.end(), end.tokens.begin(), end.tokens.end());
  chat_stop_ = end.text;
}

const Preset& Preparer::preset(const std::string& model) const {
  for (const Preset& p : presets_)
    if (p.id == model) return p;
  if (model.empty() || options_.any_model) return presets_[0];
  std::string names;
  for (const Preset& p : presets_) names += (names.empty() ? "" : ", ") + p.id;
  throw Refusal(
      404, "model_not_found",
      fmt::format("there is no model '{}' here; there is {}", model.substr(0, 200), names),
      "model");
}

std::string Preparer::prompt_tenant(const std::string& who, const std::string& salt) const {
  return fmt::format("{}|{}|{}", who, salt, chat_ ? chat_->name() : "");
}

std::vector<int32_t> Preparer::encode(const Call& call, size_t messages, bool to_answer) const {
  if (!chat_)
    throw Refusal(400, "unsupported",
                  "the model has no chat template; use /v1/completions, or start the server with "
                  "--chat-template");
  ChatRequest request;
  request.messages = list_of(call.messages, messages);
  request.tools = call.tools;
  request.variables = call.variables;
  request.add_generation_prompt = to_answer;
  return chat_->encode(tokenizer(), request, context_);
}

const Call& Preparer::for_template(const Call& call, Call& room) const {
  const auto calls = [](const std::string& message) {
    const Json json = Json::parse(message);
    return json.contains("tool_calls") || json["role"] == "tool";
  };
  if (forms_.template_has_tools() ||
      (call.tools.empty() && std::none_of(call.messages.begin(), call.messages.end(), calls)))
    return call;
  return room = tools_as_text(call);
}

std::string Preparer::rendered(const Call& given) const {
  if (!chat_) throw Refusal(400, "unsupported", "the model has no chat template");
  Call room;
  const Call& call = for_template(given, room);
  ChatRequest request;
  request.messages = list_of(call.messages, call.messages.size());
  request.tools = call.tools;
  request.variables = call.variables;
  std::string out;
  for (const ChatRun& run : chat_->render(request)) out += run.text;
  return out + call.answer_begins;
}

Preparer::ChatTokens Preparer::chat_tokens(const Call& given) const {
  const size_t shown = forms_.template_shows_users() ? given.user_bytes : 0;
  require_may_fit(tokenizer(), shown + given.answer_begins.size(), context_);
  Call room;
  const Call& call = for_template(given, room);
  ChatTokens out;
  out.ids = encode(call, call.messages.size(), true);
  if (!call.answer_begins.empty()) {
    const auto more = tokenizer().encode(call.answer_begins, false);
    out.ids.insert(out.ids.end(), more.begin(), more.end());
  }
  if (call.must_call) {
    // Our words, so a token of their own is one.
    const auto more = tokenizer().encode(std::string(kCallOpens) + "\n");
    out.ids.insert(out.ids.end(), more.begin(), more.end());
  }
  size_t turns = 0;
  for (size_t i = 1; i < call.messages.size(); ++i) {
    if (!call.opens_turn[i]) continue;
    ++turns;
    if (turns > kTurnsCut && turns % kTurnsStep != 0) continue;
    std::vector<int32_t> begin;
    try {
      begin = encode(call, i, false);
    } catch (const Error&) {  // templates may refuse a conversation without a user's message
      continue;
    }
    // Only what is a beginning to the token may be shared.
    if (begin.empty() || begin.size() >= out.ids.size() ||
        !std::equal(begin.begin(), begin.end(), out.ids.begin()))
      continue;
    if (turns == 1 && i == 1 && !call.opens_turn[0]) out.system = begin.size();
    if (out.fork_points.empty() || begin.size() > out.fork_points.back())
      out.fork_points.push_back(begin.size());
  }
  return out;
}

std::vector<int32_t> Preparer::between(const TextPrompt& prompt) const {
  struct Words {
    const char *before, *after, *middle;
  };
  static constexpr Words kWords[] = {
      {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},  // Qwen
      {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},        // StarCoder, SmolLM
      {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
      {"<PRE>", "<SUF>", "<MID>"},  // CodeLlama, as special tokens
  };
  for (const Words& words : kWords) {
    const auto before = tokenizer().find(words.before), after = tokenizer().find(words.after),
               middle = tokenizer().find(words.middle);
    if (!before || !after || !middle) continue;
    std::vector<int32_t> out{*before};
    const auto add = [&](const std::string& text) {
      const auto ids = tokenizer().encode(text, false);  // code is no place for special tokens
      out.insert(out.end(), ids.begin(), ids.end());
    };
    add(prompt.text);
    out.push_back(*after);
    add(prompt.suffix);
    out.push_back(*middle);
    return out;
  }
  throw unsupported("suffix", "needs a model with tokens for it, as Qwen2.5 Coder has");
}

std::shared_ptr<Task> Preparer::common(const Call& call, const std::string& who) const {
  const Preset& chosen = preset(call.model);
  auto task = std::make_shared<Task>();
  task->session = chosen.session;
  task->policy = chosen.key;
  if (!call.policy.empty() || !call.budget.empty() || call.policy_seed) {
    set_policy(task->session, call);
    task->policy = key_of(task->session);
  }
  task->sampling = call.sampling;
  if (!call.seeded) task->sampling.seed = any_seed();
  const Sampler checked(task->sampling);
  task->choices = call.n;
  task->logprobs = call.logprobs;
  task->ignore_eos = call.ignore_eos;
  task->stop = call.stop;
  task->ends = call.form == Form::kChat ? chat_ends_ : ends_;
  if (call.form == Form::kChat && !chat_stop_.empty()) task->stop.push_back(chat_stop_);
  task->form = forms_.of(call);
  task->priority = call.priority;
  task->reuse = call.cache_prompt;
  task->tenant = prompt_tenant(who, call.salt);
  task->conversation = call.conversation;
  task->alone = !call.shared_name && !call.conversation.empty();
  return task;
}

void Preparer::fit(Task& task, const Call& call) const {
  const size_t tokens = task.prompt.size();
  if (tokens == 0) throw wrong(call.form == Form::kChat ? "messages" : "prompt", "has no token");
  if (tokens + (call.max_tokens == 0 ? 0 : 1) > context_)
    throw Refusal(400, "context_length_exceeded",
                  fmt::format("the prompt has {} tokens; the context is {} (-c), answer included",
                              tokens, context_),
                  call.form == Form::kChat ? "messages" : "prompt");
  const size_t wanted =
      call.max_tokens < 0 ? options_.max_tokens : static_cast<size_t>(call.max_tokens);
  task.max_tokens = std::min(wanted, context_ - tokens + (wanted > 0 ? 1 : 0));
}

std::vector<std::shared_ptr<Task>> Preparer::tasks(const Call& call, const std::string& who) const {
  std::vector<std::shared_ptr<Task>> out;
  if (call.form == Form::kChat) {
    auto task = common(call, who);
    ChatTokens tokens = within_context("messages", [&] { return chat_tokens(call); });
    task->prompt = std::move(tokens.ids);
    task->fork_points = std::move(tokens.fork_points);
    fit(*task, call);
    if (call.protect_system && tokens.system > 0) {
      task->session.protect = {{0, static_cast<int64_t>(tokens.system)}};
      task->policy = key_of(task->session);
    }
    out.push_back(std::move(task));
    return out;
  }
  for (const TextPrompt& prompt : call.prompts) {
    auto task = common(call, who);
    task->prompt = prompt.ids;
    if (!prompt.tokenised) {
      within_context("prompt", [&] {
        require_may_fit(tokenizer(), prompt.text.size() + prompt.suffix.size(), context_);
      });
      task->prompt = prompt.suffix.empty() ? tokenizer().encode(prompt.text) : between(prompt);
      if (tokenizer().add_bos()) task->prompt.insert(task->prompt.begin(), tokenizer().bos());
    }
    fit(*task, call);
    task->first_choice = out.size() * call.n;
    out.push_back(std::move(task));
  }
  return out;
}

}  // namespace pith::serve
