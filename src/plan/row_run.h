#pragma once
// Rows of one head side by side in one run of memory, for devices that leave rows where they lie:
// between sink and window stand body | evicted | heavy. A row that goes to the next zone stays
// where it is, and a bound moves past it; these numbers are all that is needed to know the rows of
// a step. At rest they are the plan's own, but for selections that a device puts off.

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/step.h"

namespace pith {

struct RowRun {
  /// Neighbours of one weight: each stands for weight / of rows.
  struct Weighted {
    uint32_t rows = 0;
    uint64_t weight = 1, of = 1;
    bool operator==(const Weighted&) const = default;
  };

  uint32_t body = 0, evicted = 0, heavy = 0;
  uint32_t selected = 0;           ///< of the body's first rows: those that a kSelect left
  std::vector<Weighted> weighted;  ///< of the body's first rows; all others have weight 1

  uint32_t rows() const { return body + evicted + heavy; }
  /// The first of the body's rows that a kSelect or kHalve moves.
  static uint32_t first_of(const Step& step) { return step.op == Op::kHalve ? step.first : 0; }
  /// How many of these stay.
  static uint32_t kept_of(const Step& step) {
    return step.op == Op::kHalve ? step.rows / 2 + step.behind : step.keep;
  }
  /// The effect of the step on the bounds. Rows that come into the body are its last.
  void apply(const Step& step);
  /// All of it as numbers of an Archive (src/core), at most `most` rows and `weights` runs of
  /// weighted ones.
  template <class Archive>
  void archive(Archive& a, uint32_t most, size_t weights);

 private:
  void weigh_tail(uint32_t first, const Weighted& tail);
};

/// Selections of rows that join a body, where what stays does not depend on when they are selected
/// from: a device may let them wait for others. Until then their rows are the run's last, of weight
/// 1.
class LateSelections {
 public:
  /// Puts off a kSelect, and a kWeigh after it.
  void put_off(RowRun& run, const Step& step);
  /// The selections due once `least` rows are to go, in one: this, and then weigh() is applied.
  std::optional<Step> due(const RowRun& run, uint32_t least) const;
  const Step& weigh() const { return weigh_; }
  /// As RowRun::archive; a selection that waits leaves `keep` rows, as the plan has them.
  template <class Archive>
  void archive(Archive& a, uint32_t keep);

 private:
  Step select_, weigh_;
};

template <class Archive>
void RowRun::archive(Archive& a, uint32_t most, size_t weights) {
  for (uint32_t* rows : {&body, &evicted, &heavy, &selected})
    a.number(*rows, most, "more rows than tokens");
  a.need(selected <= body, "more selected rows than the body has");
  size_t runs = weighted.size();
  a.number(runs, weights, "more weights than the policy gives");
  weighted.resize(runs);
  uint32_t left = body;
  for (Weighted& run : weighted) {
    a.number(run.rows, left, "more weighted rows than the body has");
    a.number(run.weight, UINT64_MAX);
    a.number(run.of, UINT64_MAX);
    a.need(run.weight > 0 && run.of > 0, "rows without a weight");
    left -= run.rows;
  }
}

template <class Archive>
void LateSelections::archive(Archive& a, uint32_t keep) {
  bool selects = select_.op == Op::kSelect, weighs = weigh_.op == Op::kWeigh;
  a.flag(selects);
  a.flag(weighs);
  if (selects) select_ = {.op = Op::kSelect, .keep = keep};
  if (weighs) weigh_.op = Op::kWeigh;
  a.number(weigh_.weight, UINT64_MAX);
  a.number(weigh_.of, UINT64_MAX);
  a.need(weigh_.weight > 0 && weigh_.of > 0, "rows without a weight");
}

}  // namespace pith
