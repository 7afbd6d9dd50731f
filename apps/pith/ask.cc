// pith ask: questions about documents, answered by a compressed cache and, to compare, by the exact
// one. The documents are read once a policy; each question continues from there.

#include "ask.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "args.h"
#include "chat_options.h"
#include "console.h"
#include "engine.h"
#include "error_scale.h"
#include "interrupt.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "report.h"
#include "text_input.h"

namespace pith::cli {
namespace {

struct AskOptions {
  ModelOptions engine;
  ChatOptions chat;
  SamplingOptions sampling;
  std::vector<std::string> files, questions;
  std::string schema;  // a file; "" = free text
  int64_t predict = 200;
  bool compare = false, policy_given = false;
};

/// The answers under one policy.
struct Answers {
  std::string policy;
  std::vector<std::string> texts;                   // of each question
  std::vector<std::vector<AttentionError>> errors;  // the probe's estimates after each
  Ledger ledger;                                    // after the last
  double seconds = 0;
};

using Ids = std::vector<int32_t>;

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

/// All documents as one text. Empty documents and questions are refused before the model is loaded.
std::string read_documents(const AskOptions& o) {
  for (const std::string& question : o.questions) {
    require_utf8(question, "the question");
    if (trimmed(question).empty())
      throw Error(ErrorCode::kInvalidArgument, "a question is empty: -q needs a text to answer");
  }
  std::string documents;
  for (const std::string& file : o.files) {
    const std::string text = read_all(file);
    require_utf8(text, file);
    if (trimmed(text).empty())
      throw Error(ErrorCode::kInvalidArgument,
                  file + " has no text in it: there is nothing to ask about; name a text file");
    documents += fmt::format("{}:\n{}\n\n", std::filesystem::path(file).filename().string(), text);
  }
  return documents;
}

/// The prompt of each question: the documents, then the question, as one message.
std::vector<Ids> prompts_of(const AskOptions& o, const std::string& documents, const Model& model,
                            const ChatTemplate& chat, size_t context) {
  std::vector<Ids> out;
  require_may_fit(model.tokenizer(), documents.size(), context);
  for (const std::string& question : o.questions) {
    Json messages = Json::array();
    if (o.chat.system_given) messages.push_back({{"role", "system"}, {"content", o.chat.system}});
    messages.push_back({{"role", "user"}, {"content", documents + question}});
    ChatRequest request;
    request.messages = messages.dump();
    request.variables = o.chat.variables;
    out.push_back(chat.encode(model.tokenizer(), request, context));
  }
  return out;
}

/// Tokens that all prompts begin with; the last of none is among them.
size_t common_beginning(const std::vector<Ids>& prompts) {
  size_t common = prompts[0].size() - 1;
  for (const Ids& prompt : prompts) {
    const auto end = prompts[0].begin() + static_cast<ptrdiff_t>(common);
    const auto differs = std::mismatch(prompts[0].begin(), end, prompt.begin(), prompt.end() - 1);
    common = static_cast<size_t>(differs.first - prompts[0].begin());
  }
  return common;
}

Answers answer_all(const std::shared_ptr<Engine>& engine, const SessionOptions& options,
                   const std::vector<Ids>& prompts, const GenerateOptions& generation) {
  Answers out;
  out.policy = options.policy.to_string();
  Session documents(engine, options);
  const size_t common = common_beginning(prompts);
  ProgressBar bar("reading", "tokens", false);
  if (common > 0)
    documents.append(std::span(prompts[0]).first(common), Append::kMore, bar.callback());
  bar.finish();
  for (const Ids& prompt : prompts) {
    if (interrupted()) throw Error(ErrorCode::kIo, "stopped");
    Session session = documents.fork();
    session.append(std::span(prompt).subspan(common), Append::kPromptEnds);
    const GenerateResult result = generate(session, {}, generation);
    out.texts.push_back(result.text);
    out.errors.push_back(session.attention_errors());
    out.ledger = session.ledger();
    out.seconds += result.decode_seconds;
  }
  return out;
}

size_t same_answers(const std::vector<Answers>& all) {
  size_t same = 0;
  for (size_t q = 0; q < all[0].texts.size(); ++q)
    same += trimmed(all[0].texts[q]) == trimmed(all.back().texts[q]) ? 1 : 0;
  return same;
}

void print_text(const AskOptions& o, const std::vector<Answers>& all, size_t exact_bytes) {
  std::string out;
  for (size_t q = 0; q < o.questions.size(); ++q) {
    const std::string first = trimmed(all[0].texts[q]), last = trimmed(all.back().texts[q]);
    out += fmt::format("> {}\n{}\n", o.questions[q], first);
    if (all.size() > 1)
      out += first == last ? "[same answer with the exact cache]\n"
                           : fmt::format("[differs; the exact cache says:]\n{}\n", last);
    if (!all[0].errors[q].empty()) out += fmt::format("[{}]\n", short_error(all[0].errors[q]));
    out += "\n";
  }
  write_out(out);
  const auto bytes = [](size_t n) { return human_bytes(static_cast<double>(n)); };
  const Ledger& ledger = all[0].ledger;
  std::string line =
      fmt::format("{} tokens in {} instead of {} ({:.2f} bits per number)", ledger.tokens,
                  bytes(ledger.cache_bytes()), bytes(exact_bytes), ledger.effective_bits());
  if (all.size() > 1)
    line = fmt::format("{} of {} answers are the same; {}", same_answers(all), o.questions.size(),
                       line);
  say("pith: " + line);
}

void print_as_json(const AskOptions& o, const std::vector<Answers>& all, size_t exact_bytes) {
  Json answers = Json::array(), policies = Json::array();
  for (size_t q = 0; q < o.questions.size(); ++q) {
    Json entry{{"question", o.questions[q]}, {"answer", all[0].texts[q]}};
    if (all.size() > 1) {
      entry["exact"] = all.back().texts[q];
      entry["same"] = trimmed(all[0].texts[q]) == trimmed(all.back().texts[q]);
    }
    if (const auto error = mean_error(all[0].errors[q])) entry["attention_error"] = *error;
    answers.push_back(entry);
  }
  for (const Answers& a : all)
    policies.push_back({{"policy", a.policy},
                        {"tokens", a.ledger.tokens},
                        {"bytes", a.ledger.cache_bytes()},
                        {"bits", a.ledger.effective_bits()}});
  print_json({{"answers", answers}, {"policies", policies}, {"exact_bytes", exact_bytes}});
}

/// Without a word about it, the measured best policy of a quarter of the exact cache's bytes.
void choose_policy(AskOptions& o) {
  const bool said =
      o.policy_given || !o.engine.policy.budget.empty() || !o.engine.policy.memory.empty();
  if (!said) {
    o.engine.policy.policy = "auto";
    o.engine.policy.budget = "25%";
  }
  settle_auto(o.engine, nullptr, {.screens = said});
}

int run(AskOptions& o) {
  if (o.questions.empty())
    for (std::string line; std::getline(std::cin, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!trimmed(line).empty()) o.questions.push_back(line);
    }
  if (o.questions.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "there is no question: give -q, or lines on standard input");
  GenerateOptions generation;
  generation.sampling = o.sampling;
  generation.max_tokens = o.predict;
  generation.cancel = &interrupted();
  const Sampler checked(generation.sampling);
  const std::string documents = read_documents(o);
  StandaloneOptions options = session_options(o.engine);
  const auto model = load_model(o.engine);
  const ChatTemplate chat = choose_template(o.engine.model, model->tokenizer(), o.chat);
  end_turns(chat, chat.turn_end(model->tokenizer()), generation);
  set_form(o.schema, *model, generation);
  if (options.context == 0) options.context = static_cast<size_t>(model->config().context);
  const std::vector<Ids> prompts = prompts_of(o, documents, *model, chat, options.context);
  // Percentages are of what is read.
  const auto longest = std::ranges::max(prompts, {}, [](const Ids& p) { return p.size(); }).size();
  if (options.percent_of == 0) options.percent_of = longest;
  const auto engine = std::make_shared<Engine>(model, options);
  std::vector<Answers> all{answer_all(engine, options, prompts, generation)};
  if (o.compare) {
    SessionOptions exact = options;
    exact.policy = Policy::parse("exact");
    all.push_back(answer_all(engine, exact, prompts, generation));
  }
  const size_t exact_bytes = all[0].ledger.tokens * model->config().bytes_per_token(DType::kF16);
  o.engine.json ? print_as_json(o, all, exact_bytes) : print_text(o, all, exact_bytes);
  return 0;
}

}  // namespace

void add_ask(CLI::App& root, Action& action) {
  auto o = std::make_shared<AskOptions>();
  o->sampling.temperature = 0;
  CLI::App* app = root.add_subcommand("ask", "Ask questions about documents, and compare answers");
  app->add_option("files", o->files, "Text files that the questions are about")
      ->required()
      ->check(CLI::ExistingFile)
      ->type_name("FILE");
  add_repeated(*app, "-q,--question", o->questions,
               "A question; may be repeated. Without: lines of standard input")
      ->type_name("TEXT")
      ->group("Question");
  app->add_flag("--compare", o->compare, "Answer with the exact cache too, and mark differences")
      ->group("Question");
  app->add_option("-n,--predict,--n-predict", o->predict, "Most tokens an answer")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N")
      ->capture_default_str()
      ->group("Question");
  add_form_option(*app, o->schema);
  add_model_option(*app, o->engine);
  add_engine_options(*app, o->engine);
  add_device_option(*app, o->engine);
  add_chat_options(*app, o->chat);
  add_policy_options(*app, o->engine.policy);
  add_error_probe_options(*app, o->engine);
  add_sampling_options(*app, o->sampling);
  app->footer(
      "The documents are read once; every question continues from there. Without\n"
      "--kv-policy the measured best one of a quarter of the exact cache's bytes is\n"
      "taken (auto). 'pith serve' has the same on its page.\n\n"
      "Examples:\n"
      "  pith ask report.txt -m smollm2 -q 'Who wrote it?' -q 'When?' --compare\n"
      "  pith ask a.md b.md -m qwen2.5-coder-0.5b < questions.txt\n");
  app->callback([o, app, &action] {
    action = [o, app] {
      o->policy_given = app->count("--kv-policy") > 0;
      choose_policy(*o);
      return run(*o);
    };
  });
}

}  // namespace pith::cli
