// pith bench: tokens per second of prefill and decode against depth, attention's share of the
// machine's read bandwidth, and the ledger, for one or more policies in one run. Answers are
// checked against the scalar instruction set (the GPU's: against the CPU) before anything is timed.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "args.h"
#include "bench.h"
#include "bench_prompt.h"
#include "bench_sessions.h"
#include "commands.h"
#include "console.h"
#include "core/philox.h"
#include "interrupt.h"
#include "pith/error.h"
#include "pith_tools/gpu.h"
#include "report.h"
#include "tools/bench/bandwidth.h"

namespace pith::cli {

namespace {

std::vector<float> last_logits(const std::shared_ptr<const Model>& model,
                               StandaloneOptions options) {
  options.f32_arithmetic = options.device == Device::kCpu;
  Session session(model, options);
  session.prefill(random_tokens(40, model->config().vocab, 9));
  check_cancelled();
  session.decode(1);
  const auto logits = session.decode(2);
  return {logits.begin(), logits.end()};
}

}  // namespace

void check_cancelled() {
  if (interrupted()) throw Cancelled{};
}

std::vector<int32_t> random_tokens(size_t count, int vocab, uint64_t seed) {
  const Philox random(seed, 0, 0);
  std::vector<int32_t> ids(count);
  for (size_t i = 0; i < count; ++i)
    ids[i] = static_cast<int32_t>(random.words(i)[0] % static_cast<uint32_t>(vocab));
  return ids;
}

double measured_read_rate(const ModelOptions& engine) {
  if (engine.device == Device::kCuda) return cuda_read_rate();
  ThreadPool pool(engine.threads);
  MemoryCounter memory;
  return read_bandwidth({pool, memory, kernels_for(engine.isa)},
                        [] { return interrupted().load(); });
}

double decode_limit(double read, const Model& model, const Ledger& each, size_t sessions) {
  const auto all = static_cast<double>(sessions);
  const double caches = all * static_cast<double>(each.cache_bytes());
  return all * read / (static_cast<double>(model.weight_bytes()) + caches);
}

double check_answer(const std::shared_ptr<const Model>& model, const StandaloneOptions& options) {
  const bool gpu = options.device == Device::kCuda;
  StandaloneOptions reference = options;
  reference.device = Device::kCpu;
  if (!gpu) reference.isa = "scalar";
  const double bound = gpu ? 3e-2 : 1e-3;
  const auto fast = last_logits(model, options);
  const auto plain = last_logits(model, reference);
  double difference = 0, largest = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    difference = std::max(difference, std::fabs(double{fast[i]} - plain[i]));
    largest = std::max(largest, std::fabs(double{plain[i]}));
  }
  if (!(difference <= bound * largest))
    throw Error(
        ErrorCode::kInternal,
        fmt::format("logits differ from {} by {:.2e} of the largest; nothing was timed",
                    gpu ? "the CPU's" : "those of plain scalar code", difference / largest));
  return difference / largest;
}

namespace {

using Clock = std::chrono::steady_clock;

struct Line {
  std::string policy;
  size_t depth = 0;
  Median prefill, decode;  // tokens per second
  AttentionSpeed attention;
  double decode_limit = 0;  // tokens per second that the bytes allow
  Ledger ledger;
  size_t counted = 0, in_use = 0;  // bytes on the GPU: by pith's books, and by the driver's
  PromptPeak prompt = {};
};

class Bench {
 public:
  Bench(std::shared_ptr<const Model> model, const BenchOptions& o)
      : model_(std::move(model)),
        o_(o),
        pool_(o.engine.threads),
        context_{pool_, memory_, kernels_for(o.engine.isa)},
        read_(measured_read_rate(o.engine)),
        keeper_(keep_weights(model_, o.engine)) {}

  double read() const { return read_; }
  int threads() const { return pool_.size(); }
  const char* isa() const { return on_gpu() ? "cuda" : context_.kernels.isa; }
  bool on_gpu() const { return o_.engine.device == Device::kCuda; }
  double largest_difference() const { return difference_; }

  std::vector<Line> run(const std::string& policy) {
    StandaloneOptions options = options_for(policy, 0);
    difference_ = std::max(difference_, check_answer(model_, options));
    std::vector<Line> lines;
    for (int64_t depth : o_.depths) {
      check_cancelled();
      lines.push_back(measure(policy, static_cast<size_t>(depth)));
    }
    return lines;
  }

 private:
  StandaloneOptions options_for(const std::string& policy, size_t depth) const {
    ModelOptions engine = o_.engine;
    engine.policy.policy = policy;
    StandaloneOptions options = session_options(engine);
    options.context =
        std::max(options.context, depth + static_cast<size_t>(o_.prompt + o_.generate) + 64);
    return options;
  }

  Line measure(const std::string& policy, size_t depth) {
    const StandaloneOptions options = options_for(policy, depth);
    Session base(model_, options);
    const int vocab = model_->config().vocab;
    ProgressBar bar(fmt::format("{} at {}", policy, depth), "tokens", o_.engine.json);
    if (depth > 0)
      base.prefill(random_tokens(depth, vocab, 1),
                   [&](size_t done, size_t total) { return bar.update(done, total); });
    check_cancelled();
    Line line{policy, depth, {}, {}, {}, 0, base.ledger()};
    line.prompt = prompt_peak(base, depth);
    line.counted = model_->weight_bytes() + line.ledger.total_bytes();
    if (on_gpu()) line.in_use = cuda_bytes_in_use();
    std::vector<double> prefill, decode;
    for (int64_t r = 0; r < o_.repeats; ++r) {
      if (o_.prompt > 0) prefill.push_back(prefill_rate(base));
      if (o_.generate > 0) decode.push_back(decode_rate(base));
      check_cancelled();
    }
    if (!prefill.empty()) line.prefill = median(prefill);
    if (!decode.empty()) line.decode = median(decode);
    check_cancelled();
    // Its rows come in chunks.
    if (depth > 0 && !on_gpu() && options.policy.prompt == PromptReading::kChunks)
      line.attention = attention_speed(context_, model_->config(), options.policy, depth,
                                       [] { return interrupted().load(); });
    check_cancelled();
    line.decode_limit = decode_limit(read_, *model_, line.ledger, 1);
    return line;
  }

  double prefill_rate(const Session& base) const {
    Session session = base.fork(Copy::kNow);
    const auto ids = random_tokens(static_cast<size_t>(o_.prompt), model_->config().vocab, 2);
    const auto start = Clock::now();
    session.prefill(ids, [](size_t, size_t) { return !interrupted(); });
    check_cancelled();
    return static_cast<double>(o_.prompt) / seconds_since(start);
  }

  /// A step is what an answer's is: a token in, the likeliest next one out.
  double decode_rate(const Session& base) const {
    Session session = base.fork(Copy::kNow);
    Sampler greedy({.temperature = 0});
    const auto ids = random_tokens(static_cast<size_t>(o_.generate) + 1, model_->config().vocab, 3);
    const auto step = [&](int32_t id) {
      check_cancelled();
      session.append({&id, 1});
      session.sample(greedy);
    };
    step(ids[0]);  // warm
    const auto start = Clock::now();
    for (size_t i = 1; i < ids.size(); ++i) step(ids[i]);
    return static_cast<double>(o_.generate) / seconds_since(start);
  }

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  std::shared_ptr<const Model> model_;
  const BenchOptions& o_;
  ThreadPool pool_;
  MemoryCounter memory_;
  Context context_;
  double read_;
  double difference_ = 0;
  std::optional<Session> keeper_;
};

std::string rate(const Median& m) {
  if (m.value == 0) return "-";
  return fmt::format("{:.1f} ({:.1f}-{:.1f})", m.value, m.least, m.most);
}

void print_table(const std::vector<Line>& lines, double read, bool gpu) {
  Table table({"policy", "depth", "prefill", "decode", "of limit", gpu ? "counted" : "attention",
               gpu ? "in use" : "of read", "rows", "kept", "KV", "bits"});
  for (const Line& l : lines) {
    const bool timed = l.attention.seconds > 0;
    std::string sixth = "-", seventh = "-";
    if (gpu) {
      sixth = human_bytes(static_cast<double>(l.counted));
      seventh = human_bytes(static_cast<double>(l.in_use));
    } else if (timed) {
      sixth = fmt::format("{:.1f} GB/s", l.attention.bytes_per_second() / 1e9);
      seventh = fmt::format("{:.0f}%", 100 * l.attention.bytes_per_second() / read);
    }
    table.add(
        {l.policy, std::to_string(l.depth), rate(l.prefill), rate(l.decode),
         l.decode.value > 0 ? fmt::format("{:.0f}%", 100 * l.decode.value / l.decode_limit) : "-",
         sixth, seventh, rows_per_head(l.ledger), share_kept(l.ledger),
         human_bytes(static_cast<double>(l.ledger.cache_bytes())),
         fmt::format("{:.2f}", l.ledger.effective_bits())});
  }
  write_out(
      table.text() +
      "\nprefill, decode: tokens per second, median (least-most); of limit: of what\n"
      "reading weights and cache once a token would allow; " +
      (gpu ? "counted: weights, cache\nand what is around it by pith's ledger; in use: the "
             "GPU's memory by its driver's\naccount; rows: per KV head\n"
           : "attention: cache payload\n"
             "read per second by one token's attention over random rows; of read: of the\n"
             "measured read bandwidth (above 100% where the cache fits the processor's own);\n"
             "rows: per KV head\n"));
  for (const Line& l : lines)
    if (l.prompt.tokens > 0) write_out("\n" + text_of(l.prompt, l.policy));
}

Json to_json(const Median& m) {
  return {{"median", m.value}, {"least", m.least}, {"most", m.most}};
}

Json to_json(const Line& l) {
  return {{"policy", l.policy},
          {"depth", l.depth},
          {"prefill_tokens_per_second", to_json(l.prefill)},
          {"decode_tokens_per_second", to_json(l.decode)},
          {"decode_limit_tokens_per_second", l.decode_limit},
          {"attention_seconds", l.attention.seconds},
          {"attention_bytes", l.attention.bytes},
          {"gpu_bytes_counted", l.in_use > 0 ? l.counted : 0},
          {"gpu_bytes_in_use", l.in_use},
          {"prompt", l.prompt.tokens > 0 ? to_json(l.prompt) : Json()},
          {"ledger", pith::cli::to_json(l.ledger)}};
}

int bench(const BenchOptions& o) {
  for (int64_t depth : o.depths)
    if (depth < 0 || depth > (1 << 26))
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("a depth of {} tokens; choose 0 to {}", depth, 1 << 26));
  std::vector<std::string> policies = o.policies;
  if (policies.empty()) policies = {"exact"};
  for (const std::string& policy : policies) Policy::parse(policy);
  for (const auto& [asked, option] : {std::pair(o.separate_prompts, "--separate-prompts"),
                                      std::pair(o.arriving > 0, "--arriving")})
    if (asked && o.sessions.empty() && o.memory == 0)
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{} is for conversations in one pass: add --sessions or --memory", option));
  const auto model = load_model(o.engine);
  if (!o.sessions.empty() || o.memory > 0) return bench_sessions(model, o, policies);
  Bench bench(model, o);
  std::vector<Line> lines;
  bool cancelled = false;
  try {
    for (const std::string& policy : policies)
      for (Line& line : bench.run(policy)) lines.push_back(std::move(line));
  } catch (const Cancelled&) {
    cancelled = true;
  }
  if (o.engine.json) {
    Json list = Json::array();
    for (const Line& line : lines) list.push_back(to_json(line));
    print_json({{"model", o.engine.model},
                {"weight_bytes", model->weight_bytes()},
                {"threads", bench.threads()},
                {"isa", bench.isa()},
                {"read_bytes_per_second", bench.read()},
                {bench.on_gpu() ? "largest_difference_to_cpu" : "largest_difference_to_scalar",
                 bench.largest_difference()},
                {"lines", list}});
  } else {
    write_out(
        fmt::format("{}: {} of weights\n{} threads, {}; read bandwidth {:.1f} GB/s\nlogits "
                    "within {:.0e} of {}\n\n",
                    o.engine.model, human_bytes(static_cast<double>(model->weight_bytes())),
                    bench.threads(), bench.isa(), bench.read() / 1e9, bench.largest_difference(),
                    bench.on_gpu() ? "the CPU's" : "plain scalar code's"));
    print_table(lines, bench.read(), bench.on_gpu());
  }
  return cancelled ? kExitInterrupted : 0;
}

}  // namespace

void add_bench(CLI::App& root, Action& action) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* app = root.add_subcommand(
      "bench", "Measure prefill, decode and attention against depth, and what the cache takes");
  add_model_option(*app, o->engine);
  app->get_option("--model")->required(false);  // 'bench select' has none
  add_engine_options(*app, o->engine);
  add_device_option(*app, o->engine);
  add_policy_options(*app, o->engine.policy, &o->policies);
  add_error_probe_options(*app, o->engine);
  const auto count = [&](const char* name, int64_t& value, const char* help, int64_t least) {
    app->add_option(name, value, help)
        ->check(CLI::Range(least, int64_t{1} << 26))
        ->type_name("N")
        ->capture_default_str()
        ->group("Bench");
  };
  count("-p,--n-prompt", o->prompt, "Tokens of prefill to time; 0 = none", 0);
  count("-n,--n-gen", o->generate, "Tokens of decode to time; 0 = none", 0);
  count("-r,--repetitions", o->repeats, "Runs of each; the median is shown", 1);
  app->add_option("-d,--n-depth", o->depths, "Tokens already in the cache: 0,4096,...")
      ->delimiter(',')
      ->type_name("N,...")
      ->capture_default_str()
      ->group("Bench");
  app->add_option("--sessions", o->sessions,
                  "Conversations that one engine decodes in one pass, instead of depths: 1,2,4,...")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16))
      ->type_name("N,...")
      ->group("Bench");
  app->add_option("--memory", o->memory,
                  "The same for as many sessions as SIZE (80GB, 16GiB) admits beside the weights")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->type_name("SIZE")
      ->group("Bench");
  app->add_flag("--separate-prompts", o->separate_prompts,
                "Each of those conversations reads a prompt of its own, all in one step")
      ->group("Bench");
  count("--arriving", o->arriving,
        "Times their steps also while a prompt of N tokens is read, a chunk per step", 0);
  app->footer(
      "Examples:\n"
      "  pith bench -m models/demo -d 0,2048,8192\n"
      "  pith bench -m models/demo --sessions 1,2,4,8,16\n"
      "  pith bench -m models/demo -d 8192 --kv-policy exact \\\n"
      "    --kv-policy 'local(window=512)'\n");
  add_bench_select(*app, action);
  app->callback([o, app, &action] {
    if (!app->get_subcommands().empty()) return;
    if (o->engine.model.empty()) throw CLI::RequiredError("--model");
    action = [o] {
      const int64_t deepest = o->depths.empty() ? 0 : std::ranges::max(o->depths);
      settle_auto(o->engine, &o->policies,
                  {.context = std::max<int64_t>(deepest + o->prompt + o->generate, 256)});
      return bench(*o);
    };
  });
}

}  // namespace pith::cli
