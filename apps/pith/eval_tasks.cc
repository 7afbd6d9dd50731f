// pith eval tasks: retrieval tasks at given lengths under several policies. Samples run in
// parallel, each on one thread, or many in each pass (--parallel); every finished one is a line of
// --out.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "args.h"
#include "core/thread_pool.h"
#include "eval.h"
#include "pith/chat.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "report.h"
#include "tools/eval/statistics.h"
#include "tools/eval/task_files.h"
#include "tools/eval/task_runner.h"

namespace pith::cli {
namespace {

struct TaskOptions {
  EvalOptions eval;
  std::vector<std::string> tasks{"facts"};
  std::vector<int64_t> lengths{4096};
  int64_t samples = 4, turns = 8;
  uint64_t task_seed = 42;
  int64_t parallel = 1, answer_tokens = 0;
  bool query_aware = false, chat = false;
  std::string file, format = "ruler";
};

// One sample under one run: a line of the results.
struct Job {
  std::string task;
  size_t length = 0, run = 0;
  uint64_t number = 0;
  uint64_t seed = 0;                 // which of the policy's seeds, from 0 on
  std::string key = {}, place = {};  // in the results; task, length and policy
  bool dropped = false;              // its policy draws no random numbers there
};

class TasksCommand {
 public:
  explicit TasksCommand(const TaskOptions& o)
      : o_(o),
        model_(load_model(o.eval.engine)),
        records_(o.eval.out),
        setting_(describe_setting(o.eval, *model_)),
        runs_(eval_runs(o.eval, false)),
        pool_(worker_threads(o.eval.engine)),
        keeper_(keep_weights(model_, o.eval.engine)) {
    if (runs_.empty()) {
      runs_.push_back({"exact", Policy::parse("exact"), o.eval.engine.policy.seed, false});
    }
    if (o.chat) chat_.emplace(ChatTemplate::of(o.eval.engine.model, model_->tokenizer()));
    how_ = {o.query_aware, chat_ ? &*chat_ : nullptr};
    // Settings that leave results as they were are not in their keys.
    if (o.chat) setting_["chat"] = true;
    if (o.answer_tokens > 0) setting_["answer_tokens"] = o.answer_tokens;
    setting_.update({{"kind", "task"},
                     {"query_aware", o.query_aware},
                     {"task_seed", o.task_seed},
                     {"turns", o.turns}});
    if (!o.file.empty()) {
      add_file_jobs();
      return;
    }
    for (const std::string& task : o.tasks)
      for (const int64_t length : o.lengths) add_jobs(task, static_cast<size_t>(length));
  }

  int run() {
    SharedProgress bar("answering", "samples", o_.eval.engine.json, jobs_.size());
    drop_equal_seeds();  // as known from the file
    bool go = run_jobs(bar, tells);
    drop_equal_seeds();
    write_told();
    go = go && run_jobs(bar, [&](const Job& job) { return !tells(job); });
    bar.finish();
    if (!go) {
      if (!o_.eval.out.empty())
        fmt::print(stderr, "pith: stopped; the same command continues from {}\n", o_.eval.out);
      return kExitInterrupted;
    }
    report();
    return 0;
  }

 private:
  /// The first sample with two seeds says whether a policy draws random numbers there.
  static bool tells(const Job& job) { return job.number == 0 && job.seed < 2; }

  /// Jobs that `chosen` names; false once Ctrl-C was pressed.
  bool run_jobs(SharedProgress& bar, const std::function<bool(const Job&)>& chosen) {
    std::vector<const Job*> open;
    size_t rest = 0;
    for (const Job& job : jobs_) {
      if (!chosen(job)) continue;
      if (job.dropped || records_.find(job.key) != nullptr)
        ++rest;
      else
        open.push_back(&job);
    }
    std::atomic<bool> go{bar.advance(rest)};
    if (o_.parallel > 1) return go && run_together(bar, open);
    pool_.parallel_for(open.size(), [&](size_t i, int) {
      if (!go) return;
      run_job(*open[i]);
      if (!bar.advance(1)) go = false;
    });
    return go;
  }

  /// Jobs of one policy and seed at once, on one engine. False once Ctrl-C was pressed.
  bool run_together(SharedProgress& bar, const std::vector<const Job*>& open) {
    bool go = true;
    for (auto from = open.begin(); go && from != open.end();) {
      const auto end = std::find_if(from, open.end(), [&](const Job* job) {
        return job->run != (*from)->run || job->length != (*from)->length;
      });
      const std::vector<const Job*> some(from, end);
      StandaloneOptions s = options_of(*some.front());
      s.threads = o_.eval.engine.threads, s.parallel = static_cast<size_t>(o_.parallel);
      if (!engine_) engine_ = std::make_shared<Engine>(model_, s);
      run_samples(engine_, s,
                  {.count = some.size(),
                   .at_once = s.parallel,
                   .sample = [&](size_t i) { return sample_of(*some[i]); },
                   .finished =
                       [&](size_t i, const SampleResult& result) {
                         keep(*some[i], sample_of(*some[i]), result);
                         return go = bar.advance(1);
                       }},
                  how_);
      from = end;
    }
    return go;
  }

  /// A policy whose second seed leaves the same cache of the first sample is not randomised there:
  /// its documents are read once. Records of older versions do not say; then every seed counts.
  void drop_equal_seeds() {
    std::map<std::string, std::string> logits;  // by task, length and policy, of the first seed
    std::set<std::string> equal;
    for (const Job& job : jobs_) {
      if (job.number > 0) continue;
      std::string found;
      if (const auto told = told_.find(job.key); told != told_.end()) {
        found = told->second.at("logits_fingerprint");
      } else if (records_.find(job.key) != nullptr) {
        found = records_.read(
            job.key, [](const Record& r) { return r.value("logits_fingerprint", std::string()); });
        if (job.seed == 0 && !records_.find(job.key)->value(kRandom, true)) equal.insert(job.place);
      }
      if (found.empty()) continue;
      if (job.seed == 0) logits[job.place] = found;
      if (job.seed == 1 && logits[job.place] == found) equal.insert(job.place);
    }
    for (Job& job : jobs_) {
      job.dropped = job.seed > 0 && equal.contains(job.place);
      if (const auto told = told_.find(job.key);
          told != told_.end() && job.seed == 0 && equal.contains(job.place))
        told->second[kRandom] = false;
    }
  }

  /// Lines of the samples that tell, without seeds that draw nothing.
  void write_told() {
    for (const Job& job : jobs_)
      if (const auto told = told_.find(job.key); told != told_.end() && !job.dropped)
        records_.add(job.key, std::move(told->second));
    told_.clear();
  }

  void add_jobs(const std::string& task, size_t length) {
    make_sample(task, request(length, 0));  // what cannot be is refused before anything runs
    add_jobs(task, length, static_cast<size_t>(o_.samples));
  }

  void add_file_jobs() {
    samples_ = read_samples(o_.file, o_.format, static_cast<size_t>(o_.samples));
    setting_["file_samples"] = fingerprint(samples_[0].context + samples_.back().context);
    add_jobs(o_.format, 0, samples_.size());
  }

  void add_jobs(const std::string& task, size_t length, size_t samples) {
    for (size_t r = 0; r < runs_.size(); ++r)
      for (size_t n = 0; n < samples; ++n) {
        const EvalRun& run = runs_[r];
        Job job{.task = task, .length = length, .run = r, .number = n};
        job.seed = run.seed - o_.eval.engine.policy.seed;
        job.place = fmt::format("{}|{}|{}", task, length, run.policy.to_string());
        job.key = fmt::format("{}|{}|{}|{}|{}|{}", setting_.dump(), task, length, n,
                              run.policy.to_string(), run.seed);
        jobs_.push_back(std::move(job));
      }
  }

  SampleRequest request(size_t length, uint64_t number) const {
    return {length, number, o_.task_seed, static_cast<size_t>(o_.turns),
            [this](const std::string& text) { return model_->tokenizer().encode(text).size(); }};
  }

  Sample sample_of(const Job& job) const {
    Sample sample = samples_.empty() ? make_sample(job.task, request(job.length, job.number))
                                     : samples_[job.number];
    if (o_.answer_tokens > 0) sample.max_tokens = static_cast<size_t>(o_.answer_tokens);
    return sample;
  }

  StandaloneOptions options_of(const Job& job) const {
    const EvalRun& run = runs_[job.run];
    StandaloneOptions s = session_options(o_.eval.engine);
    s.policy = run.policy, s.seed = run.seed, s.threads = 1, s.context = job.length;
    return s;
  }

  void run_job(const Job& job) {
    const Sample sample = sample_of(job);
    keep(job, sample, run_sample(model_, options_of(job), sample, how_));
  }

  void keep(const Job& job, const Sample& sample, const SampleResult& result) {
    const EvalRun& run = runs_[job.run];
    Record turns = Record::array();
    for (size_t i = 0; i < result.turns.size(); ++i)
      turns.push_back({{"answer", result.turns[i].answer},
                       {"references", sample.turns[i].references},
                       {"tokens", result.turns[i].tokens},
                       {"score", result.turns[i].score}});
    Record record = setting_;
    record.update({{"task", job.task},
                   {"length", job.length},
                   {"sample", job.number},
                   {"text_fingerprint", fingerprint(sample.context)},
                   {"metric", to_string(sample.metric)},
                   {"policy", run.policy.to_string()},
                   {"resolved_policy", result.policy},
                   {"kv_seed", run.seed},
                   {"logits_fingerprint", result.logits},
                   {"score", result.score()},
                   {"answers", turns},
                   {"prompt_seconds", result.prompt_seconds},
                   {"answer_seconds", result.answer_seconds},
                   {"ledger", to_record(result.ledger)}});
    if (!tells(job)) return records_.add(job.key, std::move(record));
    const std::lock_guard lock(told_mutex_);
    told_[job.key] = std::move(record);
  }

  // Jobs of one task, length and policy: scores by seed and by turn.
  struct Group {
    std::string task, name;
    size_t length = 0;
    std::map<uint64_t, std::vector<double>> by_seed;
    std::vector<double> by_turn;
    size_t samples = 0;
    Ledger ledger;
  };
  std::vector<Group> groups() const {
    std::vector<Group> out;
    for (const Job& job : jobs_)
      if (!job.dropped)
        records_.read(job.key, [&](const Record& r) { add_to_groups(out, job, r); });
    return out;
  }

  void add_to_groups(std::vector<Group>& out, const Job& job, const Record& r) const {
    const EvalRun& run = runs_[job.run];
    if (out.empty() || out.back().task != job.task || out.back().length != job.length ||
        out.back().name != run.name)
      out.push_back({job.task, run.name, job.length, {}, {}, 0, ledger_from(r.at("ledger"))});
    Group& g = out.back();
    g.by_seed[run.seed].push_back(r.at("score"));
    g.by_turn.resize(r.at("answers").size());
    for (size_t i = 0; i < g.by_turn.size(); ++i)
      g.by_turn[i] += r["answers"][i]["score"].get<double>();
    ++g.samples;
  }

  void report() const;

  // Of a record: false where another seed leaves the same cache.
  static constexpr const char* kRandom = "random";

  const TaskOptions& o_;
  std::shared_ptr<const Model> model_;
  RecordFile records_;
  Record setting_;
  std::vector<EvalRun> runs_;
  ThreadPool pool_;
  std::optional<Session> keeper_;
  std::shared_ptr<Engine> engine_;  // of samples that share passes
  std::optional<ChatTemplate> chat_;
  AskOptions how_;
  std::vector<Sample> samples_;  // of a file; empty if they are made
  std::vector<Job> jobs_;
  std::map<std::string, Record> told_;  // by key: not written before it is known what they tell
  std::mutex told_mutex_;
};

void TasksCommand::report() const {
  Table table(
      {"task", "length", "policy", "seeds", "score", "by turn", "rows", "kept", "KV", "bits"},
      {0, 2, 5});
  Json list = Json::array();
  for (const Group& g : groups()) {
    std::vector<double> means;
    for (const auto& [seed, scores] : g.by_seed) means.push_back(spread(scores).mean);
    const Spread score = spread(means);
    const Interval within = wilson(score.mean, g.samples / means.size());
    std::string turns;
    Json turn_scores = Json::array();
    for (double sum : g.by_turn) {
      const double mean = sum / static_cast<double>(g.samples);
      turns += fmt::format("{}{:.0f}", turns.empty() ? "" : " ", 100 * mean);
      turn_scores.push_back(mean);
    }
    table.add({g.task, std::to_string(g.length), g.name, std::to_string(means.size()),
               fmt::format("{:.1f}% ({:.0f} to {:.0f})", 100 * score.mean, 100 * within.low,
                           100 * within.high),
               turns, rows_per_head(g.ledger), share_kept(g.ledger),
               human_bytes(static_cast<double>(g.ledger.cache_bytes())),
               fmt::format("{:.2f}", g.ledger.effective_bits())});
    list.push_back({{"task", g.task},
                    {"length", g.length},
                    {"policy", g.name},
                    {"seeds", means.size()},
                    {"samples", g.samples / means.size()},
                    {"score", score.mean},
                    {"deviation", score.deviation},
                    {"interval", {within.low, within.high}},
                    {"by_turn", turn_scores},
                    {"ledger", pith::cli::to_json(g.ledger)}});
  }
  if (o_.eval.engine.json) {
    Json all(setting_);
    all["results"] = list;
    print_json(all);
    return;
  }
  write_out(fmt::format("Samples: {}. The policy sees {}.\n\n", o_.samples,
                        o_.query_aware ? "each question with its context (query-aware)"
                                       : "contexts before questions (query-agnostic)") +
            table.text() +
            "\nscore: mean over samples and turns, with Wilson's 95% interval of the samples;\n"
            "rows (per KV head), KV, bits: the first sample's cache\n");
}

std::string task_list() {
  std::string text = "Tasks:\n";
  for (const TaskInfo& t : tasks())
    text += wrapped(fmt::format("  {:<16} {}", t.name, t.summary), 19) + "\n";
  return text;
}

}  // namespace

void add_eval_tasks(CLI::App& eval, Action& action) {
  auto o = std::make_shared<TaskOptions>();
  CLI::App* app =
      eval.add_subcommand("tasks", "Hide facts in long texts and ask for them; RULER's tasks too");
  add_eval_options(*app, o->eval);
  constexpr const char* kGroup = "Tasks";
  app->add_option("--task", o->tasks, "Tasks, separated by commas; a list is below")
      ->delimiter(',')
      ->type_name("NAME")
      ->capture_default_str()
      ->group(kGroup);
  app->add_option("-c,--ctx-size", o->lengths, "Lengths in tokens, answers included: 2048,4096")
      ->delimiter(',')
      ->check(CLI::Range(64, 1 << 24))
      ->type_name("N,...")
      ->capture_default_str()
      ->group(kGroup);
  app->add_option("--file", o->file, "JSON lines instead of tasks; -c and --turns do not apply")
      ->type_name("FILE")
      ->group(kGroup);
  app->add_option("--format", o->format, "Of --file: ruler, longbench, math500, litm-kv, litm-qa")
      ->type_name("NAME")
      ->capture_default_str()
      ->group(kGroup);
  app->add_option("--samples", o->samples, "Samples of each task and length")
      ->check(CLI::Range(1, 10000))
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
  app->add_option("--turns", o->turns, "Questions on each document of facts and multi_turn")
      ->check(CLI::Range(1, 64))
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
  app->add_option("--task-seed", o->task_seed, "Seed of the samples")
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
  app->add_flag("--query-aware", o->query_aware,
                "Read each question together with the context, so that selectors see it")
      ->group(kGroup);
  app->add_flag("--chat", o->chat,
                "With --query-aware: each question, with its context, is a user's message in the "
                "model's chat template")
      ->group(kGroup);
  app->add_option("--answer-tokens", o->answer_tokens,
                  "Most tokens of an answer; 0 = as many as the task gives")
      ->check(CLI::Range(0, 1 << 24))
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
  app->add_option("--parallel", o->parallel,
                  "Samples that share each pass, which reads the weights once: for long answers "
                  "on a GPU. 1: a pass each, on as many threads as there are")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
  app->footer(task_list() +
              "\nExamples:\n"
              "  pith eval tasks -m models/demo --task facts,kv -c 2048,4096 \\\n"
              "    --kv-policy exact --kv-policy 'keydiff(budget=25%)' --samples 8 \\\n"
              "    -o tasks.jsonl\n");
  app->callback([o, &action] {
    action = [o] {
      settle_auto(o->eval.engine, &o->eval.policies, {.context = std::ranges::max(o->lengths)});
      return TasksCommand(*o).run();
    };
  });
}

}  // namespace pith::cli
