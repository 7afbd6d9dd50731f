#include "plan/row_run.h"

#include <algorithm>

namespace pith {

void RowRun::apply(const Step& step) {
  const auto come = [&](Zone from, uint32_t rows) {
    body += rows;
    if (from == Zone::kEvicted) evicted -= rows;
  };
  switch (step.op) {
    case Op::kMove:
      if (step.to == Zone::kBody) come(step.from, step.rows);
      if (step.to == Zone::kHeavy) heavy += step.rows;
      return;
    case Op::kSelect:
      come(step.from, step.rows);
      body = selected = step.keep;
      return weigh_tail(0, {});
    case Op::kHalve:
      body = step.first + step.rows / 2 + step.behind;
      return weigh_tail(step.first, {step.rows / 2, step.weight, 1});
    case Op::kSplit:
      heavy = step.keep;
      evicted += step.rows;
      return;
    case Op::kWeigh: return weigh_tail(0, {body, step.weight, step.of});
    default: return;
  }
}

void RowRun::weigh_tail(uint32_t first, const Weighted& tail) {
  uint32_t before = 0;
  for (Weighted& run : weighted) {
    run.rows = std::min(run.rows, first - before);
    before += run.rows;
  }
  std::erase_if(weighted, [](const Weighted& run) { return run.rows == 0; });
  if (tail.rows == 0 || tail.weight == tail.of) return;
  if (!weighted.empty() && weighted.back().weight == tail.weight && weighted.back().of == tail.of)
    weighted.back().rows += tail.rows;
  else
    weighted.push_back(tail);
}

void LateSelections::put_off(RowRun& run, const Step& step) {
  if (step.op == Op::kWeigh) {
    weigh_ = step;
    return;
  }
  run.apply({.op = Op::kMove, .from = step.from, .rows = step.rows});
  select_ = {.op = Op::kSelect, .keep = step.keep};
}

std::optional<Step> LateSelections::due(const RowRun& run, uint32_t least) const {
  if (select_.op != Op::kSelect || run.body < select_.keep + least) return std::nullopt;
  Step step = select_;
  step.held = run.body;
  return step;
}

}  // namespace pith
