// exact keeps every row.

#include "methods/methods.h"
#include "plan/simple_rules.h"

namespace pith {

SelectorRow exact_row() {
  SelectorRow row;
  row.info = {"exact", true, "every row", "-", {}, ""};
  row.takes<NoOptions>();
  // Coded rows keep a stretch of exact ones before them, as KIVI and QJL do, and the first rows,
  // which most heads look at whatever they look for: their errors are in every sum.
  row.default_sink = 4;
  row.sink_of_codes = true;
  row.default_window = [](const MethodOptions&, const BudgetSite&, bool coded) {
    return coded ? 128u : 0u;
  };
  row.on_gpu = true;
  row.resolve = [](const SelectorPlace& r) -> ResolvedSelector {
    return {.rule = std::make_shared<KeepAll>(r.site.sliding_window),
            .needs = {.body = Needs::Body::kAll},
            .text = "exact"};
  };
  row.side_bytes = 0;  // positions are contiguous
  return row;
}

}  // namespace pith
