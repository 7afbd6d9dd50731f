#include "tools/eval/reproduce.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "pith/error.h"
#include "tools/eval/reproductions.h"

namespace pith {

std::span<const Reproduction> reproductions() {
  static const Reproduction kAll[] = {
      {"express",
       "error against s, selectors at equal rows, long decoding, time against length",
       {"error", "selectors", "decoding", "tasks", "times"},
       16000,
       640,
       reproduce_express},
      {"balancekv",
       "single-layer error over the rate, tasks at a quarter of the rows",
       {"error", "tasks"},
       4096,
       640,
       reproduce_balancekv},
      {"buzz",
       "perplexity at tiny caches, T/w, budgets and ablations, ten documents",
       {"perplexity", "threshold", "budgets", "documents", "facts"},
       2560,
       256,
       reproduce_buzz},
      {"qjl",
       "distortion over bits, outlying channels, codecs at 3 bits",
       {"distortion", "outliers", "scores"},
       4096,
       512,
       reproduce_qjl},
      {"csr",
       "coding errors by pairs, parts and atoms, memory against length, quality",
       {"parts", "size", "memory", "quality"},
       4096,
       384,
       reproduce_csr},
  };
  return kAll;
}

std::string_view form_name(Form form) {
  switch (form) {
    case Form::kNone: return "";
    case Form::kPaper: return "the paper's";
    case Form::kGuarantee: return "ours, guaranteed";
    case Form::kNoGuarantee: return "ours, no guarantee";
    case Form::kHeavy: return "ours, heavy rows";
    case Form::kUntrained: return "untrained dictionary";
  }
  return "";
}

const Reproduction& find_reproduction(std::string_view name) {
  std::string known;
  for (const Reproduction& r : reproductions()) {
    if (r.name == name) return r;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", r.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is no paper that can be reproduced; known: {}", name, known));
}

bool wants_table(const ReproduceOptions& options, std::string_view table) {
  return options.only.empty() || std::ranges::find(options.only, table) != options.only.end();
}

void check_tables(const Reproduction& paper, std::span<const std::string> only) {
  for (const std::string& id : only)
    if (std::ranges::find(paper.tables, id) == paper.tables.end())
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is no table of {}; its tables: {}", id, paper.name,
                              fmt::join(paper.tables, ", ")));
}

}  // namespace pith
