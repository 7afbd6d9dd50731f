// pith report: one HTML page from the result files of pith eval, pith probe and pith bench select.

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <filesystem>
#include <memory>

#include "commands.h"
#include "console.h"
#include "core/output_file.h"
#include "pith/error.h"
#include "tools/eval/plot.h"
#include "tools/eval/report.h"
#include "tools/eval/report_plots.h"

extern char** environ;

namespace pith::cli {
namespace {

struct ReportOptions {
  std::vector<std::filesystem::path> files;
  std::string out, lines, plots, title = "Pith: what compression of the KV cache costs and keeps";
};

// Of librsvg: what it makes of an SVG keeps lines and letters as such. False if it is not here.
bool run_converter(const std::string& svg, const std::string& pdf) {
  std::vector<std::string> words{"rsvg-convert", "--format=pdf", "--output", pdf, svg};
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  pid_t pid = 0;
  if (::posix_spawnp(&pid, raw[0], nullptr, nullptr, raw.data(), environ) != 0) return false;
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) return false;
  throw Error(ErrorCode::kIo, fmt::format("rsvg-convert could not make {}", pdf));
}

void save_plots(const Results& results, const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw Error(ErrorCode::kIo,
                fmt::format("cannot make the folder {}: {}", folder.string(), error.message()));
  const std::vector<ReportPlot> plots = report_plots(results);
  if (plots.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "the files hold nothing to plot: plots compare two policies or more");
  bool pdf = true;
  for (const ReportPlot& p : plots) {
    const std::string base = (folder / p.name).string();
    write_file(base + ".svg", plot_file(p.plot));
    write_file(base + ".csv", plot_csv(p.plot));
    pdf = pdf && run_converter(base + ".svg", base + ".pdf");
  }
  if (!pdf)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} has the plots as SVG and CSV; for PDF too, install rsvg-convert "
                            "(Debian's librsvg2-bin) and run this again",
                            folder.string()));
}

int report(const ReportOptions& o) {
  for (const std::string& out : {o.out, o.lines})
    if (!out.empty()) check_output(out, o.files);
  const Results results = read_results(o.files);
  if (!o.lines.empty()) write_file(o.lines, results_to_lines(results));
  if (!o.plots.empty()) save_plots(results, o.plots);
  if (o.out.empty() && !(o.lines.empty() && o.plots.empty())) return 0;
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
  app->add_option("--plots", o->plots,
                  "Also each plot as SVG, PDF (with rsvg-convert) and CSV in this folder")
      ->type_name("FOLDER")
      ->group("Output");
  app->add_option("--title", o->title, "Of the page")
      ->type_name("TEXT")
      ->capture_default_str()
      ->group("Output");
  app->footer(
      "The page is one file without scripts; it loads nothing.\n\n"
      "Examples:\n"
      "  pith eval ppl -m models/demo -f book.txt --kv-policy 'keydiff(budget=25%)' \\\n"
      "    -o ppl.jsonl\n"
      "  pith report ppl.jsonl --out report.html\n");
  app->callback([o, &action] { action = [o] { return report(*o); }; });
}

}  // namespace pith::cli
