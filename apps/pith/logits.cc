// pith logits: the model's logits after every token of a text, under any policy. How others check
// us. It computes as pith eval does, so that each checks the other. Memory: one chunk of logits,
// whatever the length.

#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "commands.h"
#include "console.h"
#include "core/safetensors.h"
#include "engine.h"
#include "eval.h"
#include "interrupt.h"
#include "pith/error.h"
#include "report.h"
#include "text_input.h"

namespace pith::cli {
namespace {

struct LogitsOptions {
  ModelOptions engine;
  TextOptions text;
  std::string ids, out;
  int bos = -1;
  bool fast = false;
};

// Thrown through the library when Ctrl-C is pressed: the file is not finished, so it never appears.
struct Cancelled {};

int logits(const LogitsOptions& o) {
  if (!o.ids.empty() && (o.text.prompt_option->count() > 0 || !o.text.file.empty())) {
    throw Error(ErrorCode::kInvalidArgument, "--ids and a text are both given; give one of them");
  }
  StandaloneOptions options = session_options(o.engine);
  options.f32_arithmetic = !o.fast && o.engine.device == Device::kCpu;
  check_output(o.out, {o.text.file, o.ids});
  const auto model = load_model(o.engine);
  const auto ids = o.ids.empty() ? encode_prompt(*model, read_text(o.text), o.bos)
                                 : read_ids(o.ids, model->config().vocab);
  if (ids.empty()) throw Error(ErrorCode::kInvalidArgument, "the text is empty: it has no tokens");
  Session session(model, options);
  const auto vocab = static_cast<size_t>(model->config().vocab);
  SafeTensorsWriter writer(
      o.out,
      {{"ids", TensorType::kI64, {ids.size()}}, {"logits", TensorType::kF32, {ids.size(), vocab}}},
      {{"policy", options.policy.to_string()}, {"kv_seed", std::to_string(options.seed)}});
  const std::vector<int64_t> wide(ids.begin(), ids.end());
  writer.append(wide.data(), wide.size() * sizeof(int64_t));
  ProgressBar bar("computing", "tokens", o.engine.json);
  const auto start = std::chrono::steady_clock::now();
  try {
    session.prefill_logits(ids, [&](size_t first, size_t count, const float* values) {
      writer.append(values, count * vocab * sizeof(float));
      if (!bar.update(first + count, ids.size())) throw Cancelled{};
    });
  } catch (const Cancelled&) {
    return kExitInterrupted;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  writer.finish();
  bar.finish();
  if (o.engine.json) {
    Json json = describe_session(session);
    json.update({{"out", o.out}, {"tokens", ids.size()}, {"vocab", vocab}, {"seconds", seconds}});
    json["ledger"] = to_json(session.ledger());
    print_json(json);
  } else {
    write_out(fmt::format("{}: ids [{}] i64, logits [{}, {}] f32, in {}\n", o.out, ids.size(),
                          ids.size(), vocab, human_seconds(seconds)));
  }
  return 0;
}

}  // namespace

void add_logits(CLI::App& root, Action& action) {
  auto o = std::make_shared<LogitsOptions>();
  CLI::App* app = root.add_subcommand(
      "logits", "Write the logits after every token of a text, under any policy");
  add_model_option(*app, o->engine);
  add_engine_options(*app, o->engine);
  add_device_option(*app, o->engine);
  add_text_options(*app, o->text, "The text");
  app->add_option("--ids", o->ids, "Token ids instead: 1,2,3 or a JSON file with [1, 2, 3]")
      ->type_name("IDS")
      ->group("Input");
  add_bos_option(*app, o->bos);
  add_policy_options(*app, o->engine.policy);
  add_fast_option(*app, o->fast, "Input");
  app->add_option("-o,--out", o->out,
                  "safetensors file to write: ids [T] i64, logits [T, V] f32, where row t follows "
                  "token t")
      ->required()
      ->type_name("FILE")
      ->group("Output");
  app->footer(
      "Examples:\n"
      "  pith logits -m models/demo --ids ids.json --out exact.safetensors\n"
      "  pith logits -m models/demo -f book.txt --kv-policy uniform \\\n"
      "    --out uniform.safetensors\n");
  app->callback([o, &action] {
    action = [o] {
      settle_auto(o->engine);
      return logits(*o);
    };
  });
}

}  // namespace pith::cli
