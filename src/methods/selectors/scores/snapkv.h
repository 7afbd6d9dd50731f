#pragma once
// SnapKV's score, which PyramidKV shares.

#include <algorithm>
#include <memory>
#include <optional>

#include "methods/selectors/scores/score_selector.h"

namespace pith {

struct SnapKvOptions : ScoreOptions {
  std::optional<size_t> queries;
  size_t kernel = 5;
  Fields fields();
};

struct PyramidKvOptions : SnapKvOptions {
  double beta = 20;
  Fields fields();
};

/// The last queries vote, as many as the window has rows by default.
inline MassWish votes_of(const SnapKvOptions& options, uint32_t window) {
  return {MassWish::Of::kVotes, options.queries.value_or(std::max(1u, window))};
}
std::shared_ptr<const KeepBest> pyramid_rule(const PyramidKvOptions& options,
                                             const ScoreBudget& sizes, const SelectorSite& site);

/// Votes averaged over `kernel` rows.
class SnapKv final : public Scorer {
 public:
  SnapKv(const Context& context, const SelectorSite& site, size_t kernel)
      : Scorer(context, site), kernel_(kernel) {}
  std::unique_ptr<Chooser> clone() const override { return std::make_unique<SnapKv>(*this); }

 private:
  void score(std::span<HeadBody> bodies, Scores& scores) const override;

  size_t kernel_;
};

}  // namespace pith
