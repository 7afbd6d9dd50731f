#pragma once
// What a rule's selector is told about its place, on either device: budgets as rows, sink, window.

#include "cache/kv_cache.h"
#include "compress/registry.h"

namespace pith {

struct PlaceRequest {
  const PolicyRule& rule;
  const CacheShape& shape;
  int layer = 0;
  size_t heads = 0;  ///< KV heads that share the selector
  uint64_t seed = 0;
  double exact_row_bytes = 0;  ///< of one KV head
  const Codec& keys;           ///< of the body
  const Codec& values;
  bool coded = false;  ///< the body is not plain dense
};

struct PlacedSelector {
  BudgetSite budget;
  SelectorSite site;
  double side_bytes = 0;  ///< beside each body row
};

/// Throws kInvalidArgument for a window that contradicts the selector's own.
PlacedSelector place_selector(const PlaceRequest& request);

}  // namespace pith
