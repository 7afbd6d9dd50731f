#pragma once
// The parts of the HTML report: each is a section, or nothing where there is nothing to show.

#include <string>
#include <string_view>
#include <vector>

#include "tools/eval/results.h"

namespace pith {

extern const std::string_view kReportStyle;

/// 0 exact rows and numbers, 1 a selector, 2 a codec, 3 both.
size_t policy_family(std::string_view policy);
/// "KL divergence after a prompt, 8192 tokens".
std::string group_title(const ResultGroup& group);
/// Predictions or samples of the row; "12 of 24" where others have more.
std::string count_text(const ResultGroup& group, const ResultRow& row);

/// An HTML table in a box that scrolls sideways. Cells are HTML; the first of a row is its head.
struct HtmlTable {
  std::string caption;  ///< plain text; the first sentence names the table
  std::vector<std::string> heads;
  std::vector<std::vector<std::string>> rows;
  std::string text() const;
};
/// Closed until somebody asks for it.
std::string folded(const std::string& summary, const std::string& html);
/// The meaning of the markers of the families.
std::string family_legend();

std::string overview_section(const Results& results);
std::string group_section(const ResultGroup& group);
/// Groups with one row: nothing to compare, as with tasks that the exact cache does not solve.
std::string single_section(const Results& results);
std::string memory_section(const Results& results);
std::string probe_section(const ProbeGroup& group);
std::string cost_section(const std::vector<SelectorCost>& costs);

}  // namespace pith
