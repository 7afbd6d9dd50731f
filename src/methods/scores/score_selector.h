#pragma once
// What every rule of the form "score the rows, keep the best" shares: the budget, when to select,
// and the selection itself. A rule is a subclass that gives each row of the body a score.
//
// Rows enter the body unjudged; when it has grown to budget + interval, and when a prompt ends, the
// `budget` best rows stay. Cost: one scoring and one O(rows) selection every `interval` rows, so
// (budget + interval) / interval row visits for each row that arrives.

#include <vector>

#include "compress/registry.h"

namespace pith {

/// What every rule takes.
struct ScoreOptions {
  Budget budget = Budget::rows(1024);
  size_t interval = 512;
  Fields fields();
};

/// Sizes in body rows of one KV head.
struct ScoreBudget {
  size_t budget = 0, interval = 0;
};

class ScoreSelector : public Selector {
 public:
  ScoreSelector(const Context& context, const SelectorSite& site, const ScoreBudget& sizes)
      : context_(context), site_(site), sizes_(sizes) {}

  void ingest(std::span<HeadBody> bodies, std::span<const NewRows> rows) final;
  void end_prefill(std::span<HeadBody> bodies) final;
  size_t rows_after(size_t n) const final { return std::min(n, budget_at(n) + sizes_.interval); }

 protected:
  using Scores = std::vector<std::vector<double>>;  // [heads][rows]

  /// Scores every row of every body; larger stays. NaN counts as the worst.
  virtual void score(std::span<HeadBody> bodies, Scores& scores) const = 0;
  /// After a selection.
  virtual void selected(std::span<HeadBody> /*bodies*/) {}
  /// Body rows to keep once `n` rows have left the window.
  virtual size_t budget_at(size_t /*n*/) const { return sizes_.budget; }

  /// Calls f(h) for each head, on all threads.
  template <class F>
  void for_heads(std::span<HeadBody> bodies, F&& f) const {
    context_.pool.parallel_for(bodies.size(), [&](size_t h, int) { f(h); });
  }
  /// Tokens that the cache has seen when `n` rows have left the window.
  size_t tokens_at(size_t n) const { return n + site_.sink + site_.window; }
  size_t seen() const { return seen_; }
  /// Rows that may still enter before the next selection.
  size_t until_selection() const;
  const Context& context() const { return context_; }
  const SelectorSite& site() const { return site_; }
  const ScoreBudget& sizes() const { return sizes_; }
  /// A rule's options as the user would write them, budgets as rows.
  template <class O>
  std::string text(const std::string& name, O options) const {
    options.budget = Budget::rows(sizes_.budget);
    options.interval = sizes_.interval;
    return write_options(name, std::move(options));
  }

 private:
  void select(std::span<HeadBody> bodies, size_t budget);

  Context context_;
  SelectorSite site_;
  ScoreBudget sizes_;
  size_t seen_ = 0;  ///< rows that have left the window
  size_t held_ = 0;  ///< rows in each body
};

ScoreBudget score_budget(const ScoreOptions& options, const BudgetSite& site);
/// A registry row with what all the rules share filled in.
SelectorRow score_row(const std::string& name, const std::string& summary,
                      const std::string& source);

/// out[rows] <- the mass of each row of a body.
void copy_mass(std::vector<double>& out, HeadBody& body);

}  // namespace pith
