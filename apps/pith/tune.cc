// pith tune: which layers and heads of a model want which form of the cache, found once on a text,
// as a file of presets for that model.

#include "pith/tune.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "args.h"
#include "commands.h"
#include "console.h"
#include "engine.h"
#include "report.h"
#include "text_input.h"

namespace pith::cli {
namespace {

struct TuneCommand {
  ModelOptions engine;
  TextOptions text;
  TuneOptions tune;
  std::string out;
};

std::string model_name(const std::string& model) {
  const auto path = std::filesystem::absolute(model).lexically_normal();
  return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
}

Json to_json(const TuneCommand& o, const TuneResult& result) {
  Json units = Json::array(), policies = Json::array();
  for (const TunedUnit& unit : result.units) {
    units.push_back({{"layer", unit.layer}, {"kl", unit.divergence}, {"form", unit.form}});
    if (unit.head) units.back()["head"] = *unit.head;
  }
  for (const Preset& p : result.measured)
    policies.push_back({{"policy", p.policy},
                        {"kl", {{"mean", p.divergence}, {"error", p.divergence_error}}},
                        {"bits", p.bits}});
  return {{"model", model_name(o.engine.model)},
          {"asked_bits", o.tune.bits},
          {"weighed_in", result.weighed_in},
          {"units", units},
          {"tuned", result.measured.back().policy},
          {"policies", policies},
          {"out", o.out}};
}

std::string to_text(const TuneCommand& o, const TuneResult& result) {
  Table units({"layer", "KL alone", "form"}, {2});
  for (const TunedUnit& unit : result.units)
    units.add({unit.head ? fmt::format("{}, head {}", unit.layer, *unit.head)
                         : fmt::format("{}", unit.layer),
               fmt::format("{:.5f}", unit.divergence), unit.form});
  Table policies({"policy", "KL", "bits"});
  for (const Preset& p : result.measured)
    policies.add({p.policy, fmt::format("{:.4f} ±{:.4f}", p.divergence, p.divergence_error),
                  fmt::format("{:.2f}", p.bits)});
  std::string text =
      units.text() + "\n" + policies.text() + "\n" +
      wrapped(fmt::format("KL alone: of that layer or head in {}, all others exact. The second "
                          "table is of pieces that nothing was chosen on; its last line is what "
                          "was found.",
                          result.weighed_in),
              0) +
      "\n";
  if (!o.out.empty()) text += fmt::format("Wrote {0}: --kv-policy auto --presets {0}\n", o.out);
  return text;
}

int run(TuneCommand& o) {
  if (!o.out.empty()) Presets::check_write(o.out, {o.engine.model, o.text.file});
  const auto model = load_model(o.engine);
  const auto keeper = keep_weights(model, o.engine);
  o.tune.session = session_options(o.engine);
  o.tune.session.f32_arithmetic = o.engine.device == Device::kCpu;
  o.tune.session.threads = worker_threads(o.engine);
  ProgressBar bar("tuning", "tokens", o.engine.json);
  auto result = tune(model, encode_prompt(*model, read_text(o.text), -1), o.tune, bar.callback());
  bar.finish();
  if (!result) return kExitInterrupted;
  for (Preset& p : result->measured) p.model = model_name(o.engine.model);
  if (!o.out.empty()) Presets::write(o.out, result->measured, model_fingerprint(o.engine.model));
  if (o.engine.json)
    print_json(to_json(o, *result));
  else
    write_out(to_text(o, *result));
  return 0;
}

void add_tuning_options(CLI::App& app, TuneOptions& o) {
  constexpr const char* kGroup = "Tuning";
  app.add_option("--bits", o.bits,
                 "Bits a number that the cache may take, everything included, of f16's 16")
      ->check(number_from(0.01, 16))
      ->type_name("BITS")
      ->capture_default_str()
      ->group(kGroup);
  add_repeated(app, "--form", o.forms,
               "A policy that a layer's cache may have; repeat it. Without: four mixtures and all "
               "rows in int4")
      ->check(not_empty())
      ->type_name("POLICY")
      ->group(kGroup);
  const auto number = [&](const char* name, size_t& value, const char* help, size_t least) {
    app.add_option(name, value, help)
        ->check(CLI::Range(least, size_t{1} << 32))
        ->type_name("N")
        ->capture_default_str()
        ->group(kGroup);
  };
  number("-c,--ctx-size", o.window, "Tokens of a piece of the text", 4);
  number("--score", o.score, "Predictions that count in each piece, the last", 1);
  number("--pieces", o.pieces, "Pieces to choose on; as many others are reported on", 1);
}

}  // namespace

void add_tune(CLI::App& root, Action& action) {
  auto o = std::make_shared<TuneCommand>();
  CLI::App* app =
      root.add_subcommand("tune", "Find on a text which layers want which form of the cache");
  add_model_option(*app, o->engine);
  add_engine_options(*app, o->engine);
  app->remove_option(app->get_option("--ctx-size"));
  add_device_option(*app, o->engine);
  add_text_options(*app, o->text, "The text to tune on");
  add_tuning_options(*app, o->tune);
  app->add_option("--kv-seed", o->engine.policy.seed, "Seed of randomised policies")
      ->type_name("N")
      ->capture_default_str()
      ->group("Tuning");
  app->add_option("-o,--out", o->out, "Presets of this model, for --presets")
      ->type_name("FILE")
      ->group("Output");
  app->footer(
      "Layers that lose more than an equal share are weighed head by head. Reads the\n"
      "text some 2 times layers: minutes on a GPU, an hour on a CPU.\n\n"
      "Examples:\n"
      "  pith tune -m smollm2 -f book.txt --bits 2 -o smollm2.jsonl --device cuda\n"
      "  pith run -m smollm2 -p '...' --kv-policy auto --kv-budget 12.5% \\\n"
      "    --presets smollm2.jsonl\n");
  app->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace pith::cli
