#pragma once
// SnapKV's score, which PyramidKV shares.

#include "methods/scores/score_selector.h"

namespace pith {

/// Who votes, and how votes are smoothed.
struct SnapKvVotes {
  SnapKvVotes(const Parameters& parameters, uint32_t window);
  /// What is asked of a step `until` rows before the next selection.
  MassRequest mass(size_t tokens, size_t interval, size_t until) const;

  size_t queries;  ///< last queries that vote
  size_t kernel;   ///< rows over which votes are averaged
};

/// PyramidKV's budget of a layer.
struct PyramidBudget {
  ScoreBudget sizes;
  SelectorSite site;
  double beta;
  /// Once the cache has seen `tokens` tokens.
  size_t at(size_t tokens) const;
};

class SnapKv : public ScoreSelector {
 public:
  explicit SnapKv(const SelectorRequest& request);

  MassRequest mass(size_t tokens) const final;
  std::string describe() const override;
  std::unique_ptr<Selector> clone() const override { return std::make_unique<SnapKv>(*this); }

 protected:
  /// The parameters as the user would write them.
  std::string settings() const;

 private:
  void score(std::span<HeadBody> bodies, Scores& scores) const final;

  SnapKvVotes votes_;
};

/// queries and kernel, then the rule's own, after score_parameters.
std::vector<ParameterInfo> snapkv_parameters(std::vector<ParameterInfo> own = {});

}  // namespace pith
