// pith tune: which layers and heads of a model want which form of the cache, found once on a text,
// as a file of presets for that model.

#include "pith_tools/tune.h"

#include <fmt/format.h>

#include <algorithm>
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

Json to_json(const TunedPolicy& p) {
  return {{"policy", p.preset.policy},
          {"kl", {{"mean", p.preset.divergence}, {"error", p.preset.divergence_error}}},
          {"answers_kl", {{"mean", p.answers}, {"error", p.answers_error}}},
          {"bits", p.preset.bits}};
}

Json to_json(const TuneCommand& o, const TuneResult& result) {
  Json units = Json::array(), forms = Json::array(), found = Json::array();
  for (const TunedUnit& unit : result.units) {
    units.push_back({{"layer", unit.layer}});
    if (unit.head) units.back()["head"] = *unit.head;
    for (const TuneLoss& l : unit.alone) {
      units.back()["kl"].push_back(l.text);
      units.back()["answers_kl"].push_back(l.answers);
    }
    units.back()["forms"] = unit.forms;
  }
  for (const TunedPolicy& p : result.forms) forms.push_back(to_json(p));
  for (const TunedPolicy& p : result.found) found.push_back(to_json(p));
  return {{"model", model_name(o.engine.model)},
          {"asked_bits", o.tune.bits},
          {"answer_weight", o.tune.answer_weight},
          {"weighed_in", result.weighed_in},
          {"units", units},
          {"forms", forms},
          {"tuned", found},
          {"out", o.out}};
}

std::string loss_text(double mean, double error) {
  return fmt::format("{:.4f} ±{:.4f}", mean, error);
}

/// A row a unit: what it loses alone in each form that is weighed, and the number of the form that
/// it has.
std::string units_text(const TuneCommand& o, const TuneResult& result) {
  const bool answers = o.tune.samples > 0;
  std::vector<std::string> head{"layer"};
  for (size_t k = 0; k < result.weighed_in.size(); ++k) {
    head.push_back("KL alone");
    if (answers) head.push_back("of answers");
  }
  for (const double bits : o.tune.bits) head.push_back(fmt::format("{:g} bits", bits));
  Table units(head);
  for (const TunedUnit& unit : result.units) {
    std::vector<std::string> cells{unit.head ? fmt::format("{}, head {}", unit.layer, *unit.head)
                                             : fmt::format("{}", unit.layer)};
    for (const TuneLoss& l : unit.alone) {
      cells.push_back(fmt::format("{:.5f}", l.text));
      if (answers) cells.push_back(fmt::format("{:.5f}", l.answers));
    }
    for (const std::string& form : unit.forms) {
      const auto at = std::ranges::find(result.forms, form,
                                        [](const TunedPolicy& p) { return p.preset.policy; });
      cells.push_back(fmt::format("form {}", at - result.forms.begin() + 1));
    }
    units.add(cells);
  }
  return units.text();
}

std::string to_text(const TuneCommand& o, const TuneResult& result) {
  Table policies({"", "policy", "KL", "of answers", "bits"}, {1});
  const auto add = [&](const std::string& name, const TunedPolicy& p) {
    policies.add({name, p.preset.policy, loss_text(p.preset.divergence, p.preset.divergence_error),
                  loss_text(p.answers, p.answers_error), fmt::format("{:.2f}", p.preset.bits)});
  };
  for (size_t f = 0; f < result.forms.size(); ++f)
    add(fmt::format("form {}", f + 1), result.forms[f]);
  for (size_t b = 0; b < result.found.size(); ++b)
    add(fmt::format("{:g} bits", o.tune.bits[b]), result.found[b]);
  std::string weighed;
  for (const std::string& form : result.weighed_in)
    weighed += (weighed.empty() ? "" : ", then ") + form;
  std::string text = units_text(o, result) + "\n" + policies.text() + "\n" +
                     wrapped(fmt::format("KL alone: of that layer or head in {}, all others exact. "
                                         "The second table is of pieces and samples that nothing "
                                         "was chosen on; its last lines are what was found.",
                                         weighed),
                             0) +
                     "\n";
  if (!o.out.empty()) text += fmt::format("Wrote {0}: --kv-policy auto --presets {0}\n", o.out);
  return text;
}

std::vector<Preset> presets_of(const TuneCommand& o, const TuneResult& result) {
  std::vector<Preset> presets;
  for (const auto* policies : {&result.forms, &result.found})
    for (const TunedPolicy& p : *policies) presets.push_back(p.preset);
  for (Preset& p : presets) p.model = model_name(o.engine.model);
  return presets;
}

int run(TuneCommand& o) {
  if (!o.out.empty()) Presets::check_write(o.out, {o.engine.model, o.text.file, o.tune.measured});
  o.tune.model_fingerprint = model_fingerprint(o.engine.model);
  const auto model = load_model(o.engine);
  const auto keeper = keep_weights(model, o.engine);
  o.tune.session = session_options(o.engine);
  o.tune.session.f32_arithmetic = o.engine.device == Device::kCpu;
  o.tune.session.threads = worker_threads(o.engine);
  ProgressBar bar("tuning", "tokens", o.engine.json);
  auto result = tune(model, encode_prompt(*model, read_text(o.text), -1), o.tune, bar.callback());
  bar.finish();
  if (!result) return kExitInterrupted;
  if (!o.out.empty()) Presets::write(o.out, presets_of(o, *result), o.tune.model_fingerprint);
  if (o.engine.json)
    print_json(to_json(o, *result));
  else
    write_out(to_text(o, *result));
  return 0;
}

void add_tuning_options(CLI::App& app, TuneOptions& o) {
  constexpr const char* kGroup = "Tuning";
  app.add_option(
         "--bits", o.bits,
         "Bits per number that the cache may take, everything included, of f16's 16; a list "
         "finds a policy for each")
      ->check(number_from(0.01, 16))
      ->delimiter(',')
      ->type_name("BITS,...")
      ->capture_default_str()
      ->group(kGroup);
  add_repeated(
      app, "--form", o.forms,
      "A policy that a layer's cache may have; repeat it. Without: heavy rows and a coreset "
      "of seven sizes in 4-bit keys and 3-bit values, and all rows in 2 to 4 bits")
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
  app.add_option("--task", o.tasks, "Questions about facts in long contexts (pith eval tasks)")
      ->delimiter(',')
      ->type_name("TASK,...")
      ->capture_default_str()
      ->group(kGroup);
  number("--samples", o.samples, "Samples of each to choose on, as many others to report; 0: none",
         0);
  number("--length", o.length, "Tokens of a sample", 1);
  app.add_option("--task-seed", o.task_seed, "Seed of the samples; report on others")
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--answer-weight", o.answer_weight,
                 "Weight of a nat of divergence in an answer, relative to one in the text")
      ->check(number_from(0, 1000))
      ->type_name("W")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--measured", o.measured,
                 "Measurements as JSON lines; those in the file are not repeated")
      ->type_name("FILE")
      ->group("Output");
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
      "Layers that lose more than an equal share are weighed head by head. Reads text\n"
      "and samples some 6 times layers: minutes on a GPU, hours on a CPU.\n\n"
      "Examples:\n"
      "  pith tune -m smollm2 -f book.txt --bits 2 -o smollm2.jsonl --device cuda\n"
      "  pith run -m smollm2 -p '...' --kv-policy auto --kv-budget 12.5% \\\n"
      "    --presets smollm2.jsonl\n");
  app->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace pith::cli
