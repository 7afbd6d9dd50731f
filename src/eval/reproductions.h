#pragma once
// What runs for each paper: the entries of reproductions().

#include "eval/reproduce.h"

namespace pith {

void reproduce_buzz(const ReproduceOptions& options);

}  // namespace pith
