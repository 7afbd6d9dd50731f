#include "tools/eval/report_plots.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/eval/report.h"
#include "tools/eval/report_parts.h"
#include "tools/eval/report_text.h"

namespace pith {
namespace {

// Marks are round numbers: as few digits as they have.
std::string tick_figure(double v) { return fmt::format("{:g}", v); }
std::string tick_bytes(double v) {
  const char* unit = " B";
  for (const char* larger : {" kB", " MB", " GB", " TB"})
    if (v >= 999.5) v /= 1000, unit = larger;
  return fmt::format("{:.3g}{}", v, unit);
}
std::string tick_seconds(double v) {
  return v < 0.9995e-3 ? fmt::format("{:.3g} µs", v * 1e6)
         : v < 0.9995  ? fmt::format("{:.3g} ms", v * 1e3)
                       : fmt::format("{:.3g} s", v);
}
std::string tick_tokens(double v) { return fmt::format("{:.0f}", v); }
std::string tick_percent(double v) { return fmt::format("{:.0f}%", 100 * v); }

// The axes of a plot of a group: a figure of quality against a cost.
struct Comparison {
  bool bytes = true;   // against bytes, or against seconds
  bool score = false;  // a task's score (more is better), or divergence

  Estimate value(const ResultRow& row) const { return score ? row.score : row.divergence; }
  double cost(const ResultRow& row) const { return bytes ? row.bytes : row.seconds; }
  const char* value_name() const { return score ? "score" : "KL, nats per token"; }
  std::string value_text(const ResultRow& row) const {
    return score ? percent(row.score.mean) : figure(row.divergence);
  }
};

std::string point_title(const ResultRow& row, const Comparison& c) {
  return fmt::format("{}: {} {}, {}, {} bits, {}", row.policy, c.value_name(), c.value_text(row),
                     bytes_text(row.bytes), figure(row.bits), seconds_text(row.seconds));
}

// Letters, figures and single dashes.
std::string file_name(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    if (plain)
      out += c;
    else if (!out.empty() && out.back() != '-')
      out += '-';
  }
  return out;
}

ReportPlot comparison_plot(const ResultGroup& group, const Comparison& c) {
  std::vector<FrontPoint> points;
  for (size_t i = 0; i < group.rows.size(); ++i) {
    const ResultRow& row = group.rows[i];
    if (row.count < group.most_count()) continue;  // unfinished: not to be compared
    points.push_back({i, c.cost(row), c.value(row).mean});
  }
  const auto front = pareto_front(points, c.score);
  ReportPlot out;
  out.name =
      file_name(fmt::format("{}-{}-{}", group.name, group.length, c.bytes ? "bytes" : "time"));
  out.caption = "No other policy is better for less:";
  out.plot = {
      fmt::format("{} against {}", c.score ? "Score" : "Divergence", c.bytes ? "bytes" : "time"),
      fmt::format("{} policies; the {} that no other beats in both are numbered and listed "
                  "below",
                  points.size(), front.size()),
      {c.bytes ? "KV cache" : "seconds", true, c.bytes ? tick_bytes : tick_seconds},
      {c.value_name(), !c.score, c.score ? tick_percent : tick_figure},
      {},
      {}};
  PlotLine border{{}, 0, "the Pareto front", "", true};
  for (const FrontPoint& p : front) {
    const ResultRow& row = group.rows[p.row];
    border.points.emplace_back(p.cost, p.value);
    out.front.push_back(fmt::format("<b>{}</b> <span>{},</span> <span>{}</span>",
                                    policy_html(row.policy), c.value_text(row),
                                    c.bytes ? bytes_text(row.bytes) : seconds_text(row.seconds)));
  }
  out.plot.lines.push_back(std::move(border));
  for (const FrontPoint& p : points) {
    const auto at = std::ranges::find(front, p.row, &FrontPoint::row);
    const ResultRow& row = group.rows[p.row];
    out.plot.points.push_back({p.cost, p.value, policy_family(row.policy), point_title(row, c),
                               at == front.end() ? "" : std::to_string(at - front.begin() + 1),
                               row.policy, c.value(row).error});
  }
  return out;
}

}  // namespace

std::vector<ReportPlot> comparison_plots(const ResultGroup& group) {
  const bool score = group.kind == "task";
  return {comparison_plot(group, {true, score}), comparison_plot(group, {false, score})};
}

BytesByTokens bytes_by_tokens(const Results& results) {
  BytesByTokens out;
  for (const ResultGroup& g : results.groups) {
    if (g.kind != "ppl") continue;
    for (const ResultRow& row : g.rows) {
      if (!out.all.contains(row.policy)) out.policies.push_back(row.policy);
      out.all[row.policy][row.tokens] = row.bytes;
      out.lengths.insert(row.tokens);
    }
  }
  return out;
}

ReportPlot memory_plot(const Results& results) {
  const ResultGroup* longest = nullptr;
  for (const ResultGroup& g : results.groups)
    if (g.kind == "ppl" && (longest == nullptr || g.length > longest->length)) longest = &g;
  const BytesByTokens bytes = bytes_by_tokens(results);
  ReportPlot out;
  out.name = "memory-context";
  out.caption = "The policies that nothing beats at the longest context:";
  out.plot = {"Memory against context",
              "the policies of the longest context's Pareto front",
              {"tokens seen", true, tick_tokens},
              {"KV cache", true, tick_bytes},
              {},
              {}};
  std::vector<FrontPoint> points;
  for (size_t i = 0; longest != nullptr && i < longest->rows.size(); ++i)
    points.push_back({i, longest->rows[i].bytes, longest->rows[i].divergence.mean});
  for (const FrontPoint& p : pareto_front(points, false)) {
    const std::string& policy = longest->rows[p.row].policy;
    if (bytes.at(policy).size() < 2) continue;
    PlotLine line{
        {}, policy_family(policy), policy, std::to_string(out.plot.lines.size() + 1), false};
    for (const auto& [tokens, held] : bytes.at(policy)) {
      line.points.emplace_back(static_cast<double>(tokens), held);
      out.plot.points.push_back(
          {static_cast<double>(tokens), held, line.series,
           fmt::format("{}: {} after {} tokens", policy, bytes_text(held), tokens), "", policy, 0});
    }
    out.front.push_back(fmt::format("<b>{}</b>", policy_html(policy)));
    out.plot.lines.push_back(std::move(line));
  }
  return out;
}

std::vector<ReportPlot> report_plots(const Results& results) {
  std::vector<ReportPlot> all;
  for (const ResultGroup& g : results.groups)
    if (g.rows.size() > 1)
      for (ReportPlot& plot : comparison_plots(g)) all.push_back(std::move(plot));
  if (bytes_by_tokens(results).lengths.size() > 1) all.push_back(memory_plot(results));
  // Groups that differ in their setting alone have one name.
  std::map<std::string, int> seen;
  for (ReportPlot& plot : all)
    if (const int n = ++seen[plot.name]; n > 1) plot.name += fmt::format("-{}", n);
  return all;
}

}  // namespace pith
