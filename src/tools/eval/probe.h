#pragma once
// How far a policy's attention is from exact attention on a model's real heads: BalanceKV's
// single-layer protocol. A text runs through the model exactly; in every layer all rows but the
// last `queries` enter a cache under the policy, and the last `queries` queries attend to it and,
// causally, to their own rows, which are kept aside exact. The error of a KV head is
// |policy - exact| / |exact| over those queries and the head's query heads. Beside each policy
// stands a correctly weighted uniform sample of as many rows in every head, with the same sink,
// window, codecs and seed.
//
// Cost: an exact forward pass, and per layer, policy and seed what its selector costs; attention
// over the text only where the selector asks for attention mass.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/forward.h"
#include "pith/ledger.h"
#include "pith/policy.h"

namespace pith {

class Jobs;

struct ProbeOptions {
  std::vector<Policy> policies;
  size_t queries = 256;  ///< the last ones of the text
  size_t seeds = 3;      ///< a policy whose first two seeds agree in a layer is run no further
  uint64_t seed = 0;     ///< the first
  size_t chunk = 512;    ///< rows that enter a cache at a time, as in a prefill
};

/// The first rows of a step, as a prompt that is read in chunks.
struct PromptFill {
  size_t rows = 0, chunk = 512;
};
/// They enter a cache, and the prompt ends.
void fill_prompt(KvCache& cache, const CacheShape& shape, const LayerStep& step,
                 const PromptFill& prompt);

/// One policy in one layer with one seed, when the queries attend.
struct ProbeTrial {
  std::vector<double> errors;   // [G]
  std::vector<double> uniform;  // [G]; empty where nothing is to be compared: all rows are held
  std::vector<size_t> rows;     // [G] held, the queries' own not counted
  Ledger ledger;                ///< of the layer
};

struct ProbePolicy {
  std::string policy, resolved;                 ///< as given, and with budgets as rows
  std::vector<std::vector<ProbeTrial>> layers;  // [L][seeds]
  bool random = false;                          ///< some layer's error depends on the seed
};

struct ProbeReport {
  std::vector<ProbePolicy> policies;
  double null_error = 0;  ///< largest error of exact f32 rows against themselves: must be 0
};

/// Measures one layer after the other.
class Probe {
 public:
  /// Builds every policy once, so that what cannot be is refused before anything is run. Throws
  /// kInvalidArgument and what KvCache throws. Context and ropes must outlive it.
  Probe(const Context& context, const CacheShape& shape, const LayerRopes& ropes,
        ProbeOptions options);

  /// False if `progress` (of all layers) asked to stop. Throws kInvalidArgument if no row comes
  /// before the queries.
  bool measure(const LayerStep& step, const Progress& progress = {});
  const ProbeReport& report() const { return report_; }

 private:
  /// The part of a trial that the seeds after it use again.
  struct Run {
    ProbeTrial trial;
    std::optional<Policy> sample;  ///< the uniform sample beside it, if there is one
  };

  KvCache filled(const Context& context, const LayerStep& step, const Policy& policy,
                 uint64_t seed) const;
  /// The answers to the last queries [queries, H, D]; their rows enter the cache.
  std::vector<float> answers(KvCache& cache, const LayerStep& step) const;
  std::vector<double> errors(KvCache cache, const LayerStep& step) const;
  std::optional<Policy> sample_beside(const Policy& policy, int layer, const KvCache& cache) const;
  Run run(const Context& context, const LayerStep& step, size_t policy, uint64_t seed) const;
  void measure_all(Jobs& jobs, const LayerStep& step);

  Context context_;
  CacheShape shape_;
  LayerRopes ropes_;
  ProbeOptions options_;
  ProbeReport report_;
  std::vector<float> exact_;  // [queries, H, D] of the layer at hand
};

/// Runs the tokens through the model, all at once and exactly, and measures every layer as it
/// comes: no layer's rows are kept. Empty if `progress` asked to stop. Throws what Probe and
/// Forward throw.
std::optional<ProbeReport> probe_model(const Context& context, const Model& model,
                                       std::span<const int32_t> tokens, ProbeOptions options,
                                       const Progress& progress = {});

}  // namespace pith
