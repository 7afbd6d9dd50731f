#pragma once
// `pith report`: results as one HTML page that needs no network and no script. Every plot has a
// table beside it, so that nothing is told by colour or by sight alone.

#include <string>

#include "tools/eval/results.h"

namespace pith {

/// Throws kInvalidArgument if there is nothing to show.
std::string report_html(const Results& results, const std::string& title);

/// Rows that no other beats in both: less of `cost` and a better `value`. By rising cost.
struct FrontPoint {
  size_t row = 0;
  double cost = 0, value = 0;
};
std::vector<FrontPoint> pareto_front(std::vector<FrontPoint> points, bool more_is_better);

}  // namespace pith
