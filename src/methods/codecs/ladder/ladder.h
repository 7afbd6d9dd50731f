#pragma once
// Rows that change their codec with age: the newest of a head's body in one codec, older ones in
// another. Every kStep rows the oldest of the newer ones are decoded and coded once more, which is
// the only recoding in Pith: a row is moved once in its life.

#include "policy/registry.h"

namespace pith {

struct LadderOptions {
  PolicyPart young{"int8", {}};
  PolicyPart old{"turboquant", {{"bits", "3"}, {"center", "128"}}};
  size_t rows = 512;

  Fields fields();
  /// Throws kInvalidArgument.
  void check(const std::string& method) const;
};

}  // namespace pith
