// pith quantize: writes a model as a GGUF file with its matrices in blocks of codes.

#include "tools/quantize/quantize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "args.h"
#include "commands.h"
#include "console.h"
#include "core/output_file.h"
#include "interrupt.h"
#include "pith/error.h"
#include "pith_tools/catalogue.h"
#include "report.h"

namespace pith::cli {
namespace {

struct Options {
  std::string model, out, type = "q4_k";
  int threads = 0;
  bool quiet = false, json = false;
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

WeightType type_named(const std::string& name) {
  std::vector<std::string> names;
  for (const WeightType type : quantize_types()) {
    names.push_back(lower(to_string(type)));
    if (lower(name) == names.back()) return type;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--type {}: files of this type are not written; there are {}", name,
                          fmt::join(names, ", ")));
}

/// Tensors of one type.
struct Group {
  size_t tensors = 0, bytes = 0, numbers = 0;
  double squares = 0;  ///< of errors, weighted by numbers
};

size_t numbers_of(const QuantizedTensor& t) {
  size_t n = 1;
  for (const size_t d : t.shape) n *= d;
  return n;
}

void print_report(const Options& o, const QuantizeReport& report, WeightType asked) {
  std::map<std::string, Group> groups;
  std::map<size_t, size_t> fallen;  // by the length of their rows
  const char* instead = "";
  bool coded = false;
  for (const QuantizedTensor& t : report.tensors) {
    Group& g = groups[to_string(t.to)];
    const size_t n = numbers_of(t);
    ++g.tensors, g.bytes += t.bytes, g.numbers += n;
    g.squares += t.error * t.error * static_cast<double>(n);
    if (t.fell_back) ++fallen[t.shape.back()], instead = to_string(t.to);
    coded = coded || (!dense_type(t.from) && t.from != t.to);
  }
  write_out(fmt::format("{}: {} tensors, {}\n", o.out, report.tensors.size(),
                        human_bytes(static_cast<double>(report.bytes))));
  for (const auto& [name, g] : groups) {
    write_out(fmt::format("  {:<5} {:>4} tensors {:>9}, error {:.4f}\n", name, g.tensors,
                          human_bytes(static_cast<double>(g.bytes)),
                          std::sqrt(g.squares / static_cast<double>(g.numbers))));
  }
  for (const auto& [length, tensors] : fallen) {
    write_out(fmt::format("  {} tensors have rows of {}, no whole blocks of {}: they are {}\n",
                          tensors, length, to_string(asked), instead));
  }
  if (coded && !o.quiet)
    fmt::print(stderr, "pith: warning: the source is quantized already, so errors add up\n");
}

Json to_json(const Options& o, const QuantizeReport& report) {
  Json tensors = Json::array();
  for (const QuantizedTensor& t : report.tensors) {
    tensors.push_back({{"name", t.name},
                       {"shape", t.shape},
                       {"from", to_string(t.from)},
                       {"to", to_string(t.to)},
                       {"fell_back", t.fell_back},
                       {"bytes", t.bytes},
                       {"error", t.error}});
  }
  return {{"out", o.out}, {"bytes", report.bytes}, {"tensors", tensors}};
}

int run(const Options& o) {
  QuantizeRequest request{.model = resolve_model(o.model),
                          .output = o.out,
                          .type = type_named(o.type),
                          .chat_template = {},
                          .threads = o.threads};
  check_output(o.out, {request.model});
  if (std::filesystem::is_directory(request.model))
    request.chat_template = chat_template_of(request.model);
  ProgressBar bar("writing", "numbers", o.json || o.quiet);
  const QuantizeReport report = quantize(request, [&](size_t done, size_t total) {
    return bar.update(done, total) && !interrupted();
  });
  bar.finish();
  if (o.json)
    print_json(to_json(o, report));
  else
    print_report(o, report, request.type);
  return 0;
}

}  // namespace

void add_quantize(CLI::App& root, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* app = root.add_subcommand("quantize", "Write a model as a GGUF file of fewer bits");
  app->add_option("-m,--model", o->model, "A model's folder, a GGUF file, or a name of 'pith pull'")
      ->required()
      ->type_name("MODEL");
  app->add_option("-o,--out", o->out, "The GGUF file to write")->required()->type_name("FILE");
  app->add_option("--type", o->type, "q8_0, q4_0 or q4_k; or f32, f16, bf16")
      ->type_name("TYPE")
      ->capture_default_str();
  app->add_option("-t,--threads", o->threads, "0 = one per core")
      ->check(CLI::Range(0, 1024))
      ->type_name("N")
      ->capture_default_str();
  app->add_flag("-q,--quiet", o->quiet, "No progress and no warnings");
  app->add_flag("--json", o->json, "One object with every tensor");
  app->footer(
      "Norms and biases stay f32. In files of 4 bits the embedding and the output\n"
      "matrix are Q8_0. Rows that are no multiple of 256 cannot be Q4_K: they are Q5_0,\n"
      "which is said.\n\n"
      "Examples:\n"
      "  pith quantize -m FOLDER -o model.q4_k.gguf\n"
      "  pith quantize -m smollm2 --type q8_0 -o smollm2.q8_0.gguf\n");
  app->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace pith::cli
