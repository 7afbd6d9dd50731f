#include "methods/selectors/scores/score_selector.h"

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

/// How many rows of each head are among the `total` best of all: each head's `least` best first,
/// then the best of the others. Equal scores: the newer row, of equally new ones the first head's.
std::vector<size_t> share(std::span<const std::vector<double>> scores, size_t total, size_t least) {
  struct Row {
    double score;
    uint32_t row, head;
  };
  std::vector<size_t> stay(scores.size());
  std::vector<Row> others;
  for (uint32_t h = 0; h < scores.size(); ++h) {
    const std::vector<uint32_t> safe = best(scores[h], least);
    stay[h] = safe.size();
    for (uint32_t r = 0, next = 0; r < scores[h].size(); ++r)
      if (next < safe.size() && safe[next] == r)
        ++next;
      else
        others.push_back({scores[h][r], r, h});
    total -= stay[h];
  }
  total = std::min(total, others.size());
  std::nth_element(others.begin(), others.begin() + static_cast<ptrdiff_t>(total), others.end(),
                   [](const Row& a, const Row& b) {
                     if (a.score != b.score) return a.score > b.score;
                     return a.row != b.row ? a.row > b.row : a.head < b.head;
                   });
  for (size_t i = 0; i < total; ++i) ++stay[others[i].head];
  return stay;
}

}  // namespace

std::vector<std::vector<double>> Scorer::scores(std::span<HeadBody> bodies) const {
  Scores scores(bodies.size());
  for (size_t h = 0; h < bodies.size(); ++h) scores[h].assign(bodies[h].store().rows(), 0);
  score(bodies, scores);
  return scores;
}

void Scorer::prepare(const Step& step, std::span<HeadBody> bodies) {
  constexpr double kWorst = -std::numeric_limits<double>::infinity();
  scores_ = scores(bodies);
  for_heads(bodies, [&](size_t h) {
    for (size_t r = 0; r < scores_[h].size(); ++r) {
      // Rows that the layer's sliding window hides for good go first.
      const bool hidden = step.hidden > 0 && bodies[h].store().position(r) < step.hidden;
      if (hidden || std::isnan(scores_[h][r])) scores_[h][r] = kWorst;
    }
  });
  stay_.assign(bodies.size(), step.keep);
  if (step.shared) stay_ = share(scores_, step.keep * bodies.size(), step.least);
}

Chosen Scorer::choose(const Step& /*step*/, size_t h, HeadBody& /*body*/,
                      const NewRows& /*fresh*/) {
  Chosen chosen;
  chosen.held = best(scores_[h], stay_[h]);
  scores_[h] = {};
  return chosen;
}

BestSizes best_sizes(const ScoreBudget& sizes, const SelectorSite& site) {
  return {sizes.budget, sizes.interval, size_t{site.sink} + site.window, site.sliding_window};
}

Fields ScoreOptions::fields() {
  return {rows("budget", budget,
               "the most body rows; in bytes, the most that the whole cache ever takes"),
          whole("interval", interval, {.least = 1},
                "rows by which the body may outgrow a budget in rows before the next selection (a "
                "budget in bytes counts them); unset, it never does: an eighth of it makes room "
                "at once")};
}

ScoreBudget score_budget(const ScoreOptions& o, const BudgetSite& site) {
  const size_t rows = site.rows(o.budget, "budget", 2);
  const bool bytes = o.budget.unit == Budget::Unit::kBytes;
  if (!bytes) return {rows, o.interval.value_or(0)};
  const Turnover turnover = within(rows, o.interval);
  // Without an interval the row that is one too many is stored before others make room.
  return o.interval ? ScoreBudget{turnover.stay, turnover.come} : ScoreBudget{rows - 1, 0};
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
