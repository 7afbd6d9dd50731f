// pith report: one HTML page from the result files of pith eval, pith probe and pith bench select.

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "commands.h"
#include "console.h"
#include "eval/report.h"
#include "text_input.h"

namespace pith::cli {
namespace {

struct ReportOptions {
  std::vector<std::filesystem::path> files;
  std::string out, lines, title = "Pith: what compression of the KV cache costs and keeps";
};

int report(const ReportOptions& o) {
  const Results results = read_results(o.files);
  if (!o.lines.empty()) write_file(o.lines, results_to_lines(results));
  if (o.out.empty() && !o.lines.empty()) return 0;
  const std::string html = report_html(results, o.title);
  if (o.out.empty())
    write_out(html);
  else
    write_file(o.out, html);
  return 0;
}

}  // namespace

void add_report(CLI::App& root, Action& action) {
  auto o = std::make_shared<ReportOptions>();
  CLI::App* app = root.add_subcommand("report", "Make an HTML page from result files");
  app->add_option("files", o->files,
                  "Files of 'pith eval --out', 'pith probe --json', 'pith bench select --csv'")
      ->required()
      ->type_name("FILE");
  app->add_option("-o,--out", o->out, "The page; default: standard output")
      ->type_name("FILE")
      ->group("Output");
  app->add_option("--lines", o->lines,
                  "Also the page's figures as JSON lines, a policy and setting a line; report "
                  "reads them too")
      ->type_name("FILE")
      ->group("Output");
  app->add_option("--title", o->title, "Of the page")
      ->type_name("TEXT")
      ->capture_default_str()
      ->group("Output");
  app->footer(
      "The page is one file without scripts; it loads nothing.\n\n"
      "Examples:\n"
      "  pith eval ppl -m models/demo -f book.txt --kv-policy 'keydiff(budget=25%)' -o ppl.jsonl\n"
      "  pith report ppl.jsonl --out report.html\n");
  app->callback([o, &action] { action = [o] { return report(*o); }; });
}

}  // namespace pith::cli
