// pith tune: which heads of a model want which form of the cache, found once on a text, as a file
// of presets for that model.

#include "pith_tools/tune.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "args.h"
#include "commands.h"
#include "console.h"
#include "engine.h"
#include "pith/error.h"
#include "pith_tools/screen.h"
#include "report.h"
#include "text_input.h"

namespace pith::cli {
namespace {

struct TuneCommand {
  ModelOptions engine;
  TuneOptions tune;
  std::string file, out;

  std::string text_name() const {
    if (file.empty()) return "the text that ships with pith";
    return file == "-" ? "standard input" : file;
  }
};

Json to_json(const TuneLoss& loss) { return {{"text", loss.text}, {"answers", loss.answers}}; }

Json to_json(const TunedPolicy& p) {
  return {{"policy", p.preset.policy},
          {"bits", p.preset.bits},
          {"predicted", to_json(p.predicted)},
          {"chosen_on", to_json(p.chosen_on)},
          {"kl", {{"mean", p.preset.divergence}, {"error", p.preset.divergence_error}}},
          {"answers_kl", {{"mean", p.answers}, {"error", p.answers_error}}}};
}

Json to_json(const TuneCommand& o, const TuneResult& result) {
  Json heads = Json::array(), forms = Json::array(), found = Json::array();
  for (const TunedHead& h : result.heads) {
    heads.push_back({{"layer", h.layer}, {"head", h.head}, {"chosen", h.chosen}});
    for (const TuneLoss& l : h.alone) {
      heads.back()["kl"].push_back(l.text);
      heads.back()["answers_kl"].push_back(l.answers);
    }
  }
  for (const TunedForm& f : result.forms)
    forms.push_back({{"policy", f.policy}, {"bits", f.bits}, {"predicted", to_json(f.alike)}});
  for (const TunedPolicy& p : result.found) found.push_back(to_json(p));
  return {{"model", model_name(o.engine.model)},
          {"text", o.text_name()},
          {"tokens", result.window},
          {"asked_bits", o.tune.bits},
          {"answer_weight", o.tune.answer_weight},
          {"forms", forms},
          {"heads", heads},
          {"tuned", found},
          {"out", o.out}};
}

/// Each form that some head has: how many, for each number of bits.
std::string forms_text(const TuneCommand& o, const TuneResult& result) {
  std::string text =
      fmt::format("Heads at {:g} bits, and their form:\n", fmt::join(o.tune.bits, ", "));
  for (size_t f = 0; f < result.forms.size(); ++f) {
    std::string counts;
    size_t all = 0;
    for (size_t b = 0; b < o.tune.bits.size(); ++b) {
      const auto count = static_cast<size_t>(
          std::ranges::count(result.heads, f, [&](const TunedHead& h) { return h.chosen[b]; }));
      counts += fmt::format("{:>5}", count);
      all += count;
    }
    if (all > 0) text += wrapped(counts + "  " + result.forms[f].policy, counts.size() + 2) + "\n";
  }
  return text;
}

std::string to_text(const TuneCommand& o, const ModelConfig& config, const TuneResult& result) {
  const bool answers = o.tune.samples > 0;
  std::vector<std::string> head{"asked", "bits", "MiB", "predicted KL", "KL", "held-out KL"};
  if (answers) head.insert(head.end(), {"answers", "held-out"});
  Table found(head);
  const double numbers =
      static_cast<double>(config.bytes_per_token(DType::kF16) * result.window) / 2;
  for (size_t b = 0; b < result.found.size(); ++b) {
    const TunedPolicy& p = result.found[b];
    std::vector<std::string> cells{
        fmt::format("{:g}", o.tune.bits[b]),
        fmt::format("{:.2f}", p.preset.bits),
        fmt::format("{:.2f}", p.preset.bits * numbers / (8 << 20)),
        fmt::format("{:.4f}", p.predicted.text),
        fmt::format("{:.4f}", p.chosen_on.text),
        fmt::format("{:.4f} ±{:.4f}", p.preset.divergence, p.preset.divergence_error)};
    if (answers)
      cells.insert(cells.end(),
                   {fmt::format("{:.4f}", p.chosen_on.answers), fmt::format("{:.4f}", p.answers)});
    found.add(cells);
  }
  return forms_text(o, result) + "\n" + found.text() + "\n" +
         wrapped(fmt::format("On {}, in pieces of {} tokens. KL: the sum of the heads' losses; as "
                             "measured where it was chosen; and on a piece that nothing was "
                             "chosen on.{}",
                             o.text_name(), result.window,
                             answers ? " Answers: KL of answers to questions about facts." : ""),
                 0) +
         fmt::format("\nWrote {0}: --kv-policy auto --presets {0}\n", o.out);
}

std::vector<Preset> presets_of(const TuneCommand& o, const TuneResult& result) {
  std::vector<Preset> presets;
  for (const TunedPolicy& p : result.found) presets.push_back(p.preset);
  for (Preset& p : presets) p.model = model_name(o.engine.model);
  return presets;
}

/// The file that presets go to. One that nobody named must not be there.
void settle_out(TuneCommand& o) {
  if (o.out.empty()) {
    std::string name = model_name(o.engine.model);
    if (name.ends_with(".gguf")) name.resize(name.size() - 5);
    o.out = name + ".tuned.jsonl";
    if (std::filesystem::exists(o.out))
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{0} is there already; remove it, or name a file: -o {0} writes over "
                              "it",
                              o.out));
  }
  Presets::check_write(o.out, {o.engine.model, o.file, o.tune.measured});
}

std::string text_of(const TuneCommand& o) {
  if (o.file.empty()) return std::string(screen_text());
  std::string text = read_all(o.file);
  require_utf8(text, o.text_name());
  return text;
}

int run(TuneCommand& o) {
  settle_out(o);
  o.tune.model_fingerprint = model_fingerprint(o.engine.model);
  const auto model = load_model(o.engine);
  const auto keeper = keep_weights(model, o.engine);
  o.tune.session = session_options(o.engine);
  o.tune.session.f32_arithmetic = o.engine.device == Device::kCpu;
  o.tune.session.threads = worker_threads(o.engine);
  o.tune.threads = o.engine.threads;
  ProgressBar bar("tuning", "tokens", o.engine.json);
  auto result = tune(model, encode_prompt(*model, text_of(o), -1), o.tune, bar.callback());
  bar.finish();
  if (!result) return kExitInterrupted;
  Presets::write(o.out, presets_of(o, *result), o.tune.model_fingerprint);
  if (o.engine.json)
    print_json(to_json(o, *result));
  else
    write_out(to_text(o, model->config(), *result));
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
  add_repeated(app, "--form", o.forms,
               "A policy that a head's cache may have; repeat it. Without: 26 of heavy rows and a "
               "coreset, in keys of 2 to 8 bits, and 14 of all rows in 2 to 9 bits")
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
  app.add_option("-c,--ctx-size", o.window,
                 "Tokens of a piece of the text; 0: what text and model allow, at most 4096")
      ->check(CLI::Range(size_t{0}, size_t{1} << 32))
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
  number("--score", o.score, "Predictions that count in each piece, the last", 3);
  number("--pieces", o.pieces, "Pieces to choose on; the report uses as many others", 1);
  app.add_option("--task", o.tasks, "Questions about facts in long contexts (pith eval tasks)")
      ->delimiter(',')
      ->type_name("TASK,...")
      ->capture_default_str()
      ->group(kGroup);
  number("--samples", o.samples,
         "Samples of each to choose on; the report uses as many others; 0: none", 0);
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
  app.add_option("--form-cost", o.form_cost,
                 "Part of the loss that a form must save to be used; each is launches on a GPU")
      ->check(number_from(0, 1000))
      ->type_name("C")
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
  o->tune.bits = {4, 2, 1.25};  // a quarter, an eighth, a twelfth of exact
  CLI::App* app =
      root.add_subcommand("tune", "Find on a text which heads want which form of the cache");
  add_model_option(*app, o->engine);
  add_engine_options(*app, o->engine);
  app->remove_option(app->get_option("--ctx-size"));
  add_device_option(*app, o->engine);
  app->add_option("-f,--file", o->file,
                  "The text to tune on, of two pieces or more; - is standard input. Without: a "
                  "short one that ships with pith")
      ->type_name("FILE")
      ->group("Input");
  add_tuning_options(*app, o->tune);
  app->add_option("--kv-seed", o->engine.policy.seed, "Seed of randomised policies")
      ->type_name("N")
      ->capture_default_str()
      ->group("Tuning");
  app->add_option("-o,--out", o->out,
                  "Presets of this model, for --presets; without: MODEL.tuned.jsonl, if that is "
                  "not there")
      ->type_name("FILE")
      ->group("Output");
  app->footer(
      "One exact pass over text and samples gives each form's loss in each head;\n"
      "a few whole runs check what is chosen. Minutes on a CPU for 0.5B.\n\n"
      "Examples:\n"
      "  pith tune -m smollm2\n"
      "  pith tune -m smollm2 -f book.txt --bits 2 -o smollm2.jsonl\n"
      "  pith run -m smollm2 -p '...' --kv-policy auto --kv-budget 12.5% \\\n"
      "    --presets smollm2.jsonl\n");
  app->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace pith::cli
