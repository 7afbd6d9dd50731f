#include "cache/selector_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pith/error.h"

namespace pith {

PlacedSelector place_selector(const PlaceRequest& r) {
  const SelectorRow& row = selector_row(r.rule.selector.name);
  const MethodOptions options = row.read(r.rule.selector);
  if (row.owns_window && r.rule.window)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' has its own window; write {}(window={})", row.info.name,
                            row.info.name, *r.rule.window));
  const auto& sliding = r.shape.sliding_window;
  const int64_t seen = sliding.empty() ? 0 : sliding[static_cast<size_t>(r.layer)];

  PlacedSelector placed;
  placed.side_bytes = row.side_bytes + (row.more_side_bytes ? row.more_side_bytes(options) : 0);
  BudgetSite& budget = placed.budget;
  budget.context = r.shape.context;
  budget.caches = static_cast<size_t>(r.shape.layers * r.shape.kv_heads);
  uint32_t sink = r.rule.sink.value_or(row.default_sink);
  // Rows wait for the others of their block behind the window.
  const size_t waiting = std::lcm(r.keys.block_rows(), r.values.block_rows()) - 1;
  // For a window that is the selector's own budget:
  budget.bytes = [&](size_t rows) {
    return static_cast<double>(sink + rows + waiting) * r.exact_row_bytes;
  };
  uint32_t window = r.rule.window.value_or(row.default_window(options, budget, r.coded));
  if (seen > 0) {
    // The layer looks back `seen` rows at most: a sink would never be seen, nor a longer window.
    sink = 0;
    window = static_cast<uint32_t>(std::min<int64_t>(window, seen));
  }

  SelectorSite& site = placed.site;
  site.seed = r.seed;
  site.layer = static_cast<uint32_t>(r.layer);
  site.layers = static_cast<size_t>(r.shape.layers);
  site.heads = r.heads;
  site.group = static_cast<size_t>(r.shape.query_heads / r.shape.kv_heads);
  site.head_dim = static_cast<size_t>(r.shape.head_dim);
  site.scale = 1.0f / std::sqrt(static_cast<float>(r.shape.head_dim));
  site.sink = sink;
  site.window = window;
  site.sliding_window = seen;

  // Any exact row may carry mass.
  const double exact =
      static_cast<double>(size_t{sink} + window + waiting) * (r.exact_row_bytes + sizeof(float));
  const double fixed = exact + (row.state_bytes ? row.state_bytes(options, site) : 0);
  budget.bytes = [fixed, side = placed.side_bytes, dim = site.head_dim, keys = &r.keys,
                  values = &r.values](size_t rows) {
    return fixed + static_cast<double>(rows) * side +
           std::ceil(keys->most_bytes(rows, dim, true) + values->most_bytes(rows, dim, true));
  };
  return placed;
}

}  // namespace pith
