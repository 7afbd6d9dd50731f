#pragma once
// The plots of the report, each with what stands below it.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tools/eval/plot.h"
#include "tools/eval/results.h"

namespace pith {

struct ReportPlot {
  std::string name;  ///< of its files: "facts-4096-bytes"
  Plot plot;
  std::string caption;             ///< HTML
  std::vector<std::string> front;  ///< HTML, an item a number in the plot
};

/// Quality against bytes, and against time. For groups of two rows and more.
std::vector<ReportPlot> comparison_plots(const ResultGroup& group);

/// Bytes of the cache after so many tokens.
struct BytesByTokens {
  std::map<std::string, std::map<uint64_t, double>> all;  // by policy
  std::vector<std::string> policies;                      // in the order of the files
  std::set<uint64_t> lengths;
  const std::map<uint64_t, double>& at(const std::string& policy) const { return all.at(policy); }
};
BytesByTokens bytes_by_tokens(const Results& results);
ReportPlot memory_plot(const Results& results);

/// Every plot of the page.
std::vector<ReportPlot> report_plots(const Results& results);

}  // namespace pith
