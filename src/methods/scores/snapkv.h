#pragma once
// SnapKV's score, which PyramidKV shares.

#include "methods/scores/score_selector.h"

namespace pith {

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

  size_t queries_;  ///< last queries that vote
  size_t kernel_;   ///< rows over which votes are averaged
};

/// queries and kernel, then the rule's own, after score_parameters.
std::vector<ParameterInfo> snapkv_parameters(std::vector<ParameterInfo> own = {});

}  // namespace pith
