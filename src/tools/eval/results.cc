#include "tools/eval/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/json_file.h"
#include "pith/error.h"
#include "tools/eval/results_lines.h"

namespace pith {
namespace {

// The fields of a record about its own run; the other fields are its setting.
const std::set<std::string> kRunFields{
    "piece",  "policy", "resolved_policy",    "kv_seed", "null_control", "seconds",
    "ledger", "sample", "predictions",        "score",   "answers",      "prompt_seconds",
    "metric", "key",    "answer_seconds",     "task",    "length",       "context",
    "mode",   "kind",   "logits_fingerprint", "random"};
// The same for tasks: each sample has a text of its own.
constexpr const char* kTaskText = "text_fingerprint";

/// One piece or sample under one seed.
struct Part {
  std::vector<Prediction> predictions;
  double score = 0, seconds = 0;
  std::vector<double> turns;
  std::string logits;  ///< fingerprint of a task's; empty if it was not kept
  Ledger ledger;

  bool same_run(const Part& o) const {
    return predictions.empty() ? !logits.empty() && logits == o.logits
                               : predictions == o.predictions;
  }
};
using Parts = std::map<uint64_t, Part>;  // by piece or sample

struct RawRow {
  std::string policy;
  std::map<uint64_t, Parts> seeds;
};

struct RawGroup {
  ResultGroup head;
  std::vector<RawRow> rows;
  Parts null_control;
  std::string exact;  // the policy of the null control
};

Part part_of(const Record& r, bool task) {
  Part part;
  part.ledger = ledger_from(r.at("ledger"));
  if (task) {
    part.score = r.at("score");
    part.logits = r.value("logits_fingerprint", std::string());
    part.seconds = r.at("prompt_seconds").get<double>() + r.at("answer_seconds").get<double>();
    for (const Record& turn : r.at("answers")) part.turns.push_back(turn.at("score"));
    return part;
  }
  part.seconds = r.at("seconds");
  const Record& p = r.at("predictions");
  for (size_t i = 0; i < p.at("nll").size(); ++i)
    part.predictions.push_back(
        {p["nll"][i], p.at("exact_nll").at(i), p.at("kl").at(i), p.at("same_top").at(i) == 1});
  return part;
}

Record setting_of(const Record& r, bool task) {
  Record setting = Record::object();
  for (const auto& [name, value] : r.items())
    if (!kRunFields.contains(name) && !(task && name == kTaskText)) setting[name] = value;
  return setting;
}

// A seed whose pieces or samples are all as the first seed's is no other run: pith eval stops such
// seeds after the first one.
void drop_equal_seeds(RawRow& row) {
  if (row.seeds.size() < 2) return;
  const Parts& first = row.seeds.begin()->second;
  for (auto it = std::next(row.seeds.begin()); it != row.seeds.end();) {
    const bool equal = std::ranges::all_of(it->second, [&](const auto& numbered) {
      const auto found = first.find(numbered.first);
      return found != first.end() && numbered.second.same_run(found->second);
    });
    it = equal ? row.seeds.erase(it) : std::next(it);
  }
}

std::vector<Prediction> all_predictions(const Parts& parts) {
  std::vector<Prediction> all;
  for (const auto& [number, part] : parts)
    all.insert(all.end(), part.predictions.begin(), part.predictions.end());
  return all;
}

std::vector<size_t> piece_sizes(const Parts& parts) {
  std::vector<size_t> sizes;
  for (const auto& [number, part] : parts) sizes.push_back(part.predictions.size());
  return sizes;
}

PredictionSummary summary_of(const Parts& parts) {
  return summarise(all_predictions(parts), piece_sizes(parts));
}

void fill_divergence(ResultRow& row, const RawRow& raw) {
  std::vector<Estimate> perplexity, ln_ratio, divergence, same_top, median, p99;
  for (const auto& [seed, parts] : raw.seeds) {
    const PredictionSummary s = summary_of(parts);
    perplexity.push_back(s.perplexity), ln_ratio.push_back(s.ln_ratio);
    divergence.push_back(s.divergence), same_top.push_back(s.same_top);
    median.push_back({s.divergence_percentiles.at(5), 0});
    p99.push_back({s.divergence_percentiles.at(8), 0});
    row.count = std::max(row.count, s.count);
  }
  row.perplexity = over_seeds(perplexity), row.ln_ratio = over_seeds(ln_ratio);
  row.divergence = over_seeds(divergence), row.same_top = over_seeds(same_top);
  row.divergence_median = over_seeds(median).mean, row.divergence_p99 = over_seeds(p99).mean;
}

/// Which row has the least divergence of those with most predictions, and how far the others that
/// have read the same pieces are from it.
void compare_with_best(ResultGroup& group, const std::vector<RawRow>& raw,
                       const std::string& exact) {
  const size_t most = group.most_count();
  std::optional<size_t> best;
  for (size_t i = 0; i < raw.size(); ++i)
    if (group.rows[i].count == most && raw[i].policy != exact &&
        (!best || group.rows[i].divergence.mean < group.rows[*best].divergence.mean))
      best = i;
  if (!best) return;
  group.best = group.rows[*best].policy;
  const std::vector<size_t> pieces = piece_sizes(raw[*best].seeds.begin()->second);
  const auto whole = [&](const RawRow& row) {
    return std::ranges::all_of(
        row.seeds, [&](const auto& seed) { return piece_sizes(seed.second) == pieces; });
  };
  const auto seeds_of = [](const RawRow& row) {
    std::vector<std::vector<Prediction>> all;
    for (const auto& [seed, parts] : row.seeds) all.push_back(all_predictions(parts));
    return all;
  };
  if (!whole(raw[*best])) return;
  const auto theirs = seeds_of(raw[*best]);
  for (size_t i = 0; i < raw.size(); ++i) {
    if (i == *best || !whole(raw[i])) continue;
    const auto mine = seeds_of(raw[i]);
    group.rows[i].above_best =
        divergence_above({mine.begin(), mine.end()}, {theirs.begin(), theirs.end()}, pieces);
  }
}

void fill_score(ResultRow& row, const RawRow& raw) {
  std::vector<double> means;
  double samples = 0;
  for (const auto& [seed, parts] : raw.seeds) {
    std::vector<double> scores;
    for (const auto& [number, part] : parts) {
      scores.push_back(part.score);
      row.by_turn.resize(std::max(row.by_turn.size(), part.turns.size()));
      for (size_t i = 0; i < part.turns.size(); ++i) row.by_turn[i] += part.turns[i];
      ++samples;
    }
    means.push_back(spread(scores).mean);
    row.count = std::max(row.count, scores.size());
  }
  for (double& turn : row.by_turn) turn /= samples;
  const Spread all = spread(means);
  row.score = {all.mean, all.deviation};
  row.score_interval = wilson(all.mean, row.count);
}

ResultRow row_of(const RawRow& raw, bool task) {
  ResultRow row;
  row.policy = raw.policy, row.seeds = raw.seeds.size();
  if (task)
    fill_score(row, raw);
  else
    fill_divergence(row, raw);
  // The cache of the last piece, or of the first sample: what `pith eval` prints too.
  const Parts& parts = raw.seeds.begin()->second;
  const Ledger& l = task ? parts.begin()->second.ledger : parts.rbegin()->second.ledger;
  row.bytes = static_cast<double>(l.cache_bytes()), row.bits = l.effective_bits();
  row.kept =
      l.rows_seen == 0 ? 0 : static_cast<double>(l.rows_kept) / static_cast<double>(l.rows_seen);
  row.tokens = l.tokens;
  double pieces = 0;
  for (const auto& [seed, by_number] : raw.seeds)
    for (const auto& [number, part] : by_number) row.seconds += part.seconds, ++pieces;
  row.seconds /= pieces;
  return row;
}

class Reader {
 public:
  void add(const Record& r) {
    const bool task = r.at("kind") == "task";
    if (!task && r.at("kind") != "ppl") throw Error(ErrorCode::kCorrupt, "its kind is unknown");
    RawGroup& group = group_of(r, task);
    const uint64_t number = whole_number(r, task ? "sample" : "piece");
    const bool control = r.value("null_control", false);
    if (control) group.exact = r.at("policy");
    Parts& parts = control ? group.null_control
                           : row_in(group, r.at("policy")).seeds[whole_number(r, "kv_seed")];
    parts[number] = part_of(r, task);
  }

  /// A line that was put together before.
  void add_summary(const Record& r) { add_result_line(r, done_); }
  Results& done() { return done_; }

  Results finish() {
    for (RawGroup& raw : groups_) {
      ResultGroup group = std::move(raw.head);
      if (!raw.null_control.empty())
        group.null_control = summary_of(raw.null_control).divergence.mean;
      // The null control is a measurement of the exact cache: it stands among those compared.
      const auto named = [&](const RawRow& row) { return row.policy == raw.exact; };
      if (!raw.null_control.empty() && !raw.rows.empty() && std::ranges::none_of(raw.rows, named))
        raw.rows.insert(raw.rows.begin(), {raw.exact, {{0, raw.null_control}}});
      for (RawRow& row : raw.rows) {
        drop_equal_seeds(row);
        group.rows.push_back(row_of(row, group.kind == "task"));
      }
      if (group.kind == "ppl") {
        group.errors = kBlockErrors;
        compare_with_best(group, raw.rows, raw.exact);
      }
      done_.groups.push_back(std::move(group));
    }
    return std::move(done_);
  }

 private:
  RawGroup& group_of(const Record& r, bool task) {
    ResultGroup head{r.at("kind"),
                     r.at(task ? "task" : "mode"),
                     whole_number(r, task ? "length" : "context"),
                     checked_setting(setting_of(r, task)),
                     {},
                     {},
                     {},
                     {}};
    for (RawGroup& g : groups_)
      if (g.head.kind == head.kind && g.head.name == head.name && g.head.length == head.length &&
          g.head.setting == head.setting)
        return g;
    groups_.push_back({std::move(head), {}, {}, {}});
    return groups_.back();
  }

  static RawRow& row_in(RawGroup& group, const std::string& policy) {
    for (RawRow& row : group.rows)
      if (row.policy == policy) return row;
    group.rows.push_back({policy, {}});
    return group.rows.back();
  }

  std::vector<RawGroup> groups_;
  Results done_;
};

[[noreturn]] void refuse(const std::filesystem::path& file, size_t line, const std::string& why) {
  throw Error(ErrorCode::kCorrupt,
              fmt::format("{}: line {} is no result ({}); report reads the files of 'pith eval "
                          "--out', 'pith probe --json', 'pith bench select --csv' and its own "
                          "--lines",
                          file.string(), line, why));
}

void read_lines(const std::filesystem::path& file, const std::string& text, Reader& reader) {
  size_t line = 0;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string one = text.substr(start, end - start);
    start = end + 1, ++line;
    if (one.find_first_not_of(" \r\t") == std::string::npos) continue;
    // A run that was killed leaves half a line at the end; the others all count.
    const Record r = Record::parse(one, nullptr, false);
    if (r.is_discarded() && end == text.size() && line > 1) return;
    if (!r.is_object()) refuse(file, line, "no JSON object");
    try {
      r.contains("key") ? reader.add(r) : reader.add_summary(r);
    } catch (const Record::exception& e) {
      refuse(file, line, e.what());
    } catch (const Error& e) {
      refuse(file, line, e.what());
    }
  }
  if (line == 0) refuse(file, 1, "the file is empty");
}

// JSON and CSV can say 1e999 and nan; no measurement does.
void check_finite(const Results& results) {
  const auto check = [](const std::string& policy, std::initializer_list<double> figures) {
    if (std::ranges::all_of(figures, [](double x) { return std::isfinite(x); })) return;
    throw Error(ErrorCode::kCorrupt,
                fmt::format("a figure of '{}' is not a finite number: its file is damaged, or the "
                            "run that made it was",
                            policy));
  };
  for (const ResultGroup& g : results.groups)
    for (const ResultRow& r : g.rows)
      check(r.policy, {r.bytes, r.bits, r.kept, r.seconds, r.perplexity.mean, r.divergence.mean,
                       r.divergence.error, r.same_top.mean, r.score.mean, r.score.error});
  for (const ProbeGroup& g : results.probes)
    for (const ProbeRow& r : g.rows) check(r.policy, {r.error.mean, r.error.error, r.bits, r.kept});
  for (const SelectorCost& c : results.costs)
    check(c.policy, {c.bytes, c.bits, c.update, c.attend, c.exact_attend});
}

}  // namespace

size_t ResultGroup::most_count() const {
  size_t most = 0;
  for (const ResultRow& row : rows) most = std::max(most, row.count);
  return most;
}

Results read_results(const std::vector<std::filesystem::path>& files) {
  Reader reader;
  for (const auto& file : files) {
    const std::string text = read_file(file, kMostTextBytes);
    check_json_depth(text, file.string());
    if (text.starts_with("policy,s,n,")) {
      add_selector_costs(text, reader.done().costs);
      continue;
    }
    const Record whole = Record::parse(text, nullptr, false);
    if (!whole.is_object() || whole.contains("result") || !whole.contains("null_control_error")) {
      read_lines(file, text, reader);
      continue;
    }
    try {
      reader.done().probes.push_back(probe_from_json(whole));
    } catch (const Record::exception& e) {
      refuse(file, 1, e.what());
    } catch (const Error& e) {
      refuse(file, 1, e.what());
    }
  }
  Results results = reader.finish();
  check_finite(results);
  return results;
}

}  // namespace pith
