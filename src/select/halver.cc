#include "select/halver.h"

#include <algorithm>
#include <cmath>

namespace pith {

float Halver::log_weight(uint64_t weight) const {
  return rule_.weight_exponent * static_cast<float>(std::log(static_cast<double>(weight)));
}

// Of the rows at hand only the last pick is stored.
void Halver::pick(RowStore& store, uint32_t head, const NewRows& rows, const Step& step) const {
  const Philox random(seed_, layer_, head);
  uint64_t counted = step.first;
  for (size_t done = 0, n = 0; done < rows.count; done += n) {
    n = std::min<uint64_t>(rows.count - done, step.size - counted);
    size_t pick = n;
    for (size_t i = 0; i < n; ++i) {
      const uint64_t nth = counted + i + 1;
      if (becomes_pick(random, rows.position(done + i), step.tag, nth)) pick = i;
    }
    if (pick < n) {
      if (counted > 0) store.keep_after(store.rows() - 1, {});
      store.append(rows.slice(done + pick, 1));
    }
    counted += n;
    store.set_log_weight(store.rows() - 1, log_weight(counted));
    if (counted == step.size) counted = 0;
  }
}

SegmentHalved Halver::halve(RowStore& store, uint32_t head, const Step& step) const {
  return halve_segment(context_, store, rule_.halving,
                       {step.first, step.rows, step.behind, log_weight(step.weight)},
                       {Philox(seed_, layer_, head), step.tag});
}

}  // namespace pith
