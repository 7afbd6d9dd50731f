#pragma once
// The runs for each paper: the entries of reproductions().

#include "tools/eval/reproduce.h"

namespace pith {

void reproduce_express(const ReproduceOptions& options);
void reproduce_balancekv(const ReproduceOptions& options);
void reproduce_buzz(const ReproduceOptions& options);
void reproduce_qjl(const ReproduceOptions& options);
void reproduce_csr(const ReproduceOptions& options);

}  // namespace pith
