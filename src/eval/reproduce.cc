#include "eval/reproduce.h"

#include <fmt/format.h>

#include "eval/reproductions.h"
#include "pith/error.h"

namespace pith {

std::span<const Reproduction> reproductions() {
  static constexpr Reproduction kAll[] = {
      {"buzz", "perplexity at tiny caches, T/w, budgets and ablations, ten documents", 5120, 256,
       reproduce_buzz},
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
