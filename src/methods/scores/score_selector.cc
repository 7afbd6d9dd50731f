#include "methods/scores/score_selector.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace pith {
namespace {

/// Row numbers of the `budget` largest scores, ascending. Equal scores: the newer row stays, as
/// it has had less time to earn one.
std::vector<uint32_t> best(std::span<const double> scores, size_t budget) {
  std::vector<uint32_t> rows(scores.size());
  std::iota(rows.begin(), rows.end(), 0u);
  if (budget >= rows.size()) return rows;
  const auto cut = rows.begin() + static_cast<ptrdiff_t>(budget);
  std::nth_element(rows.begin(), cut, rows.end(), [&](uint32_t a, uint32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a > b;
  });
  rows.erase(cut, rows.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace

void Scorer::prepare(const Step& step, std::span<HeadBody> bodies) {
  scores_.assign(bodies.size(), std::vector<double>(step.held));
  score(bodies, scores_);
}

Chosen Scorer::choose(const Step& step, size_t h, HeadBody& body, const NewRows& /*fresh*/) {
  constexpr double kWorst = -std::numeric_limits<double>::infinity();
  std::vector<double> scores = std::move(scores_[h]);
  for (size_t r = 0; r < scores.size(); ++r) {
    // Rows that the layer's sliding window hides for good go first.
    const bool hidden = step.hidden > 0 && body.store().position(r) < step.hidden;
    if (hidden || std::isnan(scores[r])) scores[r] = kWorst;
  }
  Chosen chosen;
  chosen.held = best(scores, step.keep);
  return chosen;
}

BestSizes best_sizes(const ScoreBudget& sizes, const SelectorSite& site) {
  return {sizes.budget, sizes.interval, size_t{site.sink} + site.window, site.sliding_window};
}

Fields ScoreOptions::fields() {
  return {rows("budget", budget, "body rows that stay"),
          whole("interval", interval, {.least = 1},
                "rows by which the body may outgrow the budget before the next selection")};
}

ScoreBudget score_budget(const ScoreOptions& options, const BudgetSite& site) {
  return {site.rows(options.budget, "budget"), options.interval};
}

SelectorRow score_row(const std::string& name, const std::string& summary,
                      const std::string& source) {
  SelectorRow row;
  row.info.name = name;
  row.info.is_selector = true;
  row.info.summary = summary;
  row.info.source = source;
  row.info.size_parameter = "budget";
  row.default_sink = 4;
  row.default_window = [](const MethodOptions&, const BudgetSite&, bool) { return 64u; };
  return row;
}

void copy_mass(std::vector<double>& out, HeadBody& body) {
  const std::span<const float> mass = body.store().mass();
  std::copy(mass.begin(), mass.end(), out.begin());
}

}  // namespace pith
