#include "tools/eval/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "pith/error.h"
#include "tools/eval/report_parts.h"
#include "tools/eval/report_text.h"

namespace pith {
namespace {

/// One column of the overview: a figure of each policy.
struct Column {
  std::string head;
  std::map<std::string, std::string> cells;  // by policy
};

void add_columns(const ResultGroup& g, std::vector<Column>& columns) {
  const auto add = [&](const std::string& what, auto&& cell) {
    Column column{fmt::format("{}, {}", escape_html(what), g.length), {}};
    for (const ResultRow& row : g.rows) column.cells[row.policy] = cell(row);
    columns.push_back(std::move(column));
  };
  if (g.kind == "task") {
    add(g.name, [](const ResultRow& r) { return percent(r.score.mean); });
    return;
  }
  add("KL " + g.name, [](const ResultRow& r) { return figure(r.divergence.mean); });
  add("same top", [](const ResultRow& r) { return percent(r.same_top.mean); });
  if (g.name != "continue")
    add("PPL " + g.name, [](const ResultRow& r) { return figure(r.perplexity.mean, 4); });
}

struct Facts {
  std::set<std::string> policies, models, versions;
  size_t seeds = 0, groups = 0;
  double null_control = 0;
  bool control = false;
};

Facts facts_of(const Results& results) {
  Facts f;
  for (const ResultGroup& g : results.groups) {
    f.models.insert(g.setting.value("model", "unknown"));
    f.versions.insert(g.setting.value("version", "unknown"));
    if (g.null_control)
      f.control = true, f.null_control = std::max(f.null_control, *g.null_control);
    for (const ResultRow& row : g.rows)
      f.policies.insert(row.policy), f.seeds = std::max(f.seeds, row.seeds);
  }
  for (const ProbeGroup& g : results.probes) {
    f.models.insert(g.model);
    for (const ProbeRow& row : g.rows) {
      f.policies.insert(row.policy);
      if (row.random) f.seeds = std::max(f.seeds, static_cast<size_t>(g.seeds));
    }
  }
  for (const SelectorCost& c : results.costs) f.policies.insert(c.policy);
  f.groups = results.groups.size() + results.probes.size() + (results.costs.empty() ? 0 : 1);
  return f;
}

std::string joined(const std::set<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return escape_html(out.empty() ? "unknown" : out);
}

std::string facts_list(const Facts& f) {
  const auto item = [](const std::string& value, const char* what) {
    return fmt::format("<li><b>{}</b>{}</li>", value, what);
  };
  return "<ul class='facts'>" + item(joined(f.models), "model") +
         item(std::to_string(f.policies.size()), "policies") +
         item(std::to_string(f.groups), "measurements") +
         (f.seeds > 1 ? item(std::to_string(f.seeds), "seeds, randomised policies") : "") +
         item(f.control ? figure(f.null_control) : "none", "null control, largest KL") +
         item(joined(f.versions), "pith version") + "</ul>";
}

/// A part of the page with an entry in its list of contents.
struct Section {
  std::string title, html;
};

std::vector<Section> sections_of(const Results& results) {
  std::vector<Section> all;
  for (const ResultGroup& g : results.groups)
    if (g.rows.size() > 1) all.push_back({group_title(g), group_section(g)});
  for (const ProbeGroup& g : results.probes)
    all.push_back({fmt::format("Attention error by layer, {} tokens", g.tokens), probe_section(g)});
  all.push_back({"Memory against context", memory_section(results)});
  all.push_back({"Time of selectors", cost_section(results.costs)});
  all.push_back({"All figures", overview_section(results)});
  all.push_back({"Measured for one policy only", single_section(results)});
  std::erase_if(all, [](const Section& s) { return s.html.empty(); });
  return all;
}

}  // namespace

std::vector<FrontPoint> pareto_front(std::vector<FrontPoint> points, bool more_is_better) {
  const auto better = [&](double a, double b) { return more_is_better ? a > b : a < b; };
  std::ranges::stable_sort(points, [&](const FrontPoint& a, const FrontPoint& b) {
    return a.cost != b.cost ? a.cost < b.cost : better(a.value, b.value);
  });
  std::vector<FrontPoint> front;
  for (const FrontPoint& p : points)
    if (front.empty() || better(p.value, front.back().value)) front.push_back(p);
  return front;
}

std::string overview_section(const Results& results) {
  std::vector<Column> columns;
  std::map<std::string, const ResultRow*> sizes;  // of the longest context
  std::map<std::string, uint64_t> lengths;
  std::vector<std::string> order;
  const auto seen = [&](const std::string& policy) {
    if (std::ranges::find(order, policy) == order.end()) order.push_back(policy);
  };
  for (const ResultGroup& g : results.groups) {
    if (g.rows.size() < 2) continue;
    add_columns(g, columns);
    for (const ResultRow& row : g.rows) {
      seen(row.policy);
      if (g.kind != "ppl" || lengths[row.policy] > g.length) continue;
      sizes[row.policy] = &row, lengths[row.policy] = g.length;
    }
  }
  for (const ProbeGroup& g : results.probes) {
    columns.push_back({fmt::format("attention error, {}", g.tokens), {}});
    for (const ProbeRow& row : g.rows)
      seen(row.policy), columns.back().cells[row.policy] = figure(row.error.mean);
  }
  if (columns.empty()) return "";
  const auto bits = [&](const std::string& p) { return sizes.contains(p) ? sizes[p]->bits : 1e9; };
  std::ranges::stable_sort(order, [&](const auto& a, const auto& b) { return bits(a) > bits(b); });
  HtmlTable table{
      "Each policy's figures, by falling effective bits at its longest context "
      "(everything included, 16 = an f16 cache).",
      {"policy", "seeds", "kept", "bits", "KV cache"},
      {}};
  for (const Column& column : columns) table.heads.push_back(column.head);
  for (const std::string& policy : order) {
    std::vector<std::string> cells{policy_html(policy), "", "", "", ""};
    if (const auto at = sizes.find(policy); at != sizes.end()) {
      const ResultRow& r = *at->second;
      cells = {policy_html(policy), std::to_string(r.seeds), percent(r.kept),
               fmt::format("{:.2f}", r.bits), bytes_text(r.bytes)};
    }
    for (const Column& column : columns) {
      const auto at = column.cells.find(policy);
      cells.push_back(at == column.cells.end() ? "" : at->second);
    }
    table.rows.push_back(std::move(cells));
  }
  return table.text();
}

std::string report_html(const Results& results, const std::string& title) {
  const std::vector<Section> sections = sections_of(results);
  if (sections.empty())
    throw Error(ErrorCode::kInvalidArgument, "the files hold no result to report");
  std::string contents, body;
  for (size_t i = 0; i < sections.size(); ++i) {
    contents += fmt::format("<li><a href='#s{}'>{}</a></li>", i, escape_html(sections[i].title));
    body += fmt::format("<section id='s{}'><h2>{}</h2>{}</section>\n", i,
                        escape_html(sections[i].title), sections[i].html);
  }
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
      "<meta name='viewport' content='width=device-width,initial-scale=1'>"
      "<meta name='color-scheme' content='light dark'><title>{0}</title><style>{1}</style></head>\n"
      "<body><header><h1>{0}</h1><p>Cost and quality of each policy of the KV cache. KL: nats per "
      "token from the exact cache, over the whole vocabulary. Bytes and bits count everything. "
      "Times are by the clock, of one thread each and several at once: on a busy machine they say "
      "little.</p>{2}{3}</header>\n"
      "<nav aria-label='Contents'><ul>{4}</ul></nav><main>\n{5}</main></body></html>\n",
      escape_html(title), kReportStyle, facts_list(facts_of(results)), family_legend(), contents,
      body);
}

}  // namespace pith
