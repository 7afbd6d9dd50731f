#pragma once
// Thinformer Express ("Express Language Modeling"): a weighted coreset of at most 1.5 s rows for a
// stream of any length, whose weights sum to exactly the number of rows seen. New rows are thinned
// in blocks by stratified sampling and Compress2, whose halvings balance the attention kernel.
//
// Updates cost O(s^2 D log^2 n) in all; a halving of S rows takes 2 S^2 D multiply-adds.

#include "methods/halving_options.h"
#include "methods/heavy.h"
#include "plan/coreset.h"
#include "policy/registry.h"

namespace pith {

struct ExpressOptions {
  Budget target = Budget::rows(1024);
  size_t inflation = 1;
  HalvingOptions halving;
  HeavyOptions heavy{.by_default = true};
  bool paper = false;
  Fields fields();
  void as_in_paper();
  /// With s and heavy as rows. Without a word on heavy rows s is all rows ever held: the coreset is
  /// the power of two that is at most a third of them, so that with the half of itself that waits
  /// it has at most half of them, and the others are heavy. Throws kInvalidArgument.
  ExpressOptions at(const BudgetSite& site) const;
  /// Throws kInvalidArgument.
  void check(const std::string& method) const;
};

struct ExpressRule {
  ExpressShape shape;
  HalvingRule halving;
  float weight_exponent = 1;  ///< a row of weight w counts as w^exponent
};

/// The offline form (Express, App. H): all rows at hand. The halvings of one level run in
/// parallel; the rows and weights are those that the stream would hold.
struct OfflineRows {
  const float* k = nullptr;  // [n, D], after RoPE
  const float* v = nullptr;  // [n, D]
  size_t rows = 0;           // n
  size_t dim = 0;            // D
  int64_t first_position = 0;
};
struct Coreset {
  std::vector<int64_t> positions;  ///< ascending
  std::vector<uint64_t> weights;   ///< sum to n
};
Coreset express_offline(const Context& context, const ExpressRule& rule, const OfflineRows& rows,
                        const Philox& random);

/// Throws kInvalidArgument.
ExpressRule express_rule(const ExpressOptions& options, const BudgetSite& budget, float scale);

}  // namespace pith
