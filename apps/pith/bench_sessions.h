#pragma once
// pith bench --sessions, --memory: tokens per second of many conversations in one pass.

#include "bench.h"

namespace pith::cli {

/// Measures, prints, and returns the exit status.
int bench_sessions(const std::shared_ptr<const Model>& model, const BenchOptions& options,
                   const std::vector<std::string>& policies);

}  // namespace pith::cli
