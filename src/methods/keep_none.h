#pragma once
// Selectors that keep no row of the body: the sink and the window are all.

#include <fmt/format.h>

#include <memory>
#include <string>

#include "pith/error.h"
#include "plan/simple_rules.h"
#include "policy/registry.h"

namespace pith {

/// Rows of the window that O::window asks for. Throws kInvalidArgument.
template <class O>
uint32_t window_rows(const MethodOptions& options, const BudgetSite& site, bool /*coded*/) {
  const size_t rows = site.rows(options.as<O>().window, "window");
  if (rows >= kMostRows)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("a window of {} rows is too large", rows));
  return static_cast<uint32_t>(rows);
}

/// The site knows the rows of the sink and the window.
template <class O>
ResolvedSelector resolve_keep_none(const SelectorPlace& r, const std::string& name) {
  O options = r.options.as<O>();
  options.window = Budget::rows(r.site.window);
  return {.rule = std::make_shared<DropAll>(),
          .needs = {.body = Needs::Body::kNone},
          .text = write_options(name, options)};
}

}  // namespace pith
