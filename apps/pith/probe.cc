// pith probe: the relative attention error of policies on a model's real heads, layer by layer,
// beside a correctly weighted uniform sample of as many rows. See src/tools/eval/probe.h for what
// is measured.

#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "commands.h"
#include "console.h"
#include "core/output_file.h"
#include "engine.h"
#include "pith/error.h"
#include "probe_report.h"
#include "text_input.h"

namespace pith::cli {
namespace {

struct ProbeCommand {
  ModelOptions engine;
  TextOptions text;
  std::vector<std::string> policies;
  int64_t queries = 256, seeds = 3;
  int bos = -1;
  bool per_head = false;
  std::string csv;
};

std::vector<Policy> policies_of(const ProbeCommand& o) {
  if (o.policies.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "no policy to probe; name one or more with --kv-policy, e.g. --kv-policy "
                "'express(s=512)'; 'pith policies' lists the parts");
  std::vector<Policy> policies;
  for (const std::string& text : o.policies) {
    PolicyOptions options = o.engine.policy;
    options.policy = text;
    policies.push_back(resolve_policy(options));
  }
  return policies;
}

// The first `context` tokens of the text, or as many as the model was trained for.
std::vector<int32_t> tokens_of(const ProbeCommand& o, const Model& model) {
  std::vector<int32_t> ids = encode_prompt(model, read_text(o.text), o.bos);
  const auto wanted = static_cast<size_t>(o.engine.context);
  if (ids.size() < wanted)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the text has {} tokens and -c asks for {}; give a longer text or a "
                            "smaller -c",
                            ids.size(), wanted));
  const size_t most = wanted > 0 ? wanted : static_cast<size_t>(model.config().context);
  if (ids.size() > most) ids.resize(most);
  return ids;
}

int probe(const ProbeCommand& o) {
  ProbeOptions options;
  options.policies = policies_of(o);
  options.queries = static_cast<size_t>(o.queries);
  options.seeds = static_cast<size_t>(o.seeds);
  options.seed = o.engine.policy.seed;
  options.chunk = static_cast<size_t>(o.engine.chunk);
  if (!o.csv.empty()) check_output(o.csv, {o.text.file});
  const auto model = load_model(o.engine);
  const std::vector<int32_t> ids = tokens_of(o, *model);

  ThreadPool pool(o.engine.threads);
  MemoryCounter memory(static_cast<size_t>(o.engine.memory_limit_mib * 1048576));
  const Context context{pool, memory, kernels_for(o.engine.isa)};
  ProgressBar bar("probing", "runs", o.engine.json);
  const auto start = std::chrono::steady_clock::now();
  const auto report = probe_model(context, *model, ids, std::move(options), bar.callback());
  bar.finish();
  if (!report) return kExitInterrupted;

  ProbeRun run{o.engine.model, o.text.file.empty() ? "a prompt" : o.text.file, ids.size()};
  run.queries = static_cast<size_t>(o.queries);
  run.seeds = static_cast<size_t>(o.seeds);
  run.first_seed = o.engine.policy.seed;
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!o.csv.empty()) write_file(o.csv, probe_csv(run, *report));
  if (o.engine.json)
    print_json(probe_json(run, *report));
  else
    write_out(probe_text(run, *report, o.per_head));
  return 0;
}

}  // namespace

void add_probe(CLI::App& root, Action& action) {
  auto o = std::make_shared<ProbeCommand>();
  CLI::App* app = root.add_subcommand(
      "probe", "Measure policies' attention error on a model's real heads, layer by layer");
  add_model_option(*app, o->engine);
  add_engine_options(*app, o->engine);
  app->get_option("--ctx-size")
      ->description("Tokens of the text that are read; 0 = all, up to the model's context");
  app->get_option("--ubatch-size")->description("Rows that enter a cache at a time");
  add_text_options(*app, o->text, "The text");
  add_bos_option(*app, o->bos);
  add_policy_options(*app, o->engine.policy, &o->policies);
  app->get_option("--kv-seed")->description("First seed of randomised policies");
  const auto count = [&](const char* name, int64_t& value, const char* help) {
    app->add_option(name, value, help)
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
        ->type_name("N")
        ->capture_default_str()
        ->group("Probe");
  };
  count("--queries", o->queries, "Last queries whose answers are compared; their rows stay exact");
  count("--seeds", o->seeds, "Seeds that randomised policies and the uniform sample are run with");
  app->add_flag("--per-head", o->per_head, "A line for each KV head too")->group("Output");
  app->add_option("--csv", o->csv, "Write one line per policy, layer and head to a file")
      ->type_name("FILE")
      ->group("Output");
  app->footer(
      "Examples:\n"
      "  pith probe -m models/demo -f book.txt -c 4096 --kv-policy 'express(s=512)'\n"
      "  pith probe -m models/demo -f book.txt --kv-policy 'snapkv(budget=512)' \\\n"
      "    --kv-policy 'h2o(budget=512)' --per-head --csv errors.csv\n");
  app->callback([o, &action] {
    action = [o] {
      settle_auto(o->engine, &o->policies);
      return probe(*o);
    };
  });
}

}  // namespace pith::cli
