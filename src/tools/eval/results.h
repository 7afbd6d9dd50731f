#pragma once
// Results of `pith eval`, `pith probe --json` and `pith bench select --csv`, read back and put
// together: what was measured under one setting is one group, what one policy did there one row,
// with its seeds averaged. `pith report` and the presets are made from this.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tools/eval/records.h"
#include "tools/eval/statistics.h"

namespace pith {

/// The results of one policy in one setting.
struct ResultRow {
  std::string policy;
  size_t seeds = 0;  ///< that differ: 1 for what is not randomised
  size_t count = 0;  ///< predictions or samples of one seed
  // Of the cache at the end, everything included.
  double bytes = 0, bits = 0, kept = 0;  ///< kept: rows held / rows seen
  uint64_t tokens = 0;                   ///< in that cache
  double seconds = 0;                    ///< a piece or sample, mean
  // kind "ppl"; nats. Errors are of the group's kind.
  Estimate perplexity, ln_ratio, divergence, same_top;
  double divergence_median = 0, divergence_p99 = 0;
  std::optional<Estimate> above_best;  ///< divergence less that of the group's best, paired
  // kind "task"; shares. Error: deviation over seeds.
  Estimate score;
  Interval score_interval;  ///< Wilson's, of `count` samples: seeds answer the same questions
  std::vector<double> by_turn;
};

/// Rows that may be compared with one another.
struct ResultGroup {
  std::string kind;                    ///< "ppl" or "task"
  std::string name;                    ///< the mode of perplexity, or the task
  uint64_t length = 0;                 ///< tokens
  Record setting;                      ///< every field that all its records share
  std::optional<double> null_control;  ///< KL of exact against exact
  std::vector<ResultRow> rows;         ///< in the order of the files
  std::string errors;                  ///< kind of error of "ppl"; old lines have none
  std::string best;                    ///< of "ppl": the policy of least divergence but exact
  size_t most_count() const;           ///< predictions or samples of the row that has most
};

/// One policy's attention errors on a model's heads.
struct ProbeRow {
  std::string policy;
  bool random = false;
  double bytes = 0, bits = 0, kept = 0;
  Estimate error;              ///< mean over heads; deviation over seeds
  std::vector<double> layers;  // [L]
};

struct ProbeGroup {
  std::string model, text;
  uint64_t tokens = 0, queries = 0, seeds = 0;
  double null_error = 0;
  std::vector<ProbeRow> rows;
};

/// A line of `pith bench select --csv`: seconds a token.
struct SelectorCost {
  std::string policy;
  uint64_t tokens = 0;
  double bytes = 0, bits = 0;
  double update = 0, attend = 0, exact_attend = 0;
};

struct Results {
  std::vector<ResultGroup> groups;
  std::vector<ProbeGroup> probes;
  std::vector<SelectorCost> costs;
};

/// Reads result files of any mix. Throws kNotFound, kIo, and kCorrupt with file and line for what
/// is no result.
Results read_results(const std::vector<std::filesystem::path>& files);

/// The same as JSON lines, a row a line, without single predictions: small enough to keep.
/// read_results reads them back.
std::string results_to_lines(const Results& results);

}  // namespace pith
