#include "bench_sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>

#include "commands.h"
#include "console.h"
#include "interrupt.h"
#include "pith/error.h"
#include "pith/prefix_tree.h"
#include "report.h"
#include "tools/bench/bandwidth.h"

namespace pith::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Sessions in a pass; more take several. As many as memory admits get wider passes: weights are
// read once a pass.
constexpr size_t kMostParallel = 64, kMostAdmittedParallel = 256;

/// One number of sessions under one policy.
struct Point {
  std::string policy;
  size_t sessions = 0;
  bool admitted = false;            ///< the number is what the memory holds
  double prompt = 0;                ///< seconds that prompts took: one, or one of each session
  std::vector<double> decode = {};  ///< seconds of all steps, one a repeat
  /// Seconds of each step, before and while another prompt comes.
  std::vector<double> before = {}, arriving = {};
  double decode_limit = 0;  ///< tokens per second that the bytes allow
  Ledger ledger = {};       ///< of one session
  size_t bytes = 0;         ///< of the engine and all sessions
};

class SessionsBench {
 public:
  /// For o.sessions, or for as many as o.memory admits.
  SessionsBench(std::shared_ptr<const Model> model, const BenchOptions& o, std::string policy,
                bool admitted)
      : model_(std::move(model)),
        o_(o),
        policy_(std::move(policy)),
        admitted_(admitted),
        options_(make_options()) {}

  /// `read`: bytes per second.
  std::vector<Point> run(double read) {
    check_answer(model_, options_);
    const auto engine = std::make_shared<Engine>(model_, options_);
    Session base(engine, static_cast<const SessionOptions&>(options_));
    const auto ids = random_tokens(static_cast<size_t>(o_.prompt), vocab(), 1);
    const auto start = Clock::now();
    base.append(ids, [](size_t, size_t) { return !interrupted(); });
    check_cancelled();
    const double prompt = seconds_since(start);
    check_company(base);
    std::vector<Point> points;
    if (admitted_) points.push_back({policy_, admitted(*engine, base), true, prompt});
    for (size_t i = 0; !admitted_ && i < o_.sessions.size(); ++i)
      points.push_back({policy_, static_cast<size_t>(o_.sessions[i]), false, prompt});
    // The numbers take turns, so that what else the machine does falls on all of them.
    for (int64_t r = 0; r < o_.repeats; ++r)
      for (Point& p : points) measure(p, base);
    for (Point& p : points) {
      if (o_.separate_prompts) p.prompt = read_prompts(engine, p.sessions);
      if (o_.arriving > 0) arrive(p, base);
      p.decode_limit = decode_limit(read, *model_, p.ledger, p.sessions);
    }
    return points;
  }

 private:
  StandaloneOptions make_options() const {
    ModelOptions engine = o_.engine;
    engine.policy.policy = policy_;
    StandaloneOptions options = session_options(engine);
    options.context = std::max(options.context, static_cast<size_t>(o_.prompt) + steps() + 64);
    // Sessions decode a token for each chunk of a prompt that arrives.
    if (o_.arriving > 0)
      options.context =
          std::max(options.context, static_cast<size_t>(o_.prompt + o_.arriving) + steps() + 64);
    if (o_.memory > 0) options.memory_limit = room();
    for (size_t i = 0; !admitted_ && i < o_.sessions.size(); ++i)
      options.parallel =
          std::max(options.parallel, std::min<size_t>(o_.sessions[i], kMostParallel));
    if (admitted_)
      options.parallel =
          std::clamp<size_t>(room() / bytes_of_one(options), 1, kMostAdmittedParallel);
    return options;
  }
  /// Of its rows at the end.
  size_t bytes_of_one(const StandaloneOptions& options) const {
    const size_t tokens = static_cast<size_t>(o_.prompt) + steps();
    return estimate_ledger(model_->config(), options, tokens).total_bytes();
  }
  /// On the GPU a pass is captured when it comes the second time: two steps warm.
  static constexpr size_t kWarmSteps = 2;
  size_t steps() const { return static_cast<size_t>(o_.generate) + kWarmSteps; }
  int vocab() const { return model_->config().vocab; }
  /// Of the memory, what mapped weights on a CPU do not take.
  size_t room() const {
    const size_t weights = options_on_gpu() ? model_->weight_bytes() : 0;
    if (o_.memory <= weights)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--memory {} is less than the weights' {}",
                              human_bytes(static_cast<double>(o_.memory)),
                              human_bytes(static_cast<double>(weights))));
    return o_.memory - weights;
  }
  bool options_on_gpu() const { return o_.engine.device == Device::kCuda; }

  /// By the bound that admission would go by, not by what a session takes in the end. A step's
  /// memory is a session's too on the GPU, and one store of one layer at a time is there twice,
  /// while it grows.
  size_t admitted(const Engine& engine, const Session& base) const {
    const size_t tokens = static_cast<size_t>(o_.prompt) + steps();
    const size_t rows = bytes_of_one(options_);
    const size_t each = rows + base.ledger().scratch;
    const size_t growth = rows / static_cast<size_t>(model_->config().layers);
    const size_t taken = engine.bytes_in_use() + step_scratch() + growth;
    const size_t count = room() > taken ? (room() - taken) / each : 0;
    if (count == 0)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--memory {}: one session of {} tokens may take {} beside {} of the "
                              "engine's",
                              human_bytes(static_cast<double>(o_.memory)), tokens,
                              human_bytes(static_cast<double>(each)),
                              human_bytes(static_cast<double>(taken))));
    return count;
  }
  /// The most that attention and sampling need in a step.
  static constexpr size_t step_scratch() { return size_t{32} << 20; }

  /// Three sessions in one pass must say what each says alone.
  void check_company(const Session& base) const {
    const size_t v = static_cast<size_t>(vocab());
    std::vector<Session> together, alone;
    for (int i = 0; i < 3; ++i) together.push_back(base.fork()), alone.push_back(base.fork());
    std::vector<std::vector<float>> logits(3, std::vector<float>(v));
    const auto ids = random_tokens(12, vocab(), 5);
    for (size_t t = 0; t < 4; ++t) {
      std::vector<Work> works;
      for (size_t i = 0; i < 3; ++i) {
        works.push_back({&together[i], {&ids[3 * t + i], 1}});
        works.back().logits = logits[i].data();
      }
      run_step(*base.engine(), works);
      for (size_t i = 0; i < 3; ++i) {
        const auto expected = alone[i].decode(ids[3 * t + i]);
        if (std::memcmp(expected.data(), logits[i].data(), expected.size_bytes()) != 0)
          throw Error(ErrorCode::kInternal,
                      "a session's logits depend on who else is in the pass; nothing was timed");
      }
    }
  }

  static void run_step(Engine& engine, std::vector<Work>& works) {
    check_cancelled();
    engine.step(works);
    for (const Work& w : works)
      if (w.failure) throw Error(*w.failure);
  }

  /// Seconds until one step has read a prompt of its own for each of `count` sessions.
  double read_prompts(const std::shared_ptr<Engine>& engine, size_t count) const {
    std::vector<Session> sessions;
    std::vector<std::vector<int32_t>> prompts;
    for (size_t i = 0; i < count; ++i) {
      sessions.emplace_back(engine, static_cast<const SessionOptions&>(options_));
      prompts.push_back(random_tokens(static_cast<size_t>(o_.prompt), vocab(), 10 + i));
    }
    std::vector<Work> works;
    std::vector<Sampler> greedy(count, Sampler({.temperature = 0}));
    for (size_t i = 0; i < count; ++i) {
      works.push_back({&sessions[i], prompts[i]});
      works.back().sampler = &greedy[i];
    }
    const auto start = Clock::now();
    run_step(*engine, works);
    return seconds_since(start);
  }

  /// A step is what an answer's is: a token of each in, the likeliest next one of each out.
  void measure(Point& p, const Session& base) const {
    std::vector<Session> sessions;
    sessions.reserve(p.sessions);
    for (size_t i = 0; i < p.sessions; ++i) sessions.push_back(base.fork());
    std::vector<Sampler> greedy(p.sessions, Sampler({.temperature = 0}));
    const auto ids = random_tokens(p.sessions * steps(), vocab(), 3);
    Clock::time_point start;
    for (size_t t = 0; t < steps(); ++t) {
      std::vector<Work> works;
      for (size_t i = 0; i < p.sessions; ++i) {
        works.push_back({&sessions[i], {&ids[t * p.sessions + i], 1}});
        works.back().sampler = &greedy[i];
      }
      if (t == kWarmSteps) start = Clock::now();
      run_step(*base.engine(), works);
    }
    p.decode.push_back(seconds_since(start));
    p.ledger = sessions[0].ledger();
    p.bytes = base.engine()->bytes_in_use();
  }

  /// As a scheduler runs: all that decode, and a chunk of the prompt that comes.
  void arrive(Point& p, const Session& base) const {
    std::vector<Session> sessions;
    for (size_t i = 0; i < p.sessions; ++i) sessions.push_back(base.fork());
    std::vector<Sampler> greedy(p.sessions, Sampler({.temperature = 0}));
    std::vector<int32_t> ids = random_tokens(p.sessions, vocab(), 3);
    const auto prompt = random_tokens(static_cast<size_t>(o_.arriving), vocab(), 4);
    Session comes(base.engine(), static_cast<const SessionOptions&>(options_));
    PromptReader reader(comes, Prompt{.tokens = prompt});
    for (size_t t = 0; !reader.done(); ++t) {
      std::vector<Work> works;
      for (size_t i = 0; i < p.sessions; ++i) {
        works.push_back({&sessions[i], {&ids[i], 1}});
        works.back().sampler = &greedy[i];
      }
      const bool reads = t >= steps();
      if (reads) {
        works.push_back(reader.next(comes));
        works.back().slice = static_cast<size_t>(model_->config().layers);
      }
      const auto start = Clock::now();
      run_step(*base.engine(), works);
      const double took = seconds_since(start);
      if (t >= kWarmSteps) (reads ? p.arriving : p.before).push_back(took);
      for (size_t i = 0; i < p.sessions; ++i) ids[i] = works[i].next;
      if (reads && !works.back().goes_on) reader.took(works.back());
    }
  }

  std::shared_ptr<const Model> model_;
  const BenchOptions& o_;
  std::string policy_;
  bool admitted_;
  StandaloneOptions options_;
};

/// Prompt tokens that were read in p.prompt seconds.
double prompt_tokens(const Point& p, const BenchOptions& o) {
  return static_cast<double>(o.prompt) *
         (o.separate_prompts ? static_cast<double>(p.sessions) : 1.0);
}

/// One policy's lines, in llama-batched-bench's columns (PP and TG, which are the same in all,
/// stand above them), with one prompt that all sessions continue from (its -pps) unless asked
/// otherwise.
void print_table(std::span<const Point> points, const BenchOptions& o) {
  Table table({"B", "N_KV", "T_PP", "S_PP", "T_TG", "S_TG", "limit", "times", "KV", "all"});
  double one = 0;
  for (const Point& p : points) {
    const double rate =
        static_cast<double>(p.sessions) * static_cast<double>(o.generate) / median(p.decode).value;
    if (p.sessions == 1) one = rate;
    table.add({std::to_string(p.sessions) + (p.admitted ? "*" : ""),
               std::to_string(static_cast<int64_t>(p.sessions) * (o.prompt + o.generate)),
               fmt::format("{:.3f}", p.prompt),
               fmt::format("{:.0f}", prompt_tokens(p, o) / p.prompt),
               fmt::format("{:.3f}", median(p.decode).value), fmt::format("{:.1f}", rate),
               fmt::format("{:.0f}%", 100 * rate / p.decode_limit),
               one > 0 ? fmt::format("{:.2f}", rate / one) : "-",
               human_bytes(static_cast<double>(p.ledger.cache_bytes())),
               human_bytes(static_cast<double>(p.bytes))});
  }
  write_out(fmt::format("{}, PP {}, TG {}\n{}\n", points.front().policy, o.prompt, o.generate,
                        table.text()));
  if (o.arriving == 0) return;
  Table steps({"B", "step", "most", "with it", "most", "steps"});
  for (const Point& p : points) {
    const Median before = median(p.before), with = median(p.arriving);
    const auto ms = [](double seconds) { return fmt::format("{:.1f}", 1000 * seconds); };
    steps.add({std::to_string(p.sessions) + (p.admitted ? "*" : ""), ms(before.value),
               ms(before.most), ms(with.value), ms(with.most), std::to_string(p.arriving.size())});
  }
  write_out(
      fmt::format("{}\nstep: ms of a step, median and most; with it: while a prompt of {} "
                  "tokens is\nread, a chunk in each of so many steps\n\n",
                  steps.text(), o.arriving));
}

void print_tables(const std::vector<Point>& points, const BenchOptions& o) {
  for (auto from = points.begin(), end = from; from != points.end(); from = end) {
    end =
        std::find_if(from, points.end(), [&](const Point& p) { return p.policy != from->policy; });
    print_table({from, end}, o);
  }
  write_out(std::string("PP: tokens of one prompt, ") +
            (o.separate_prompts ? "of which T_PP reads one for each session in one step;\n"
                                : "which all sessions are forked from;\n") +
            "TG: tokens of each session; B: sessions, *: as many as --memory admits; N_KV:\n"
            "tokens in all; T: seconds; S: tokens per second of all sessions, median; limit:\n"
            "S_TG in per cent of what reading weights once a step and all caches would allow;\n"
            "times: S_TG over one session's; KV: one session's cache; all: engine and\n"
            "sessions, weights apart\n");
}

Json to_json(const Point& p, const BenchOptions& o) {
  const Median m = median(p.decode);
  Json steps;
  if (o.arriving > 0) {
    const auto of = [](const std::vector<double>& seconds) {
      const Median all = median(seconds);
      return Json{{"median", all.value}, {"least", all.least}, {"most", all.most}};
    };
    steps = {{"prompt_tokens", o.arriving},
             {"steps", p.arriving.size()},
             {"step_seconds_before", of(p.before)},
             {"step_seconds_while_it_is_read", of(p.arriving)}};
  }
  return {{"policy", p.policy},
          {"sessions", p.sessions},
          {"admitted_by_memory", p.admitted},
          {"prompt_tokens", o.prompt},
          {"tokens_each", o.generate},
          {"separate_prompts", o.separate_prompts},
          {"prompt_seconds", p.prompt},
          {"decode_seconds", {{"median", m.value}, {"least", m.least}, {"most", m.most}}},
          {"decode_tokens_per_second",
           static_cast<double>(p.sessions) * static_cast<double>(o.generate) / m.value},
          {"decode_limit_tokens_per_second", p.decode_limit},
          {"bytes_of_all", p.bytes},
          {"arriving", steps},
          {"ledger", pith::cli::to_json(p.ledger)}};
}

}  // namespace

int bench_sessions(const std::shared_ptr<const Model>& model, const BenchOptions& o,
                   const std::vector<std::string>& policies) {
  if (o.prompt < 1 || o.generate < 1)
    throw Error(ErrorCode::kInvalidArgument,
                "--sessions and --memory need tokens to read and to decode: -p and -n of 1 and "
                "more");
  std::vector<Point> points;
  bool cancelled = false;
  try {
    const double read = measured_read_rate(o.engine);
    const auto keeper = keep_weights(model, o.engine);
    for (const std::string& policy : policies)
      for (const bool admitted : {false, true}) {
        if (admitted ? o.memory == 0 : o.sessions.empty()) continue;
        for (Point& p : SessionsBench(model, o, policy, admitted).run(read))
          points.push_back(std::move(p));
      }
  } catch (const Cancelled&) {
    cancelled = true;
  }
  if (o.engine.json) {
    Json list = Json::array();
    for (const Point& p : points) list.push_back(to_json(p, o));
    print_json(
        {{"model", o.engine.model}, {"weight_bytes", model->weight_bytes()}, {"lines", list}});
  } else {
    print_tables(points, o);
  }
  return cancelled ? kExitInterrupted : 0;
}

}  // namespace pith::cli
