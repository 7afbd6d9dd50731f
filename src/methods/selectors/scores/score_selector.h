#pragma once
// Shared by all selectors of the form "score the rows, keep the best": its sizes, the rule
// for when and how many (KeepBest), and the choice of the best. A selector is a subclass that
// gives each row of the body a score.
//
// Rows enter the body as they come; when it is full, and when a prompt ends, the best stay. Cost:
// one scoring and one O(rows) selection every `interval` rows (an eighth of the budget if unset),
// so budget / interval row visits for each row that arrives.

#include <vector>

#include "plan/best_rule.h"
#include "policy/registry.h"

namespace pith {

/// Options of every one.
struct ScoreOptions {
  Budget budget = Budget::rows(1024);
  /// On top of a budget in rows, within one in bytes; unset: within both (turn_of).
  std::optional<size_t> interval;
  Fields fields();
};

/// Sizes in body rows of one KV head, as BestSizes has them.
struct ScoreBudget {
  size_t budget = 0, interval = 0;
};

ScoreBudget score_budget(const ScoreOptions& options, const BudgetSite& site);

class Scorer : public Chooser {
 public:
  Scorer(const Context& context, const SelectorSite& site) : context_(context), site_(site) {}

  void prepare(const Step& step, std::span<HeadBody> bodies) final;
  Chosen choose(const Step& step, size_t h, HeadBody& body, const NewRows& fresh) final;
  std::vector<std::vector<double>> scores(std::span<HeadBody> bodies) const final;

 protected:
  using Scores = std::vector<std::vector<double>>;  // [heads][rows]

  /// Scores every row of every body; larger stays. NaN counts as the worst.
  virtual void score(std::span<HeadBody> bodies, Scores& scores) const = 0;

  /// Calls f(h) for each head, on all threads.
  template <class F>
  void for_heads(std::span<HeadBody> bodies, F&& f) const {
    context_.pool.parallel_for(bodies.size(), [&](size_t h, int) { f(h); });
  }
  const Context& context() const { return context_; }
  const SelectorSite& site() const { return site_; }

 private:
  Context context_;
  SelectorSite site_;
  // Of the selection at hand, and how many rows of each head stay.
  Scores scores_;
  std::vector<size_t> stay_;  // [heads]
};

/// The sizes of a rule in a place.
BestSizes best_sizes(const ScoreBudget& sizes, const SelectorSite& site);

/// A selector that scores rows and keeps the best: its name, and its options with budgets as rows.
/// Who scores is a T, made of `how` behind the context and the site.
template <class T, class O, class... How>
ResolvedSelector best_by(const SelectorPlace& place, const std::string& name, O options,
                         const MassWish& wish, const How&... how) {
  const ScoreBudget sizes = score_budget(options, place.budget);
  options.budget = Budget::rows(sizes.budget);
  if (options.interval) options.interval = sizes.interval;
  return {.rule = std::make_shared<KeepBest>(best_sizes(sizes, place.site), wish),
          .needs = {.mass = wish.of != MassWish::Of::kNobody},
          .text = write_options(name, std::move(options)),
          .chooser = [site = place.site, how...](const Context& context) {
            return std::make_unique<T>(context, site, how...);
          }};
}

/// A registry row with what all the rules share filled in.
SelectorRow score_row(const std::string& name, const std::string& summary,
                      const std::string& source);

/// out[rows] <- the mass of each row of a body.
void copy_mass(std::vector<double>& out, HeadBody& body);

}  // namespace pith
