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

size_t ScoreSelector::until_selection() const {
  const size_t limit = budget_at(seen_) + sizes_.interval;
  return limit > held_ ? limit - held_ : 0;
}

void ScoreSelector::ingest(std::span<HeadBody> bodies, std::span<const NewRows> rows) {
  const size_t count = bodies.empty() ? 0 : rows[0].count;
  for (size_t done = 0; done < count;) {
    // Budgets may move with the stream, so that the next selection is found row by row: where it
    // falls must not depend on how the stream is cut.
    size_t run = 0;
    bool full = false;
    while (done + run < count && !full) {
      ++run;
      full = held_ + run >= budget_at(seen_ + run) + sizes_.interval;
    }
    for (size_t h = 0; h < bodies.size(); ++h) bodies[h].store().append(rows[h].slice(done, run));
    done += run;
    seen_ += run;
    held_ += run;
    if (full) select(bodies, budget_at(seen_));
  }
}

void ScoreSelector::end_prefill(std::span<HeadBody> bodies) { select(bodies, budget_at(seen_)); }

void ScoreSelector::select(std::span<HeadBody> bodies, size_t budget) {
  if (held_ <= budget) return;
  constexpr double kWorst = -std::numeric_limits<double>::infinity();
  Scores scores(bodies.size(), std::vector<double>(held_));
  score(bodies, scores);
  const auto newest = static_cast<int64_t>(tokens_at(seen_)) - 1;
  for_heads(bodies, [&](size_t h) {
    RowStore& store = bodies[h].store();
    for (size_t r = 0; r < held_; ++r) {
      // Rows that the layer's sliding window hides for good go first.
      const bool hidden =
          site_.sliding_window > 0 && store.position(r) <= newest - site_.sliding_window;
      if (hidden || std::isnan(scores[h][r])) scores[h][r] = kWorst;
    }
    store.keep(best(scores[h], budget));
  });
  held_ = budget;
  selected(bodies);
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
