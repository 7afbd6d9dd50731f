// pith eval: what a policy keeps of a model's quality. The kinds are subcommands of their own.

#include "eval.h"

#include <fmt/format.h>

#include <filesystem>

#include "args.h"
#include "pith/presets.h"
#include "pith/version.h"

namespace pith::cli {

void add_eval_options(CLI::App& app, EvalOptions& o) {
  add_model_option(app, o.engine);
  add_engine_options(app, o.engine);
  app.remove_option(app.get_option("--ctx-size"));
  add_device_option(app, o.engine);
  add_policy_options(app, o.engine.policy, &o.policies);
  app.add_option("--seeds", o.seeds,
                 "Seeds of randomised policies, from --kv-seed on; others run once")
      ->check(CLI::Range(1, 1000))
      ->type_name("N")
      ->capture_default_str()
      ->group("KV cache");
  app.add_option("-o,--out", o.out,
                 "JSON lines, one per finished piece; a second run with the same file continues")
      ->type_name("FILE")
      ->group("Output");
}

void add_fast_option(CLI::App& app, bool& fast, const char* group) {
  app.add_flag("--fast", fast,
               "Let prompts round activations to bf16 where that is faster, as pith run does; on "
               "the GPU they have the weights' type")
      ->group(group);
}

std::vector<EvalRun> eval_runs(const EvalOptions& o, bool null_control) {
  std::vector<EvalRun> runs;
  if (null_control)
    runs.push_back({"exact (null control)", Policy::parse("exact"), o.engine.policy.seed, true});
  std::vector<std::string> policies = o.policies;
  PolicyOptions plain = o.engine.policy;
  plain.policy = "exact";
  // -ctk, a sink or a window without a policy are exact's.
  if (policies.empty() && resolve_policy(plain).to_string() != "exact") policies = {"exact"};
  for (const std::string& text : policies) {
    PolicyOptions one = o.engine.policy;
    one.policy = text;
    const Policy policy = resolve_policy(one);
    for (int64_t s = 0; s < o.seeds; ++s)
      runs.push_back({policy.to_string(), policy, one.seed + static_cast<uint64_t>(s), false});
  }
  return runs;
}

Record describe_setting(const EvalOptions& o, const Model& model) {
  const std::filesystem::path folder = std::filesystem::absolute(o.engine.model).lexically_normal();
  const auto name = folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  const bool gpu = o.engine.device == Device::kCuda;
  return {{"version", PITH_VERSION},
          {"model", name.string()},
          {"architecture", model.config().architecture},
          {"model_fingerprint", model_fingerprint(folder)},
          {"ubatch", o.engine.chunk},
          {"isa", gpu                    ? "cuda"
                  : o.engine.isa.empty() ? "best"
                                         : o.engine.isa}};
}

bool SharedProgress::advance(size_t count) {
  const std::lock_guard lock(mutex_);
  done_ += count;
  return bar_.update(done_, total_);
}

void add_eval(CLI::App& root, Action& action) {
  CLI::App* app = root.add_subcommand("eval", "Measure what a policy keeps of a model's quality");
  app->require_subcommand(1);
  app->footer(
      "Examples:\n"
      "  pith eval ppl -m models/demo -f book.txt --kv-policy 'keydiff(budget=25%)'\n"
      "  pith eval tasks -m models/demo --task facts --kv-policy 'snapkv(budget=25%)'\n"
      "'pith eval KIND --help' explains the options; docs/evaluation.md the protocols.\n");
  add_eval_ppl(*app, action);
  add_eval_tasks(*app, action);
  add_eval_calibrate(*app, action);
}

}  // namespace pith::cli
