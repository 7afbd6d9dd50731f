// pith reproduce: a paper's tables and figures on a model and a text, beside the paper's numbers.

#include "tools/eval/reproduce.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <mutex>

#include "args.h"
#include "bench_select.h"
#include "commands.h"
#include "console.h"
#include "core/output_file.h"
#include "engine.h"
#include "interrupt.h"
#include "pith/error.h"
#include "report.h"
#include "reproduce_times.h"
#include "text_input.h"
#include "tools/eval/reproduce_text.h"

namespace pith::cli {
namespace {

struct ReproduceCommand {
  ModelOptions engine;
  TextOptions text;
  std::string paper, folder, dictionary;
  std::vector<std::string> tables;
  int64_t seeds = 3;
  int bos = -1;
  bool quick = false;
};

/// One bar a stage.
class StageBars {
 public:
  explicit StageBars(bool quiet) : quiet_(quiet) {}
  bool update(const std::string& stage, size_t done, size_t total) {
    const std::lock_guard lock(mutex_);
    if (stage != stage_) {
      finish();
      stage_ = stage;
      bar_ = std::make_unique<ProgressBar>(stage, "", quiet_);
    }
    return bar_->update(done, total);
  }
  void finish() {
    if (bar_) bar_->finish();
  }

 private:
  bool quiet_;
  std::mutex mutex_;
  std::string stage_;
  std::unique_ptr<ProgressBar> bar_;
};

std::string setting_line(const ReproduceCommand& o, const Model& model, size_t tokens) {
  return fmt::format(
      "model {} ({} layers, {} KV heads of {} channels), {}, the first {} tokens",
      std::filesystem::path(o.engine.model).lexically_normal().filename().string(),
      model.config().layers, model.config().kv_heads, model.config().head_dim,
      o.text.file.empty() ? "a prompt" : std::filesystem::path(o.text.file).filename().string(),
      tokens);
}

std::string markdown_page(const ReproduceCommand& o, const std::string& setting,
                          const std::vector<ReproducedTable>& tables) {
  std::string page = fmt::format(
      "# {}: the paper's tables on our model\n\n"
      "    pith reproduce {} -m MODEL -f TEXT --seeds {}{} --write FOLDER\n\n"
      "Made by this command: {}; seeds from {} on. Numbers of another model, text and metric do "
      "not "
      "compare; directions do,\nand are checked below each table.\n",
      o.paper, o.paper, o.seeds, o.quick ? " --quick" : "", setting, o.engine.policy.seed);
  for (const ReproducedTable& t : tables) page += "\n" + table_markdown(t);
  return page;
}

int reproduce(const ReproduceCommand& o) {
  const Reproduction& paper = find_reproduction(o.paper);
  check_tables(paper, o.tables);
  if (!o.dictionary.empty() && o.paper != "csr")
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--dict is for csr, whose dictionaries 'pith train-dict' makes; {} has "
                            "none; leave it out",
                            o.paper));
  const auto model = load_model(o.engine);
  const auto keeper = keep_weights(model, o.engine);
  ReproduceOptions options;
  options.model = model;
  options.text = encode_prompt(*model, read_text(o.text), o.bos);
  const size_t wanted = o.quick ? paper.quick_tokens : paper.tokens;
  if (options.text.size() < wanted)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the text has {} tokens, reproducing {} needs {}; give a longer text{}",
                            options.text.size(), o.paper, wanted, o.quick ? "" : " or --quick"));
  options.text.resize(wanted);
  options.session = session_options(o.engine);
  options.runs_at_once = worker_threads(o.engine);
  options.seeds = static_cast<size_t>(o.seeds), options.quick = o.quick;
  options.only = o.tables;
  options.dictionary = o.dictionary;
  const std::string page =
      o.folder.empty()
          ? ""
          : (std::filesystem::path(o.folder) / ("reproduce_" + o.paper + ".md")).string();
  if (!page.empty()) check_output(page, {o.text.file});
  const std::string setting = setting_line(o, *model, wanted);
  if (!o.engine.json) write_out(fmt::format("{}: {}\n", o.paper, setting));

  StageBars bars(o.engine.json);
  std::vector<ReproducedTable> tables;
  options.progress = [&](const std::string& stage, size_t done, size_t total) {
    return bars.update(stage, done, total);
  };
  options.finished = [&](const ReproducedTable& table) {
    bars.finish();
    if (o.engine.json) {
      Json line{{"paper", o.paper}, {"setting", setting}, {"quick", o.quick}, {"seeds", o.seeds}};
      line.update(table_record(table));
      write_out(line.dump() + "\n");
    } else {
      write_out("\n" + table_text(table));
    }
    tables.push_back(table);
  };
  try {
    paper.run(options);
    if (o.paper == "express" && wants_table(options, "times"))
      options.finished(express_times(o.engine, options));
  } catch (const ReproduceCancelled&) {
    return kExitInterrupted;
  } catch (const SelectCancelled&) {
    return kExitInterrupted;
  }
  if (!page.empty()) write_file(page, markdown_page(o, setting, tables));
  return 0;
}

}  // namespace

void add_reproduce(CLI::App& root, Action& action) {
  auto o = std::make_shared<ReproduceCommand>();
  CLI::App* app =
      root.add_subcommand("reproduce", "A paper's tables and figures on a model and a text");
  std::string papers;
  for (const Reproduction& r : reproductions())
    papers += fmt::format("{}{} ({})", papers.empty() ? "" : "; ", r.name, r.summary);
  app->add_option("paper", o->paper, "Which paper: " + papers)->type_name("PAPER")->required();
  add_model_option(*app, o->engine);
  add_engine_options(*app, o->engine);
  app->remove_option(app->get_option("--ctx-size"));
  add_device_option(*app, o->engine);
  add_text_options(*app, o->text, "The text");
  add_bos_option(*app, o->bos);
  app->add_option("--kv-seed", o->engine.policy.seed, "First seed of randomised policies")
      ->type_name("N")
      ->capture_default_str()
      ->group("Protocol");
  app->add_option("--seeds", o->seeds, "Seeds that randomised policies run with")
      ->check(CLI::Range(1, 1000))
      ->type_name("N")
      ->capture_default_str()
      ->group("Protocol");
  app->add_option("--tables", o->tables, "Only these tables, by their ids: error,selectors")
      ->delimiter(',')
      ->type_name("ID,...")
      ->group("Protocol");
  app->add_option("--dict", o->dictionary,
                  "csr: a dictionary that 'pith train-dict' made for the model, on another text")
      ->type_name("FILE")
      ->group("Protocol");
  app->add_flag("--quick", o->quick, "Shorter texts and fewer settings: seconds, not minutes")
      ->group("Protocol");
  app->add_option("--write", o->folder, "Write reproduce_PAPER.md into an existing folder")
      ->type_name("FOLDER")
      ->group("Output");
  app->get_option("--json")->description("Print one JSON object per table, one per line");
  app->footer(
      "Examples:\n"
      "  pith reproduce buzz -m models/demo -f book.txt --quick\n"
      "  pith reproduce buzz -m models/demo -f book.txt --write .\n"
      "A paper's numbers were measured on other models and often with other metrics.\n"
      "Below each table stands what the paper says of its own, and whether it holds\n"
      "here. With --device cuda sessions run on the GPU; attention errors and times\n"
      "are the CPU's.\n");
  app->callback([o, &action] { action = [o] { return reproduce(*o); }; });
}

}  // namespace pith::cli
