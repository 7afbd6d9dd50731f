#include "tools/eval/reproduce.h"

#include <fmt/format.h>

#include "pith/error.h"
#include "tools/eval/reproductions.h"

namespace pith {

std::span<const Reproduction> reproductions() {
  static constexpr Reproduction kAll[] = {
      {"express", "error against s, selectors at equal rows, long decoding, time against length",
       16000, 640, reproduce_express},
      {"balancekv", "single-layer error over the rate, tasks at a quarter of the rows", 4096, 640,
       reproduce_balancekv},
      {"buzz", "perplexity at tiny caches, T/w, budgets and ablations, ten documents", 2560, 256,
       reproduce_buzz},
      {"qjl", "distortion over bits, outlying channels, codecs at 3 bits", 4096, 512,
       reproduce_qjl},
      {"csr", "coding errors by pairs, parts and atoms, memory against length, quality", 4096, 384,
       reproduce_csr},
  };
  return kAll;
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

}  // namespace pith
