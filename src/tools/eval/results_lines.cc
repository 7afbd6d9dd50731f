#include "tools/eval/results_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <stdexcept>

#include "core/json_file.h"
#include "pith/error.h"
#include "pith_tools/results.h"

namespace pith {
namespace {

// Six digits are more than any of these figures is worth.
// strtod, since stod throws where a figure is too small for a normal number.
double rounded(double x) { return std::strtod(fmt::format("{:.6g}", x).c_str(), nullptr); }

Record to_record(const Estimate& e) { return {rounded(e.mean), rounded(e.error)}; }

Estimate estimate_from(const Record& r) { return {r.at(0), r.at(1)}; }

Record head_of(const ResultGroup& g) {
  Record head{{"result", g.kind}, {"name", g.name}, {"length", g.length}, {"setting", g.setting}};
  if (!g.errors.empty()) head["errors"] = g.errors;
  if (!g.best.empty()) head["best"] = g.best;
  if (g.null_control) head["null_control_kl"] = *g.null_control;
  return head;
}

Record to_record(const ResultRow& row, const std::string& kind) {
  Record r{{"policy", row.policy},      {"seeds", row.seeds},
           {"count", row.count},        {"tokens", row.tokens},
           {"bytes", row.bytes},        {"bits", rounded(row.bits)},
           {"kept", rounded(row.kept)}, {"seconds", rounded(row.seconds)}};
  if (kind == "task") {
    Record turns = Record::array();
    for (double t : row.by_turn) turns.push_back(rounded(t));
    r.update({{"score", to_record(row.score)},
              {"interval", {rounded(row.score_interval.low), rounded(row.score_interval.high)}},
              {"by_turn", turns}});
    return r;
  }
  r.update({{"perplexity", to_record(row.perplexity)},
            {"ln_ratio", to_record(row.ln_ratio)},
            {"kl", to_record(row.divergence)},
            {"kl_50", rounded(row.divergence_median)},
            {"kl_99", rounded(row.divergence_p99)},
            {"same_top", to_record(row.same_top)}});
  if (row.above_best) r["kl_above_best"] = to_record(*row.above_best);
  return r;
}

ResultRow row_from(const Record& r, const std::string& kind) {
  ResultRow row;
  row.policy = r.at("policy"), row.seeds = whole_number(r, "seeds");
  row.count = whole_number(r, "count");
  row.tokens = whole_number(r, "tokens"), row.bytes = r.at("bytes"), row.bits = r.at("bits");
  row.kept = r.at("kept"), row.seconds = r.at("seconds");
  if (kind == "task") {
    row.score = estimate_from(r.at("score"));
    if (row.count == 0) throw Error(ErrorCode::kCorrupt, "a task without samples");
    row.score_interval = wilson(row.score.mean, row.count);
    row.by_turn = r.at("by_turn").get<std::vector<double>>();
    return row;
  }
  row.perplexity = estimate_from(r.at("perplexity"));
  row.ln_ratio = estimate_from(r.at("ln_ratio"));
  row.divergence = estimate_from(r.at("kl")), row.same_top = estimate_from(r.at("same_top"));
  row.divergence_median = r.at("kl_50"), row.divergence_p99 = r.at("kl_99");
  if (r.contains("kl_above_best")) row.above_best = estimate_from(r["kl_above_best"]);
  return row;
}

Record to_record(const ProbeGroup& g) {
  Record rows = Record::array();
  for (const ProbeRow& row : g.rows) {
    Record layers = Record::array();
    for (double error : row.layers) layers.push_back(rounded(error));
    rows.push_back({{"policy", row.policy},
                    {"random", row.random},
                    {"bytes", rounded(row.bytes)},
                    {"bits", rounded(row.bits)},
                    {"kept", rounded(row.kept)},
                    {"error", to_record(row.error)},
                    {"layers", layers}});
  }
  return {{"result", "probe"},
          {"model", g.model},
          {"text", g.text},
          {"tokens", g.tokens},
          {"queries", g.queries},
          {"seeds", g.seeds},
          {"null_control_error", g.null_error},
          {"rows", rows}};
}

ProbeGroup probe_head(const Record& r) {
  ProbeGroup g;
  // Names, not places: where files lay on one machine tells others nothing.
  g.model = std::filesystem::path(r.at("model").get<std::string>()).filename();
  g.text = std::filesystem::path(r.at("text").get<std::string>()).filename();
  g.tokens = whole_number(r, "tokens");
  g.queries = whole_number(r, "queries"), g.seeds = whole_number(r, "seeds");
  g.null_error = r.at("null_control_error");
  return g;
}

ProbeGroup probe_from_line(const Record& r) {
  ProbeGroup g = probe_head(r);
  for (const Record& row : r.at("rows"))
    g.rows.push_back({row.at("policy"), row.at("random"), row.at("bytes"), row.at("bits"),
                      row.at("kept"), estimate_from(row.at("error")),
                      row.at("layers").get<std::vector<double>>()});
  return g;
}

// Fields of a CSV line, quotes taken off; policies have commas, so they are quoted.
std::vector<std::string> csv_fields(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

}  // namespace

std::string results_to_lines(const Results& results) {
  std::string out;
  const auto line = [&](const Record& r) {
    out += r.dump(-1, ' ', false, Record::error_handler_t::replace) + "\n";
  };
  for (const ResultGroup& g : results.groups) {
    line(head_of(g));
    for (const ResultRow& row : g.rows) line(to_record(row, g.kind));
  }
  for (const ProbeGroup& g : results.probes) line(to_record(g));
  for (const SelectorCost& c : results.costs)
    line({{"result", "cost"},
          {"policy", c.policy},
          {"tokens", c.tokens},
          {"bytes", c.bytes},
          {"bits", rounded(c.bits)},
          {"update", rounded(c.update)},
          {"attend", rounded(c.attend)},
          {"exact_attend", rounded(c.exact_attend)}});
  return out;
}

std::string result_lines(const std::vector<std::filesystem::path>& files) {
  return results_to_lines(read_results(files));
}

const Record& checked_setting(const Record& setting) {
  for (const auto& [name, value] : setting.get_ref<const Record::object_t&>())
    if (name == "model" || name == "version") (void)value.get_ref<const std::string&>();
  return setting;
}

void add_result_line(const Record& line, Results& results) {
  if (!line.contains("result")) {
    if (results.groups.empty())
      throw Error(ErrorCode::kCorrupt, "a row without the line of its setting before it");
    ResultGroup& group = results.groups.back();
    group.rows.push_back(row_from(line, group.kind));
    return;
  }
  const std::string kind = line.at("result");
  if (kind == "probe") {
    results.probes.push_back(probe_from_line(line));
  } else if (kind == "cost") {
    results.costs.push_back({line.at("policy"), whole_number(line, "tokens"), line.at("bytes"),
                             line.at("bits"), line.at("update"), line.at("attend"),
                             line.at("exact_attend")});
  } else if (kind == "ppl" || kind == "task") {
    ResultGroup g{kind,
                  line.at("name"),
                  whole_number(line, "length"),
                  checked_setting(line.at("setting")),
                  {},
                  {},
                  {},
                  {}};
    g.errors = line.value("errors", std::string()), g.best = line.value("best", std::string());
    if (line.contains("null_control_kl")) g.null_control = line["null_control_kl"];
    results.groups.push_back(std::move(g));
  } else {
    throw Error(ErrorCode::kCorrupt, fmt::format("its kind is '{}'", kind));
  }
}

ProbeGroup probe_from_json(const Record& json) {
  ProbeGroup g = probe_head(json);
  for (const Record& policy : json.at("policies")) {
    const Record& all = policy.at("all");
    ProbeRow row{policy.at("policy"),
                 policy.at("random"),
                 all.at("bytes"),
                 all.at("effective_bits"),
                 all.at("rows").get<double>() / all.at("rows_seen").get<double>(),
                 {all.at("error_mean"), all.at("error_deviation")},
                 {}};
    for (const Record& layer : policy.at("layers")) row.layers.push_back(layer.at("error_mean"));
    g.rows.push_back(std::move(row));
  }
  return g;
}

void add_selector_costs(const std::string& csv, std::vector<SelectorCost>& costs) {
  std::map<std::string, size_t> columns;
  for (size_t start = 0; start < csv.size();) {
    const size_t end = std::min(csv.find('\n', start), csv.size());
    const std::string line = csv.substr(start, end - start);
    const auto fields = csv_fields(line);
    start = end + 1;
    if (columns.empty()) {
      for (size_t i = 0; i < fields.size(); ++i) columns[fields[i]] = i;
      continue;
    }
    try {
      const auto number = [&](const char* name) {
        const std::string& text = fields.at(columns.at(name));
        char* rest = nullptr;
        const double value = std::strtod(text.c_str(), &rest);
        if (text.empty() || *rest != '\0') throw std::invalid_argument(text);
        return value;
      };
      costs.push_back({fields.at(columns.at("policy")), static_cast<uint64_t>(number("n")),
                       number("bytes"), number("effective_bits"), number("update_seconds"),
                       number("attend_seconds"), number("exact_attend_seconds")});
    } catch (const std::exception&) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("'{}' is no line of 'pith bench select --csv'", line));
    }
  }
}

}  // namespace pith
