#pragma once
// Figures and text as the HTML report shows them.

#include <string>
#include <string_view>

#include "tools/eval/statistics.h"

namespace pith {

/// &, <, >, " and ' as entities: any text may stand in HTML and in attributes.
std::string escape_html(std::string_view text);
/// Escaped, with places where a narrow column may break it: after ( ) + , and _.
std::string policy_html(std::string_view policy);

/// `digits` significant ones; 0 is "0" and nothing else is: 0.00004 is "4.0e-05".
std::string figure(double x, int digits = 3);
/// Mean and error, both to the place of the error's second digit: "0.055 ±0.013".
std::string figure(const Estimate& e);
/// Shares as per cent, 0 and 100 only where they are exact.
std::string percent(double share);
/// "33.6 MB".
std::string bytes_text(double bytes);
std::string seconds_text(double seconds);

}  // namespace pith
