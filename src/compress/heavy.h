#pragma once
// Heavy rows apart: the rows with the most recent attention mass stay as they are, with weight 1,
// and only the others go to a sampling selector (docs/decisions/0013-heavy-rows.md). What a sample
// does worst is to drop or double a row that carries much of the attention.
//
// Rows enter the heavy store unjudged; when it has grown to budget + interval, the `interval`
// lightest go to the inner selector, oldest first. Mass is that of the last `queries` queries:
// older mass says nothing about the next query (0012). Cost per row: one selection over the heavy
// rows every `interval` rows, and one number added by attend per watched query and row.

#include <optional>

#include "compress/registry.h"
#include "plan/heavy_rule.h"

namespace pith {

/// None unless the parameters ask for heavy rows.
std::optional<HeavySizes> heavy_sizes(const Parameters& parameters, const BudgetSite& site);

/// The parameters that a selector with heavy rows has beside its own.
std::vector<ParameterInfo> heavy_parameters(std::vector<ParameterInfo> own);
bool has_heavy(const Parameters& parameters);
/// `inner` behind a heavy store, or `inner` itself if the request asks for none. `inner` must keep
/// to store 0 of its bodies and not care for attention mass or prompt ends.
std::unique_ptr<Selector> with_heavy(const SelectorRequest& request,
                                     std::unique_ptr<Selector> inner);
/// Bytes beside each row: the mass.
double heavy_side_bytes(const Parameters& parameters);

}  // namespace pith
