// pith attend: bring your own tensors. Keys and values run through a policy in their order; then
// the queries attend to what is left, or, with --causal, each attends as it would in prefill.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>

#include "args.h"
#include "cache/kv_cache.h"
#include "commands.h"
#include "console.h"
#include "core/safetensors.h"
#include "engine.h"
#include "interrupt.h"
#include "pith/error.h"
#include "report.h"

namespace pith::cli {
namespace {

struct AttendOptions {
  ModelOptions engine;
  std::string tensors, out;
  bool causal = false;
  double rope_theta = 0;
};

struct Inputs {
  const Tensor *q = nullptr, *k = nullptr, *v = nullptr;  // [H, Tq, D], [G, T, D], [G, T, D]
  size_t query_heads = 0, queries = 0, kv_heads = 0, rows = 0, dim = 0;
};

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

Inputs check_inputs(const SafeTensors& file, bool causal) {
  Inputs in{&file.at("q"), &file.at("k"), &file.at("v")};
  for (const Tensor* t : {in.q, in.k, in.v}) {
    t->dtype();  // refuses what is not f32, f16 or bf16
    if (t->shape.size() != 3 || t->count() == 0) {
      refuse(
          fmt::format("{}: '{}' has shape {}; wanted: q [H, Tq, D], k and v [G, T, D], none of "
                      "them 0",
                      t->file, t->name, t->shape_text()));
    }
  }
  in.query_heads = in.q->shape[0], in.queries = in.q->shape[1], in.dim = in.q->shape[2];
  in.kv_heads = in.k->shape[0], in.rows = in.k->shape[1];
  if (in.k->shape != in.v->shape || in.k->shape[2] != in.dim) {
    refuse(
        fmt::format("{}: q {}, k {} and v {} do not fit: k and v must have one shape [G, T, D] "
                    "with the D of q",
                    file.source(), in.q->shape_text(), in.k->shape_text(), in.v->shape_text()));
  }
  if (in.query_heads % in.kv_heads != 0) {
    refuse(fmt::format("{}: {} query heads cannot share {} KV heads evenly", file.source(),
                       in.query_heads, in.kv_heads));
  }
  if (in.dim % 16 != 0) {
    refuse(fmt::format("{}: D is {}; supported are multiples of 16", file.source(), in.dim));
  }
  if (causal && in.queries != in.rows) {
    refuse(fmt::format("--causal needs a query for each row, but q has {} and k has {}", in.queries,
                       in.rows));
  }
  return in;
}

// out [count, heads, D] f32 <- rows [first, first + count) of t [heads, T, D]; returns the length
// of the longest row.
double load_rows(std::vector<float>& out, const Kernels& kernels, const Tensor& t, size_t first,
                 size_t count) {
  const size_t heads = t.shape[0], rows = t.shape[1], dim = t.shape[2];
  out.resize(count * heads * dim);
  const DType dtype = t.dtype();
  double longest = 0;
  for (size_t h = 0; h < heads; ++h) {
    for (size_t i = 0; i < count; ++i) {
      float* row = out.data() + (i * heads + h) * dim;
      kernels.to_f32(row, t.data + ((h * rows + first + i) * dim) * size_of(dtype), dtype, dim);
      double squares = 0;
      for (size_t d = 0; d < dim; ++d) {
        squares += double{row[d]} * row[d];
        if (std::isfinite(row[d])) continue;
        throw Error(ErrorCode::kNonFinite,
                    fmt::format("{}: '{}' is {} at [{}, {}, {}]; only finite numbers can be "
                                "attended to",
                                t.file, t.name, row[d], h, first + i, d));
      }
      longest = std::max(longest, squares);
    }
  }
  return std::sqrt(longest);
}

struct Timing {
  double append = 0, attend = 0;
};

class Attention {
 public:
  Attention(const AttendOptions& o, const Inputs& in)
      : in_(in),
        options_(session_options(o.engine)),
        pool_(o.engine.threads),
        memory_(options_.memory_limit),
        context_{pool_, memory_, kernels_for(o.engine.isa)},
        quiet_(o.engine.json) {
    if (o.rope_theta > 0) rope_ = std::make_unique<Rope>(in.dim, o.rope_theta);
    CacheShape shape;
    shape.layers = 1;
    shape.query_heads = static_cast<int>(in.query_heads);
    shape.kv_heads = static_cast<int>(in.kv_heads);
    shape.head_dim = static_cast<int>(in.dim);
    shape.context = options_.context > 0 ? options_.context : in.rows;
    if (shape.context < in.rows) {
      throw Error(
          ErrorCode::kContextFull,
          fmt::format("{} rows do not fit into a context of {}; raise -c", in.rows, shape.context));
    }
    ResolvedPolicy policy(options_.policy, shape, options_.seed, Device::kCpu);
    if (!rope_) policy.check_without_rope(0);
    cache_ = std::make_unique<KvCache>(context_, std::move(policy), rope_.get());
    cache_->protect(options_.protect);
    out_.resize(in.query_heads * in.queries * in.dim);
  }

  /// False if Ctrl-C was pressed.
  bool run(bool causal) { return causal ? run_causal() : run_streamed(); }

  const std::vector<float>& out() const { return out_; }  // [H, Tq, D]
  const KvCache& cache() const { return *cache_; }
  const StandaloneOptions& options() const { return options_; }
  const Timing& timing() const { return timing_; }
  int threads() const { return pool_.size(); }
  const char* isa() const { return context_.kernels.isa; }

 private:
  bool run_causal() {
    ProgressBar bar("attending", "rows", quiet_);
    for (size_t first = 0; first < in_.rows; first += options_.chunk) {
      const size_t count = std::min(options_.chunk, in_.rows - first);
      const double query = load_rows(q_, context_.kernels, *in_.q, first, count);
      load_keys(first, count);
      check_scores(query);
      result_.resize(q_.size());
      timed(timing_.attend,
            [&] { cache_->step(0, result_.data(), q_.data(), k_.data(), v_.data(), count); });
      store(first, count);
      if (!bar.update(first + count, in_.rows)) return false;
    }
    cache_->end_prefill();
    return true;
  }

  bool run_streamed() {
    {
      ProgressBar bar("appending", "rows", quiet_);
      for (size_t first = 0; first < in_.rows; first += options_.chunk) {
        const size_t count = std::min(options_.chunk, in_.rows - first);
        load_keys(first, count);
        timed(timing_.append, [&] { cache_->append(0, k_.data(), v_.data(), count); });
        if (!bar.update(first + count, in_.rows)) return false;
      }
      timed(timing_.append, [&] { cache_->end_prefill(); });
    }
    ProgressBar bar("attending", "queries", quiet_);
    for (size_t first = 0; first < in_.queries; first += options_.chunk) {
      const size_t count = std::min(options_.chunk, in_.queries - first);
      check_scores(load_rows(q_, context_.kernels, *in_.q, first, count));
      result_.resize(q_.size());
      timed(timing_.attend, [&] { cache_->attend_only(0, result_.data(), q_.data(), count); });
      store(first, count);
      if (!bar.update(first + count, in_.queries)) return false;
    }
    return true;
  }

  void load_keys(size_t first, size_t count) {
    longest_key_ = std::max(longest_key_, load_rows(k_, context_.kernels, *in_.k, first, count));
    load_rows(v_, context_.kernels, *in_.v, first, count);
  }

  // Infinite scores have no softmax: what came out would be NaN, or zeros where blocks are skipped.
  void check_scores(double query) const {
    constexpr double kMost = std::numeric_limits<float>::max();
    if (query * longest_key_ <= kMost) return;
    throw Error(ErrorCode::kNonFinite,
                fmt::format("{}: a query of length {:.2g} and a key of length {:.2g} give scores "
                            "beyond {:.2g}, the largest float; scale them down",
                            in_.q->file, query, longest_key_, kMost));
  }

  template <class F>
  void timed(double& seconds, F&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  // result_ [count, H, D] into its places of out_ [H, Tq, D].
  void store(size_t first, size_t count) {
    for (const float x : result_)
      if (!std::isfinite(x))
        throw Error(ErrorCode::kNonFinite,
                    fmt::format("{}: values as large as these sum up to {}; scale them down",
                                in_.v->file, x));
    for (size_t i = 0; i < count; ++i) {
      for (size_t h = 0; h < in_.query_heads; ++h) {
        const float* from = result_.data() + (i * in_.query_heads + h) * in_.dim;
        std::copy(from, from + in_.dim, out_.data() + (h * in_.queries + first + i) * in_.dim);
      }
    }
  }

  const Inputs& in_;
  StandaloneOptions options_;
  ThreadPool pool_;
  MemoryCounter memory_;
  Context context_;
  bool quiet_;
  std::unique_ptr<Rope> rope_;
  std::unique_ptr<KvCache> cache_;
  std::vector<float> q_, k_, v_, result_;  // one chunk: [count, H or G, D]
  std::vector<float> out_;                 // [H, Tq, D]
  double longest_key_ = 0;                 // so far
  Timing timing_;
};

void write_results(const std::string& path, const Attention& attention, const Inputs& in) {
  std::vector<HeadRows> heads;
  for (size_t g = 0; g < in.kv_heads; ++g) {
    heads.push_back(attention.cache().rows(0, static_cast<int>(g)));
  }
  std::vector<TensorBytes> tensors{
      {{"out", TensorType::kF32, {in.query_heads, in.queries, in.dim}}, attention.out().data()}};
  for (size_t g = 0; g < heads.size(); ++g) {
    const size_t n = heads[g].positions.size();
    tensors.push_back(
        {{fmt::format("rows.{}", g), TensorType::kI64, {n}}, heads[g].positions.data()});
    tensors.push_back(
        {{fmt::format("log_weight.{}", g), TensorType::kF32, {n}}, heads[g].log_weights.data()});
    const auto& roles = heads[g].roles;
    if (std::any_of(roles.begin(), roles.end(), [](Role r) { return r != Role::kBoth; }))
      tensors.push_back({{fmt::format("role.{}", g), TensorType::kU8, {n}}, roles.data()});
  }
  write_safetensors(path, std::move(tensors),
                    {{"policy", attention.options().policy.to_string()},
                     {"seed", std::to_string(attention.options().seed)}});
}

int attend(const AttendOptions& o) {
  check_output(o.out, {o.tensors});
  const SafeTensors file = SafeTensors::open(o.tensors);
  const Inputs in = check_inputs(file, o.causal);
  Attention attention(o, in);
  if (!attention.run(o.causal)) return kExitInterrupted;
  write_results(o.out, attention, in);
  const Ledger ledger = attention.cache().ledger();
  const Timing& t = attention.timing();
  std::vector<size_t> rows;
  for (size_t g = 0; g < in.kv_heads; ++g) {
    rows.push_back(attention.cache().rows(0, static_cast<int>(g)).positions.size());
  }
  if (o.engine.json) {
    Json json{{"out", o.out},
              {"policy", attention.options().policy.to_string()},
              {"resolved_policy", attention.cache().describe()},
              {"seed", attention.options().seed},
              {"causal", o.causal},
              {"query_heads", in.query_heads},
              {"kv_heads", in.kv_heads},
              {"head_dim", in.dim},
              {"queries", in.queries},
              {"rows_given", in.rows},
              {"rows", rows},
              {"append_seconds", t.append},
              {"attend_seconds", t.attend},
              {"seconds", t.append + t.attend},
              {"threads", attention.threads()},
              {"isa", attention.isa()}};
    json.update(to_json(ledger));
    json["peak_memory"] = peak_memory();
    print_json(json);
    return 0;
  }
  write_out(
      fmt::format("{}: out [{}, {}, {}], {} of {} rows per KV head kept ({}), {}; appended in {}, "
                  "attended in {}\n",
                  o.out, in.query_heads, in.queries, in.dim, rows_per_head(ledger), ledger.tokens,
                  share_kept(ledger), describe_bytes(ledger), human_seconds(t.append),
                  human_seconds(t.attend)));
  return 0;
}

}  // namespace

void add_attend(CLI::App& root, Action& action) {
  auto o = std::make_shared<AttendOptions>();
  CLI::App* app = root.add_subcommand("attend", "Run your own q, k and v tensors through a policy");
  app->add_option("--tensors", o->tensors,
                  "safetensors file with q [H, Tq, D], k and v [G, T, D], each f32, f16 or bf16; D "
                  "a multiple of 16, H a multiple of G")
      ->required()
      ->type_name("FILE")
      ->group("Input");
  app->add_flag("--causal", o->causal,
                "Each query attends as it would in prefill, before later rows come (Tq = T); "
                "without it all rows run through the policy first")
      ->group("Input");
  app->add_option("--rope-theta", o->rope_theta,
                  "Base of the RoPE that q and k went through, for policies that rotate keys back "
                  "(half-split layout, positions from 0)")
      ->check(number_from(1e-3, 1e12))
      ->type_name("THETA")
      ->group("Input");
  add_engine_options(*app, o->engine);
  app->remove_option(app->get_option("--no-check-weights"));
  app->get_option("--ctx-size")->description("Tokens that per cent budgets refer to; 0 = T");
  app->get_option("--ubatch-size")->description("Rows per step");
  for (const char* name : {"--ctx-size", "--threads", "--isa", "--ubatch-size", "--memory-limit"}) {
    app->get_option(name)->group("Computing");
  }
  add_policy_options(*app, o->engine.policy);
  app->remove_option(app->get_option("--kv-seed"));
  app->add_option("-s,--seed,--kv-seed", o->engine.policy.seed, "Seed of randomised policies")
      ->type_name("N")
      ->capture_default_str()
      ->group("KV cache");
  app->add_option("-o,--out", o->out,
                  "safetensors file to write: out [H, Tq, D] f32 and, per KV head g, rows.g "
                  "(positions, i64) and log_weight.g (f32); role.g (u8: 0 both sums, 1 the "
                  "numerator's alone, 2 the denominator's) where rows have roles")
      ->required()
      ->type_name("FILE")
      ->group("Output");
  app->footer(
      "Scores are scaled by 1/sqrt(D). --json prints rows, bytes by kind, effective\n"
      "bits, seconds.\n\n"
      "Examples:\n"
      "  pith attend --tensors in.safetensors --policy 'uniform(rate=0.25)' --seed 1 \\\n"
      "    --out out.safetensors\n"
      "  pith attend --tensors in.safetensors --policy exact --causal \\\n"
      "    --out out.safetensors --json\n");
  app->callback([o, &action] { action = [o] { return attend(*o); }; });
}

}  // namespace pith::cli
