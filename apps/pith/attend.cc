// pith attend: bring your own tensors. Keys and values run through a policy in their order; then
// the queries attend to what is left, or, with --causal, each attends as it would in prefill.

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "args.h"
#include "commands.h"
#include "console.h"
#include "engine.h"
#include "interrupt.h"
#include "report.h"
#include "tools/attend/tensor_attention.h"

namespace pith::cli {
namespace {

struct AttendOptions {
  ModelOptions engine;
  std::string tensors, out;
  bool causal = false;
  double rope_theta = 0;
};

int attend(const AttendOptions& o) {
  check_output(o.out, {o.tensors});
  const SafeTensors file = SafeTensors::open(o.tensors);
  const AttendTensors in = attend_tensors(file, o.causal);
  const StandaloneOptions options = session_options(o.engine);
  TensorAttention attention({.policy = options.policy,
                             .seed = options.seed,
                             .protect = options.protect,
                             .context = options.context,
                             .chunk = options.chunk,
                             .rope_theta = o.rope_theta,
                             .threads = o.engine.threads,
                             .isa = o.engine.isa,
                             .memory_limit = options.memory_limit},
                            in);
  std::optional<ProgressBar> bar;  // of one kind of work at a time
  std::string label;
  const auto note = [&](const char* doing, size_t done, size_t of) {
    const bool rows = o.causal || std::string_view(doing) == "appending";
    if (label != doing) bar.emplace(label = doing, rows ? "rows" : "queries", o.engine.json);
    return bar->update(done, of);
  };
  const bool whole = attention.run(o.causal, note);
  bar.reset();
  if (!whole) return kExitInterrupted;
  attention.write(o.out);
  const Ledger ledger = attention.cache().ledger();
  const TensorAttention::Timing& t = attention.timing();
  std::vector<size_t> rows;
  for (size_t g = 0; g < in.kv_heads; ++g) {
    rows.push_back(attention.cache().rows(0, static_cast<int>(g)).positions.size());
  }
  if (o.engine.json) {
    Json json{{"out", o.out},
              {"policy", options.policy.to_string()},
              {"resolved_policy", attention.cache().describe()},
              {"seed", options.seed},
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
