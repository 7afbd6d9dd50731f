#include "probe_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "console.h"

namespace pith::cli {
namespace {

/// Mean over seeds and their standard deviation.
struct Spread {
  double mean = 0, deviation = 0;
};

Spread spread(const std::vector<double>& values) {
  // Equal values are said to be so, not to differ by rounding.
  if (std::ranges::adjacent_find(values, std::not_equal_to{}) == values.end())
    return {values.empty() ? 0.0 : values[0], 0};
  Spread s;
  const auto n = static_cast<double>(values.size());
  for (double x : values) s.mean += x / n;
  for (double x : values) s.deviation += (x - s.mean) * (x - s.mean);
  s.deviation = n > 1 ? std::sqrt(s.deviation / (n - 1)) : 0;
  return s;
}

/// Some layers and heads of one policy.
struct Part {
  size_t first_layer = 0, last_layer = 0;
  int head = -1;  ///< -1: all
};

struct Average {
  Spread error, uniform;         ///< over seeds, of the mean over heads
  double rows = 0, seen = 0;     ///< over the heads
  double bytes = 0;              ///< of the layers, all heads
  double bits = 0;               ///< per number of the layers' rows seen
  double log_ratio = 0;          ///< summed over the heads compared
  size_t won = 0, compared = 0;  ///< heads
  double ratio() const { return std::exp(log_ratio / static_cast<double>(compared)); }
};

std::vector<double> over_seeds(const std::vector<ProbeTrial>& trials, size_t head, bool uniform) {
  std::vector<double> values;
  for (const ProbeTrial& t : trials) {
    const auto& from = uniform ? t.uniform : t.errors;
    if (!from.empty()) values.push_back(from[head]);
  }
  return values;
}

void add_head(Average& a, const std::vector<ProbeTrial>& trials, size_t head,
              std::vector<double>& errors, std::vector<double>& uniforms) {
  const auto mine = over_seeds(trials, head, false), theirs = over_seeds(trials, head, true);
  for (size_t s = 0; s < mine.size(); ++s) errors[s] += mine[s];
  if (theirs.size() == mine.size()) {
    for (size_t s = 0; s < mine.size(); ++s) uniforms[s] += theirs[s];
    const double error = spread(mine).mean, uniform = spread(theirs).mean;
    if (error > 0 && uniform > 0) {
      a.log_ratio += std::log(error / uniform);
      ++a.compared;
      a.won += error < uniform;
    }
  }
  const auto seeds = static_cast<double>(trials.size());
  for (const ProbeTrial& t : trials) {
    a.rows += static_cast<double>(t.rows[head]) / seeds;
    a.seen += static_cast<double>(t.ledger.tokens) / seeds;
  }
}

Average average(const ProbePolicy& policy, const Part& part) {
  const size_t seeds = policy.layers[0].size(), heads = policy.layers[0][0].errors.size();
  Average a;
  std::vector<double> errors(seeds), uniforms(seeds);
  double count = 0, channels = 0;
  for (size_t l = part.first_layer; l <= part.last_layer; ++l) {
    for (size_t g = 0; g < heads; ++g) {
      if (part.head >= 0 && g != static_cast<size_t>(part.head)) continue;
      add_head(a, policy.layers[l], g, errors, uniforms);
      ++count;
    }
    for (const ProbeTrial& t : policy.layers[l]) {
      a.bytes += static_cast<double>(t.ledger.cache_bytes()) / static_cast<double>(seeds);
      channels += static_cast<double>(t.ledger.channels_seen) / static_cast<double>(seeds);
    }
  }
  for (double& e : errors) e /= count;
  for (double& u : uniforms) u /= count;
  a.error = spread(errors);
  a.uniform = spread(uniforms);
  a.bits = 8 * a.bytes / channels;
  a.rows /= count;
  a.seen /= count;
  return a;
}

Average average(const ProbePolicy& policy) {
  return average(policy, {0, policy.layers.size() - 1});
}

std::string number(double x) {
  if (x == 0) return "0";
  return x < 0.001 ? fmt::format("{:.1e}", x) : fmt::format("{:.4f}", x);
}

std::string number(const Spread& s) {
  return s.deviation > 0 ? number(s.mean) + " ±" + number(s.deviation) : number(s.mean);
}

std::vector<std::string> cells(const std::string& name, const Average& a) {
  const bool compared = a.compared > 0;
  return {name,
          fmt::format("{:.0f}", a.rows),
          fmt::format("{:.1f}%", 100 * a.rows / a.seen),
          human_bytes(a.bytes),
          fmt::format("{:.2f}", a.bits),
          number(a.error),
          compared ? number(a.uniform) : "-",
          compared ? fmt::format("{:.3f}", a.ratio()) : "-",
          compared ? fmt::format("{}/{}", a.won, a.compared) : "-"};
}

Table table_of(const char* first) {
  return Table({first, "rows", "kept", "KV", "bits", "error", "uniform", "ratio", "won"});
}

std::string layer_table(const ProbePolicy& policy, bool per_head) {
  Table table = table_of("layer");
  for (size_t l = 0; l < policy.layers.size(); ++l) {
    table.add(cells(std::to_string(l), average(policy, {l, l})));
    if (!per_head) continue;
    for (size_t g = 0; g < policy.layers[l][0].errors.size(); ++g)
      table.add(cells(fmt::format("  head {}", g), average(policy, {l, l, static_cast<int>(g)})));
  }
  table.add(cells("all", average(policy)));
  return table.text();
}

constexpr const char* kLegend =
    "\nerror:   |policy - exact| / |exact| over the last queries, mean over heads,\n"
    "         ± standard deviation over seeds (none: the seed changes nothing)\n"
    "uniform: the same of a correctly weighted uniform sample of as many rows in\n"
    "         each head, with the policy's sink, window and codecs; '-' where every\n"
    "         row is kept\n"
    "ratio:   geometric mean over heads of error / uniform; won: heads whose error is\n"
    "         smaller\n"
    "rows:    per KV head, mean; KV, bits: of all heads, everything included; bits\n"
    "         are per number of the uncompressed cache (f16: 16)\n";

Json to_json(const Average& a) {
  Json json{{"rows", a.rows},
            {"rows_seen", a.seen},
            {"bytes", a.bytes},
            {"effective_bits", a.bits},
            {"error_mean", a.error.mean},
            {"error_deviation", a.error.deviation}};
  if (a.compared > 0)
    json.update({{"uniform_mean", a.uniform.mean},
                 {"uniform_deviation", a.uniform.deviation},
                 {"ratio", a.ratio()},
                 {"heads_won", a.won},
                 {"heads_compared", a.compared}});
  return json;
}

Json to_json(const ProbePolicy& policy) {
  Json layers = Json::array();
  for (size_t l = 0; l < policy.layers.size(); ++l) {
    Json heads = Json::array();
    for (size_t g = 0; g < policy.layers[l][0].errors.size(); ++g) {
      Json head = to_json(average(policy, {l, l, static_cast<int>(g)}));
      head["errors"] = over_seeds(policy.layers[l], g, false);
      head["uniform_errors"] = over_seeds(policy.layers[l], g, true);
      heads.push_back(std::move(head));
    }
    Json layer{{"layer", l}};
    layer.update(to_json(average(policy, {l, l})));
    layer["heads"] = std::move(heads);
    layers.push_back(std::move(layer));
  }
  return {{"policy", policy.policy},
          {"resolved_policy", policy.resolved},
          {"random", policy.random},
          {"all", to_json(average(policy))},
          {"layers", std::move(layers)}};
}

}  // namespace

std::string probe_text(const ProbeRun& run, const ProbeReport& report, bool per_head) {
  std::string out = fmt::format(
      "{}: {} tokens of {}, errors of the last {} queries, seeds {} to {}\n"
      "null control (exact f32 rows against themselves): {}\n\n",
      run.model, run.tokens, run.text, run.queries, run.first_seed, run.first_seed + run.seeds - 1,
      number(report.null_error));
  Table all = table_of("policy, all layers");
  for (const ProbePolicy& policy : report.policies) {
    out += policy.policy + "\n" + layer_table(policy, per_head) + "\n";
    all.add(cells(policy.policy, average(policy)));
  }
  return out + all.text() + kLegend + fmt::format("\nDone in {}.\n", human_seconds(run.seconds));
}

std::string probe_csv(const ProbeRun& run, const ProbeReport& report) {
  std::string out =
      "policy,tokens,queries,seeds,layer,head,rows,layer_bytes,layer_bits,error,error_deviation,"
      "uniform,uniform_deviation\n";
  for (const ProbePolicy& policy : report.policies) {
    for (size_t l = 0; l < policy.layers.size(); ++l) {
      for (size_t g = 0; g < policy.layers[l][0].errors.size(); ++g) {
        const Average a = average(policy, {l, l, static_cast<int>(g)});
        out += fmt::format("\"{}\",{},{},{},{},{},{},{},{},{},{},", policy.policy, run.tokens,
                           run.queries, run.seeds, l, g, a.rows, a.bytes, a.bits, a.error.mean,
                           a.error.deviation);
        if (a.compared > 0) out += fmt::format("{}", a.uniform.mean);
        out += ",";
        if (a.compared > 0) out += fmt::format("{}", a.uniform.deviation);
        out += "\n";
      }
    }
  }
  return out;
}

Json probe_json(const ProbeRun& run, const ProbeReport& report) {
  Json list = Json::array();
  for (const ProbePolicy& policy : report.policies) list.push_back(to_json(policy));
  return {{"model", run.model},
          {"text", run.text},
          {"tokens", run.tokens},
          {"queries", run.queries},
          {"seeds", run.seeds},
          {"first_seed", run.first_seed},
          {"null_control_error", report.null_error},
          {"seconds", run.seconds},
          {"policies", std::move(list)}};
}

}  // namespace pith::cli
