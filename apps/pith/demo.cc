// pith demo: facts are hidden in a long document, the model reads it once under each policy and is
// asked for every fact on a fork of that one cache. Beside the answers stand what the cache cost,
// how fast it was, and how far the next-token distributions are from the exact cache's: the mean
// Kullback-Leibler divergence KL(exact || policy) over the positions of the exact cache's own
// answers, fed to every policy (teacher forcing), from f32 logits of this process.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>

#include "args.h"
#include "commands.h"
#include "console.h"
#include "core/output_file.h"
#include "engine.h"
#include "interrupt.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "report.h"
#include "text_input.h"
#include "tools/eval/document.h"

namespace pith::cli {
namespace {

constexpr int64_t kAnswerTokens = 12;  // a space, seven digits, a full stop, and a few to spare

struct DemoOptions {
  ModelOptions engine;
  int64_t tokens = 5000, facts = 8, rows = 1024, runs = 1;
  uint64_t seed = 1;
  std::vector<std::string> policies;
  std::string document;
};

struct Cancelled {};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The input of every policy.
struct Exam {
  DemoDocument document;
  std::vector<int32_t> ids;                     // the document, begin token included
  std::vector<std::vector<int32_t>> questions;  // [facts]
  // From the first, exact run: its answers and the logits that led to them.
  std::vector<std::vector<int32_t>> answers;            // [facts]
  std::vector<std::vector<std::vector<float>>> logits;  // [facts][answer positions][V]
};

// One policy with one seed.
struct Trial {
  std::vector<bool> right;  // [facts]
  double divergence = 0;    // mean over answer positions, nats
  double prefill_rate = 0, decode_rate = 0;
  Ledger ledger;

  double score() const { return static_cast<double>(std::count(right.begin(), right.end(), true)); }
};

struct Row {
  std::string name, policy;
  std::vector<uint64_t> seeds;
  std::vector<Trial> trials;
};

// log softmax(x), in double.
std::vector<double> log_softmax(std::span<const float> x) {
  const double highest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (float value : x) sum += std::exp(value - highest);
  std::vector<double> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] - highest - std::log(sum);
  return out;
}

double divergence(std::span<const float> exact, std::span<const float> other) {
  const auto p = log_softmax(exact), q = log_softmax(other);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  return std::max(sum, 0.0);  // rounding may leave a crumb below zero
}

Exam make_exam(const Model& model, const DemoOptions& o) {
  const Tokenizer& tokenizer = model.tokenizer();
  Exam exam;
  exam.document =
      make_document(static_cast<size_t>(o.tokens), static_cast<size_t>(o.facts), o.seed,
                    [&](const std::string& text) { return tokenizer.encode(text).size(); });
  exam.ids = encode_prompt(model, exam.document.text, -1);
  for (const HiddenFact& fact : exam.document.facts) {
    exam.questions.push_back(tokenizer.encode(fact.question()));
  }
  return exam;
}

class Examiner {
 public:
  Examiner(std::shared_ptr<const Model> model, const DemoOptions& o, Exam& exam)
      : model_(std::move(model)), o_(o), exam_(exam) {
    size_t longest = 0;
    for (const auto& q : exam.questions) longest = std::max(longest, q.size());
    context_ = std::max(static_cast<size_t>(o.engine.context),
                        exam.ids.size() + longest + static_cast<size_t>(kAnswerTokens) + 1);
  }

  Trial run(const std::string& label, const std::string& policy, uint64_t seed) {
    StandaloneOptions options = session_options(o_.engine);
    options.policy = Policy::parse(policy);
    options.seed = seed;
    options.context = context_;
    Session session(model_, options);
    ProgressBar bar(label, "steps", o_.engine.json);
    const size_t total = exam_.ids.size() + exam_.questions.size() * 128;
    const auto start = std::chrono::steady_clock::now();
    session.prefill(exam_.ids, [&](size_t done, size_t) { return bar.update(done, total); });
    Trial trial;
    trial.prefill_rate = static_cast<double>(exam_.ids.size()) / seconds_since(start);
    check_cancelled();
    trial.ledger = session.ledger();
    Totals totals;
    for (size_t i = 0; i < exam_.questions.size(); ++i) {
      ask(session, i, trial, totals);
      compare(session, i, totals);
      bar.update(exam_.ids.size() + (i + 1) * 128, total);
      check_cancelled();
    }
    trial.decode_rate = totals.seconds > 0 ? totals.steps / totals.seconds : 0;
    trial.divergence = totals.positions > 0 ? totals.divergence / totals.positions : 0;
    return trial;
  }

 private:
  struct Totals {
    double seconds = 0, steps = 0, divergence = 0, positions = 0;
  };

  static void check_cancelled() {
    if (interrupted()) throw Cancelled{};
  }

  // Greedy, on a fork: the next question meets the same cache.
  void ask(const Session& session, size_t i, Trial& trial, Totals& totals) {
    Session fork = session.fork();
    GenerateOptions options;
    options.sampling.temperature = 0;
    options.max_tokens = kAnswerTokens;
    options.stop = {"."};
    options.append_last = false;  // the fork goes
    const GenerateResult result = generate(fork, exam_.questions[i], options);
    trial.right.push_back(result.text.find(exam_.document.facts[i].value) != std::string::npos);
    totals.seconds += result.decode_seconds;
    totals.steps += static_cast<double>(result.tokens.size()) - 1;
    if (exam_.answers.size() == i) exam_.answers.push_back(result.tokens);
  }

  // Feeds the exact run's answer and compares each distribution with the exact run's.
  void compare(const Session& session, size_t i, Totals& totals) {
    Session fork = session.fork();
    const bool first = exam_.logits.size() == i;
    if (first) exam_.logits.emplace_back();
    std::span<const float> logits = fork.prefill(exam_.questions[i]);
    for (size_t t = 0; t < exam_.answers[i].size(); ++t) {
      if (first) exam_.logits[i].emplace_back(logits.begin(), logits.end());
      totals.divergence += divergence(exam_.logits[i][t], logits);
      totals.positions += 1;
      if (t + 1 < exam_.answers[i].size()) logits = fork.decode(exam_.answers[i][t]);
    }
  }

  std::shared_ptr<const Model> model_;
  const DemoOptions& o_;
  Exam& exam_;
  size_t context_;
};

// "4", or over seeds "3.7 ±0.6": mean and standard deviation.
struct Spread {
  double mean = 0, deviation = 0;
};

template <class F>
Spread spread(const Row& row, F&& value) {
  Spread s;
  const auto n = static_cast<double>(row.trials.size());
  for (const Trial& t : row.trials) s.mean += value(t) / n;
  for (const Trial& t : row.trials) s.deviation += (value(t) - s.mean) * (value(t) - s.mean);
  s.deviation = n > 1 ? std::sqrt(s.deviation / (n - 1)) : 0;
  return s;
}

std::string number(double x) {
  if (x == 0) return "0";
  return x < 0.001 ? fmt::format("{:.1e}", x) : fmt::format("{:.3f}", x);
}

// Facts in the order of the document: how many of the runs found each.
std::string found_by_depth(const Row& row) {
  std::string out;
  for (size_t i = 0; i < row.trials[0].right.size(); ++i) {
    size_t found = 0;
    for (const Trial& t : row.trials) found += t.right[i] ? 1 : 0;
    out += found == row.trials.size() ? "#" : found > 0 ? "+" : ".";
  }
  return out;
}

std::vector<std::string> cells(const Row& row) {
  const auto score = spread(row, [](const Trial& t) { return t.score(); });
  const auto kl = spread(row, [](const Trial& t) { return t.divergence; });
  const bool many = row.trials.size() > 1;
  const Ledger& ledger = row.trials[0].ledger;
  const size_t facts = row.trials[0].right.size();
  return {row.name,
          std::to_string(row.trials.size()),
          many ? fmt::format("{:.1f} ±{:.1f} of {}", score.mean, score.deviation, facts)
               : fmt::format("{:.0f} of {}", score.mean, facts),
          found_by_depth(row),
          number(kl.mean) + (many ? " ±" + number(kl.deviation) : ""),
          rows_per_head(ledger),
          share_kept(ledger),
          human_bytes(static_cast<double>(ledger.cache_bytes())),
          fmt::format("{:.2f}", ledger.effective_bits()),
          fmt::format("{:.0f}", spread(row, [](const Trial& t) { return t.prefill_rate; }).mean),
          fmt::format("{:.0f}", spread(row, [](const Trial& t) { return t.decode_rate; }).mean)};
}

Json to_json(const Row& row) {
  Json trials = Json::array();
  for (size_t i = 0; i < row.trials.size(); ++i) {
    const Trial& t = row.trials[i];
    trials.push_back({{"seed", row.seeds[i]},
                      {"right", t.right},
                      {"kl_divergence", t.divergence},
                      {"prefill_tokens_per_second", t.prefill_rate},
                      {"decode_tokens_per_second", t.decode_rate},
                      {"ledger", pith::cli::to_json(t.ledger)}});
  }
  const auto score = spread(row, [](const Trial& t) { return t.score(); });
  const auto kl = spread(row, [](const Trial& t) { return t.divergence; });
  return {{"name", row.name},         {"policy", row.policy},
          {"right_mean", score.mean}, {"right_deviation", score.deviation},
          {"kl_mean", kl.mean},       {"kl_deviation", kl.deviation},
          {"trials", trials}};
}

// A second seed tells whether a policy is randomised: if nothing changes, one run says it all.
Row run_policy(Examiner& examiner, const DemoOptions& o, const std::string& policy) {
  Row row{policy, policy, {}, {}};
  for (int64_t run = 0; run < o.runs; ++run) {
    const uint64_t seed = o.engine.policy.seed + static_cast<uint64_t>(run);
    Trial trial = examiner.run(policy, policy, seed);
    if (run == 1 && trial.divergence == row.trials[0].divergence &&
        trial.right == row.trials[0].right) {
      break;
    }
    row.seeds.push_back(seed);
    row.trials.push_back(std::move(trial));
  }
  return row;
}

// The dictionary that was trained for the model, where it lies beside it; atoms of the first rows
// otherwise.
std::string csr_parameters(const std::string& model) {
  const auto file = std::filesystem::path(model) / "csr.safetensors";
  return std::filesystem::exists(file) ? fmt::format("s=4,dict={},online=0", file.string()) : "s=4";
}

// The five systems work in the lower half of the layers and leave every row, as int4, to the upper
// half, where the demo model looks facts up: express(heavy=0,s=512) below finds 7 of 8 facts, above
// none.
std::vector<std::string> policies_of(const DemoOptions& o, int64_t layers) {
  const std::string upper = fmt::format(";layers={}-{}:exact+int4", layers / 2, layers - 1);
  std::vector<std::string> policies{
      "exact+int4",
      fmt::format("streaming_llm(window={})", std::max<int64_t>(1, o.rows - 4)),
      fmt::format("express(heavy=0,s={})+int4", std::max<int64_t>(4, o.rows / 2)) + upper,
      "balancekv(heavy=0,rate=0.125)+int4" + upper,
      fmt::format("buzz(T={})+int4", o.rows) + upper,
      "exact+qjl" + upper,
      fmt::format("exact+csr({})", csr_parameters(o.engine.model)) + upper};
  policies.insert(policies.end(), o.policies.begin(), o.policies.end());
  return policies;
}

std::string introduction(const Exam& exam, const DemoOptions& o) {
  const HiddenFact& fact = exam.document.facts[0];
  return fmt::format(
      "A document of {} tokens, made by this program, hides {} facts, such as\n"
      "  \"One of the special magic numbers for {} is: {}.\"\n"
      "The model reads it once under each policy and is then asked for every fact.\n"
      "'exact' keeps every row of the KV cache, streaming_llm {} per KV head.\n"
      "Express, BalanceKV, BUZZ, QJL and CSR compress the lower half of the layers; the\n"
      "upper keeps every row as int4.\n\n",
      exam.ids.size(), exam.document.facts.size(), fact.key, fact.value, o.rows);
}

constexpr const char* kLegend =
    "\nfound: one mark per fact, in the document's order: # in every run, + in some,\n"
    "       . in none\n"
    "KL:    nats per token between the exact cache's predictions and the policy's,\n"
    "       lower is better; 'exact again' is the null control: a second session,\n"
    "       whose KL must be 0\n"
    "±:     standard deviation over the seeds of a randomised policy\n"
    "rows:  per KV head\n"
    "KV, bits: the cache after the document; bits per number of the uncompressed\n"
    "       cache (f16: 16)\n"
    "read, write: tokens per second of prefill and of decode\n";

void print_results(const std::vector<Row>& rows) {
  Table table(
      {"policy", "runs", "right", "found", "KL", "rows", "kept", "KV", "bits", "read", "write"},
      {3});
  for (const Row& row : rows) table.add(cells(row));
  write_out(table.text() + kLegend);
}

int demo(const DemoOptions& o) {
  const auto started = std::chrono::steady_clock::now();
  for (const std::string& policy : o.policies) Policy::parse(policy);  // wrong ones end it here
  const auto model = load_model(o.engine);
  const auto policies = policies_of(o, model->config().layers);
  const auto keeper = keep_weights(model, o.engine);
  Exam exam = make_exam(*model, o);
  if (!o.document.empty()) write_file(o.document, exam.document.text);
  if (!o.engine.json) write_out(introduction(exam, o));
  Examiner examiner(model, o, exam);
  std::vector<Row> rows;
  try {
    for (const char* name : {"exact", "exact again"}) {
      rows.push_back({name, "exact", {0}, {examiner.run(name, "exact", 0)}});
    }
    for (const std::string& policy : policies) rows.push_back(run_policy(examiner, o, policy));
  } catch (const Cancelled&) {
    if (!o.engine.json && !rows.empty()) print_results(rows);
    return kExitInterrupted;
  }
  const double null_control = rows[1].trials[0].divergence;
  if (null_control > 1e-6) {
    throw Error(ErrorCode::kInternal,
                fmt::format("the null control failed: two exact sessions differ by a KL of {}",
                            null_control));
  }
  if (o.engine.json) {
    Json list = Json::array();
    for (const Row& row : rows) list.push_back(to_json(row));
    print_json({{"tokens", exam.ids.size()},
                {"facts", exam.document.facts.size()},
                {"document_seed", o.seed},
                {"null_control_kl", null_control},
                {"seconds", seconds_since(started)},
                {"policies", list}});
    return 0;
  }
  print_results(rows);
  write_out(fmt::format("\nDone in {}.\n", human_seconds(seconds_since(started))));
  return 0;
}

}  // namespace

void add_demo(CLI::App& root, Action& action) {
  auto o = std::make_shared<DemoOptions>();
  CLI::App* app = root.add_subcommand(
      "demo", "Hide facts in a long text and see which policies still find them");
  add_model_option(*app, o->engine, "models/demo");
  add_engine_options(*app, o->engine);
  app->remove_option(app->get_option("--ctx-size"));
  add_device_option(*app, o->engine);
  const auto option = [&](const char* name, auto& value, const char* help, CLI::Range range) {
    app->add_option(name, value, help)
        ->check(range)
        ->type_name("N")
        ->capture_default_str()
        ->group("Demo");
  };
  option("--tokens", o->tokens, "Length of the document", CLI::Range(256, 1 << 20));
  option("--facts", o->facts, "Facts hidden in it, at even depths", CLI::Range(1, 64));
  option("--rows", o->rows, "Rows per KV head that streaming_llm keeps; scales express and buzz",
         CLI::Range(8, 1 << 20));
  option("--runs", o->runs, "Seeds that a randomised policy is run with", CLI::Range(1, 100));
  app->add_option("--document-seed", o->seed, "Seed of the document")
      ->type_name("N")
      ->capture_default_str()
      ->group("Demo");
  app->add_option("--save-document", o->document, "Write the document to a file")
      ->type_name("FILE")
      ->group("Demo");
  add_repeated(*app, "--kv-policy,--policy", o->policies,
               "Another policy for the table; may be repeated. 'pith policies' lists them")
      ->type_name("POLICY")
      ->group("Demo");
  app->add_option("--kv-seed", o->engine.policy.seed, "First seed of randomised policies")
      ->type_name("N")
      ->capture_default_str()
      ->group("Demo");
  add_protect_option(*app, o->engine.policy);
  app->footer(
      "Examples:\n"
      "  pith demo\n"
      "  pith demo --rows 512 --kv-policy 'keydiff(budget=444)+int4,sink=4,window=64'\n");
  app->callback([o, &action] { action = [o] { return demo(*o); }; });
}

}  // namespace pith::cli
