#pragma once
// The report of pith probe: averages over heads, layers and seeds, as tables, CSV and JSON.

#include <string>

#include "report.h"
#include "tools/eval/probe.h"

namespace pith::cli {

/// The run, shown above the tables and beside the numbers.
struct ProbeRun {
  std::string model, text;  ///< names
  size_t tokens = 0, queries = 0, seeds = 0;
  uint64_t first_seed = 0;
  double seconds = 0;
};

/// A table per policy, a line per layer (and head, if asked for); then one table of all policies.
std::string probe_text(const ProbeRun& run, const ProbeReport& report, bool per_head);
/// A line per policy, layer and head, with a header.
std::string probe_csv(const ProbeRun& run, const ProbeReport& report);
Json probe_json(const ProbeRun& run, const ProbeReport& report);

}  // namespace pith::cli
