#pragma once
// SnapKV's score, which PyramidKV shares.

#include "methods/scores/score_selector.h"

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

/// Who votes, and how votes are smoothed.
struct SnapKvVotes {
  SnapKvVotes(const SnapKvOptions& options, uint32_t window)
      : queries(options.queries.value_or(std::max(1u, window))), kernel(options.kernel) {}
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
  SnapKv(const SelectorRequest& request, const SnapKvOptions& options);

  MassRequest mass(size_t tokens) const final;
  std::string describe() const override { return snapkv_text("snapkv", options_); }
  std::unique_ptr<Selector> clone() const override { return std::make_unique<SnapKv>(*this); }

 protected:
  template <class O>
  std::string snapkv_text(const std::string& name, O options) const {
    options.queries = votes_.queries;
    return text(name, std::move(options));
  }

 private:
  void score(std::span<HeadBody> bodies, Scores& scores) const final;

  SnapKvOptions options_;
  SnapKvVotes votes_;
};

}  // namespace pith
