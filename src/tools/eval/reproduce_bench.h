#pragma once
// Shared by the reproductions: the engine's measurements over many policies, as rows of tables.

#include <string>
#include <utility>
#include <vector>

#include "tools/eval/perplexity.h"
#include "tools/eval/probe.h"
#include "tools/eval/reproduce.h"

namespace pith {

/// A policy with its name in the table.
struct NamedPolicy {
  std::string name, policy;
  bool random = false;  ///< runs with every seed
  Form form = Form::kNone;

  /// A dictionary that was not trained is no form of a paper's: it has no verdict.
  Claim claim(std::string paper, std::string ours, std::optional<bool> holds) const {
    if (form == Form::kUntrained) holds.reset();
    return {std::move(paper), std::move(ours), holds, form, policy};
  }
};

/// Per cent of answers that exact must find: a task that it fails says nothing of a cache.
constexpr double kSolved = 25;

/// Predictions of one policy over all pieces of a text.
struct PolicyQuality {
  std::vector<PredictionSummary> seeds;
  std::vector<std::vector<Prediction>> predictions;  ///< by seed
  std::vector<size_t> pieces;                        ///< predictions of each
  Ledger ledger;                                     ///< of the first seed, after the last piece
  double seconds = 0;                                ///< of the first seed
  /// Over seeds, times `scale`.
  Cell cell(Estimate PredictionSummary::*figure, double scale = 1) const;
  Cell perplexity() const;
  Cell divergence() const;
  Cell same_top() const;  ///< per cent
  Cell ln_ratio() const;  ///< of the perplexity over exact's
  /// Its divergence less that of `other`, on the same tokens.
  Estimate above(const PolicyQuality& other) const;
};

/// Accuracy of one policy on a task.
struct PolicyScore {
  Cell score;                     ///< per cent, over samples, then seeds
  std::vector<double> by_sample;  ///< the first seed's
  Ledger ledger;                  ///< after the first sample's context
  double seconds = 0;             ///< of the first seed, answers only
};

/// A policy's attention error over some layers and all their heads, beside uniform's of as many
/// rows.
struct ProbeSummary {
  Cell error, uniform;  ///< means over heads and layers; deviation over seeds
  double ratio = 0;     ///< geometric mean of error / uniform over heads; 0 if none is compared
  double won = 0;       ///< heads with a smaller error than uniform's, %
  double rows = 0;      ///< of a KV head
  double bits = 0;
};
ProbeSummary summarise(const ProbePolicy& policy, size_t first_layer, size_t last_layer);
ProbeSummary summarise(const ProbePolicy& policy);

struct TaskSetting {
  std::string task;
  size_t tokens = 0;
  std::vector<uint64_t> samples;  ///< their numbers
};

class ReproduceBench {
 public:
  explicit ReproduceBench(const ReproduceOptions& options) : o_(options) {}

  /// The text's first tokens through each policy, against exact's predictions.
  std::vector<PolicyQuality> quality(const std::string& stage, const PerplexityOptions& protocol,
                                     const std::vector<NamedPolicy>& policies) const;
  /// Samples run in parallel on one thread each.
  std::vector<PolicyScore> scores(const std::string& stage, const TaskSetting& setting,
                                  const std::vector<NamedPolicy>& policies) const;
  /// Attention errors in every layer over the text's first `tokens`.
  ProbeReport probe(const std::string& stage, size_t tokens, size_t seeds,
                    const std::vector<NamedPolicy>& policies) const;
  void finish(const ReproducedTable& table) const { o_.finished(table); }

  /// Makes a table unless others alone were asked for.
  template <class F>
  void table(std::string_view id, F&& make) const {
    if (wants_table(o_, id)) make();
  }
  bool quick() const { return o_.quick; }
  const ReproduceOptions& options() const { return o_; }

 private:
  /// A policy's number and a seed.
  struct SeededRun {
    size_t policy;
    uint64_t seed;
    bool first;
  };
  std::vector<SeededRun> seeded(const std::vector<NamedPolicy>& policies) const;

  const ReproduceOptions& o_;
};

/// Mean rows per KV head over the last `last` of `tokens` tokens that come one at a time, measured
/// on rows of zeros: for policies whose sizes do not depend on what the rows are.
double mean_rows(const std::string& policy, size_t tokens, size_t last);

/// Below, above: "9.39 < 9.99 < 11.7" with the digits given.
std::string chain(const std::vector<double>& values, int digits);
bool ascending(const std::vector<double>& values);

}  // namespace pith
