// pith report: one HTML page from the result files of pith eval, pith probe and pith bench select.

#include <filesystem>
#include <memory>

#include "commands.h"
#include "console.h"
#include "core/output_file.h"
#include "pith_tools/results.h"

namespace pith::cli {
namespace {

struct ReportCommand {
  std::vector<std::filesystem::path> files;
  std::string out, lines;
  ReportOptions drawn;
};

int report(ReportCommand o) {
  for (const std::string& out : {o.out, o.lines})
    if (!out.empty()) check_output(out, o.files);
  const std::string lines = result_lines(o.files);
  if (!o.lines.empty()) write_file(o.lines, lines);
  o.drawn.page = !o.out.empty() || (o.lines.empty() && o.drawn.plots.empty());
  if (!o.drawn.page && o.drawn.plots.empty()) return 0;
  const std::string html = draw_report(lines, o.drawn);
  if (!o.drawn.page) return 0;
  if (o.out.empty())
    write_out(html);
  else
    write_file(o.out, html);
  return 0;
}

}  // namespace

void add_report(CLI::App& root, Action& action) {
  auto o = std::make_shared<ReportCommand>();
  CLI::App* app = root.add_subcommand("report", "Make an HTML page from result files");
  app->add_option("files", o->files,
                  "Files of 'pith eval --out', 'pith probe --json', 'pith bench select --csv'")
      ->required()
      ->type_name("FILE");
  app->add_option("-o,--out", o->out, "The page; default: standard output")
      ->type_name("FILE")
      ->group("Output");
  app->add_option("--lines", o->lines,
                  "Also the page's figures as JSON lines, one per policy and setting; report "
                  "reads them too")
      ->type_name("FILE")
      ->group("Output");
  app->add_option("--plots", o->drawn.plots, "Also each plot as SVG, PDF and CSV in this folder")
      ->type_name("FOLDER")
      ->group("Output");
  app->add_option("--title", o->drawn.title, "Of the page")->type_name("TEXT")->group("Output");
  app->footer(
      "The page is one file without scripts; it loads nothing. The Python package draws\n"
      "it ('pip install .[plot]' in a checkout); --lines does without.\n\n"
      "Examples:\n"
      "  pith eval ppl -m models/demo -f book.txt --kv-policy 'keydiff(budget=25%)' \\\n"
      "    -o ppl.jsonl\n"
      "  pith report ppl.jsonl --out report.html\n");
  app->callback([o, &action] { action = [o] { return report(*o); }; });
}

}  // namespace pith::cli
