#include "tools/eval/report_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "tools/eval/plot.h"
#include "tools/eval/report_plots.h"
#include "tools/eval/report_text.h"

namespace pith {
namespace {

constexpr const char* kFamilies[] = {"exact", "selector (fewer rows)", "codec (fewer bits)",
                                     "selector and codec"};

std::string figure_html(const ReportPlot& p) {
  std::string list;
  for (const std::string& item : p.front) list += "<li>" + item + "</li>";
  return fmt::format("<figure><h3>{}</h3>{}<figcaption>{}<ol>{}</ol></figcaption></figure>",
                     escape_html(p.plot.title), plot_svg(p.plot), p.caption, list);
}

std::string turns_text(const std::vector<double>& turns) {
  std::string out;
  for (double t : turns) out += fmt::format("{}{:.0f}", out.empty() ? "" : " ", 100 * t);
  return out;
}

std::string group_table(const ResultGroup& group) {
  const bool task = group.kind == "task";
  HtmlTable table;
  table.caption =
      fmt::format("{}. {}.", group_title(group),
                  task ? "In brackets: Wilson's 95% interval"
                  : group.errors == kBlockErrors
                      ? "±: standard error over blocks of text and seeds"
                      : "±: of tokens as if each were a draw, with several seeds their deviation");
  // The important columns first: on a phone the last columns are a swipe away.
  table.heads =
      task ? std::vector<std::string>{"policy", "score", "by turn, %"}
           : std::vector<std::string>{"policy",   "KL, nats",   "KL median", "KL 99%",
                                      "same top", "perplexity", "ln ratio",  "KL above the best"};
  for (const char* head : {"kept", "KV cache", "bits", "seconds", "seeds"})
    table.heads.emplace_back(head);
  table.heads.emplace_back(task ? "samples" : "predictions");
  for (const ResultRow& row : group.rows) {
    std::vector<std::string> cells{policy_html(row.policy)};
    if (task) {
      cells.push_back(fmt::format("{} ({:.0f} to {:.0f})", percent(row.score.mean),
                                  100 * row.score_interval.low, 100 * row.score_interval.high));
      cells.push_back(row.by_turn.size() > 1 ? turns_text(row.by_turn) : "");
    } else {
      for (const std::string& cell :
           {figure(row.divergence), figure(row.divergence_median), figure(row.divergence_p99),
            percent(row.same_top.mean), figure(row.perplexity), figure(row.ln_ratio),
            row.above_best ? figure(*row.above_best) : std::string()})
        cells.push_back(cell);
    }
    for (const std::string& cell :
         {percent(row.kept), bytes_text(row.bytes), fmt::format("{:.2f}", row.bits),
          seconds_text(row.seconds), std::to_string(row.seeds), count_text(group, row)})
      cells.push_back(cell);
    table.rows.push_back(std::move(cells));
  }
  return table.text();
}

std::string setting_text(const ResultGroup& group) {
  std::string out;
  for (const auto& [name, value] : group.setting.items())
    out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", name,
                       value.is_string() ? value.get<std::string>() : value.dump());
  return out;
}

}  // namespace

size_t policy_family(std::string_view policy) {
  const bool all_rows = policy.starts_with("exact");
  const size_t plus = policy.find('+');
  const bool coded = plus != std::string_view::npos &&
                     policy.find_first_of("fb", plus + 1) != plus + 1;  // +f32, +f16, +bf16
  return (all_rows ? 0 : 1) + (coded ? 2 : 0);
}

std::string group_title(const ResultGroup& group) {
  static const std::map<std::string, std::string> kNames{
      {"continue", "KL divergence after a prompt"},
      {"decode", "KL divergence, one token at a time"},
      {"chunks", "KL divergence of pieces read at once"}};
  if (group.kind == "task") return fmt::format("Task {}, {} tokens", group.name, group.length);
  const auto known = kNames.find(group.name);
  return fmt::format("{}, {} tokens", known == kNames.end() ? group.name : known->second,
                     group.length);
}

std::string count_text(const ResultGroup& group, const ResultRow& row) {
  const size_t most = group.most_count();
  return row.count == most ? std::to_string(row.count) : fmt::format("{} of {}", row.count, most);
}

std::string HtmlTable::text() const {
  // The caption stands outside the box that scrolls sideways, where it would be cut off.
  std::string out = fmt::format(
      "<p class='caption'>{0}</p><div class='wide' tabindex='0' role='region' "
      "aria-label='{1}'><table aria-label='{1}'><thead><tr>",
      escape_html(caption), escape_html("Table: " + caption.substr(0, caption.find('.'))));
  for (const std::string& head : heads) out += "<th scope='col'>" + head + "</th>";
  out += "</tr></thead><tbody>";
  for (const auto& row : rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      const bool whole = row[i].starts_with("<td");  // a cell with a colour of its own
      out += i == 0  ? "<th scope='row'>" + row[i] + "</th>"
             : whole ? row[i]
                     : "<td>" + row[i] + "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>";
}

std::string folded(const std::string& summary, const std::string& html) {
  return fmt::format("<details><summary>{}</summary>{}</details>", summary, html);
}

std::string family_legend() {
  std::string out = "<ul class='legend'>";
  for (size_t i = 0; i < std::size(kFamilies); ++i)
    out += fmt::format("<li>{}{}</li>", marker_svg(i), kFamilies[i]);
  return out + "</ul>";
}

std::string group_section(const ResultGroup& group) {
  std::string out;
  if (group.null_control)
    out += fmt::format("<p>Null control, exact against exact: KL {}.</p>",
                       figure(*group.null_control));
  if (group.rows.size() > 1) {
    out += "<div class='plots'>";
    for (const ReportPlot& plot : comparison_plots(group)) out += figure_html(plot);
    out += "</div>";
  }
  out += folded(fmt::format("Table: {} policies", group.rows.size()), group_table(group));
  return out + folded("Setting", "<p class='soft'>" + escape_html(setting_text(group)) + "</p>");
}

std::string single_section(const Results& results) {
  HtmlTable table{"Nothing to compare: one policy each.",
                  {"policy", "measured", "tokens", "seeds", "count", "figure"},
                  {}};
  for (const ResultGroup& g : results.groups) {
    if (g.rows.size() != 1) continue;
    const ResultRow& row = g.rows[0];
    const bool task = g.kind == "task";
    table.rows.push_back(
        {policy_html(row.policy), escape_html(g.name), std::to_string(g.length),
         std::to_string(row.seeds), std::to_string(row.count),
         task ? "score " + percent(row.score.mean) : "KL " + figure(row.divergence)});
  }
  return table.rows.empty() ? "" : table.text();
}

std::string memory_section(const Results& results) {
  const BytesByTokens bytes = bytes_by_tokens(results);
  if (bytes.lengths.size() < 2) return "";
  HtmlTable table{"Bytes of the cache, everything included, by tokens seen.", {"policy"}, {}};
  for (const uint64_t tokens : bytes.lengths) table.heads.push_back(std::to_string(tokens));
  for (const std::string& policy : bytes.policies) {
    std::vector<std::string> cells{policy_html(policy)};
    for (const uint64_t tokens : bytes.lengths) {
      const auto at = bytes.at(policy).find(tokens);
      cells.push_back(at == bytes.at(policy).end() ? "" : bytes_text(at->second));
    }
    table.rows.push_back(std::move(cells));
  }
  return "<div class='plots'>" + figure_html(memory_plot(results)) + "</div>" +
         folded(fmt::format("Table: {} policies", bytes.policies.size()), table.text());
}

namespace {

/// Cells whose colour follows the logarithm of their value: such values span orders of magnitude.
class HeatScale {
 public:
  /// Values of the exact cache are not part of it: next to nothing, they would leave all others one
  /// colour.
  void see(const std::string& policy, double v) {
    if (v > 0 && policy_family(policy) != 0)
      most_ = std::max(most_, v), least_ = std::min(least_, v);
  }
  std::string cell(double v, const std::string& text) const {
    const double strength =
        v > least_ && most_ > least_
            ? 0.75 * std::min(1.0, std::log(v / least_) / std::log(most_ / least_))
            : 0.0;
    return fmt::format("<td class='heat' style='--v:{:.2f}'>{}</td>", strength, text);
  }

 private:
  double most_ = 0, least_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::string probe_section(const ProbeGroup& group) {
  HeatScale scale;
  size_t layers = 0;
  for (const ProbeRow& row : group.rows) {
    layers = std::max(layers, row.layers.size());
    for (const double e : row.layers) scale.see(row.policy, e);
  }
  const bool random = std::ranges::any_of(group.rows, &ProbeRow::random);
  HtmlTable table{
      fmt::format("Relative error of each layer's attention. Mean over heads{}; the "
                  "stronger the colour, the larger (logarithm, exact left out).",
                  random ? fmt::format(" and {} seeds of what is random", group.seeds) : ""),
      {"policy"},
      {}};
  for (size_t l = 0; l < layers; ++l) table.heads.push_back(fmt::format("L{}", l));
  table.heads.insert(table.heads.end(), {"all", "kept", "bits"});
  for (const ProbeRow& row : group.rows) {
    std::vector<std::string> cells{policy_html(row.policy)};
    for (const double e : row.layers) cells.push_back(scale.cell(e, figure(e, 2)));
    cells.resize(1 + layers);
    cells.push_back(figure(row.error)), cells.push_back(percent(row.kept)),
        cells.push_back(fmt::format("{:.2f}", row.bits));
    table.rows.push_back(std::move(cells));
  }
  return fmt::format(
             "<p>{} tokens of {}, the last {} as queries. Null control, exact f32 rows "
             "against themselves: {}.</p>",
             group.tokens, escape_html(group.text), group.queries, figure(group.null_error)) +
         table.text();
}

std::string cost_section(const std::vector<SelectorCost>& costs) {
  if (costs.empty()) return "";
  HeatScale scale;
  std::map<std::string, std::map<uint64_t, double>> by_policy;
  std::vector<std::string> order;
  std::map<uint64_t, bool> lengths;
  HtmlTable all{"Time of one token. Medians; of exact: of exact attention over as many tokens.",
                {"policy", "tokens", "update", "attend", "update, of exact", "KV cache", "bits"},
                {}};
  for (const SelectorCost& c : costs) {
    if (!by_policy.contains(c.policy)) order.push_back(c.policy);
    by_policy[c.policy][c.tokens] = c.update + c.attend, lengths[c.tokens] = true;
    scale.see(c.policy, c.update + c.attend);
    all.rows.push_back({policy_html(c.policy), std::to_string(c.tokens), seconds_text(c.update),
                        seconds_text(c.attend), percent(c.update / c.exact_attend),
                        bytes_text(c.bytes), fmt::format("{:.2f}", c.bits)});
  }
  HtmlTable table{
      "Update and attention of one token, by tokens seen. The stronger the colour, the "
      "longer (logarithm).",
      {"policy"},
      {}};
  for (const auto& [tokens, there] : lengths) table.heads.push_back(std::to_string(tokens));
  for (const std::string& policy : order) {
    std::vector<std::string> cells{policy_html(policy)};
    for (const auto& [tokens, there] : lengths) {
      const auto at = by_policy[policy].find(tokens);
      cells.push_back(
          at == by_policy[policy].end() ? "" : scale.cell(at->second, seconds_text(at->second)));
    }
    table.rows.push_back(std::move(cells));
  }
  return table.text() + folded(fmt::format("Table: {} lines", costs.size()), all.text());
}

}  // namespace pith
