#include "pith/presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/json_file.h"
#include "core/output_file.h"
#include "pith/error.h"
#include "policy/registry.h"
#include "session/presets_table.h"

namespace pith {
namespace {

using nlohmann::json;

Preset preset_from(const json& line) {
  Preset p;
  p.policy = line.at("policy"), p.model = line.at("model"), p.context = line.at("context");
  p.seeds = line.at("seeds"), p.bits = line.at("bits");
  p.divergence = line.at("kl").at(0), p.divergence_error = line.at("kl").at(1);
  p.facts = line.value("facts", -1.0);
  Policy::parse(p.policy);
  if (p.context == 0 || !(p.divergence >= 0) || !(p.bits > 0))
    throw Error(ErrorCode::kCorrupt, "context, kl or bits make no sense");
  return p;
}

size_t bytes_of(const std::string& text, size_t exact_bytes) {
  const Budget budget = Budget::parse(text);
  if (budget.unit == Budget::Unit::kRows)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("auto: a budget of {} rows says nothing of bytes; give MiB ('16MiB') "
                            "or a share of the exact cache's bytes ('25%')",
                            text));
  return static_cast<size_t>(budget.unit == Budget::Unit::kBytes
                                 ? budget.value
                                 : budget.value / 100 * static_cast<double>(exact_bytes));
}

std::string mib(size_t bytes) {
  return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / 1048576);
}

}  // namespace

std::string PresetChoice::why() const {
  std::string among = "the least divergence";
  if (goal == PresetGoal::kFacts) among = "the most facts found";
  if (goal == PresetGoal::kBoth && best_facts >= 0)
    among =
        fmt::format("the least divergence beside 3/4 of the facts that the best found ({:.0f}%)",
                    100 * best_facts);
  std::string text = fmt::format(
      "{} takes at most {} of the {} given ({} tokens; the exact f16 cache takes {}); of {} that "
      "fit it had {}: KL {:.2g} ±{:.1g} nats a token at {:.2f} bits a number",
      measured.policy, mib(bytes), mib(budget_bytes), context, mib(exact_bytes), fitting, among,
      measured.divergence, measured.divergence_error, measured.bits);
  if (measured.facts >= 0) text += fmt::format(", {:.0f}% of facts found", 100 * measured.facts);
  return text + fmt::format(", measured on {} at {} tokens, {} {}", measured.model,
                            measured.context, measured.seeds,
                            measured.seeds == 1 ? "seed" : "seeds");
}

Presets Presets::built_in(const std::string& fingerprint) {
  Presets presets = parse(kPresetTable, "the built-in presets");
  const Presets tuned = parse(kTunedPresetTable, "the built-in tuned presets");
  if (tuned.model_fingerprint() == fingerprint)
    presets.presets_.insert(presets.presets_.end(), tuned.all().begin(), tuned.all().end());
  return presets;
}

Presets Presets::read(const std::filesystem::path& file) {
  return parse(read_file(file, kMostTableBytes), file.string());
}

void Presets::write(const std::filesystem::path& file, const std::vector<Preset>& presets,
                    const std::string& fingerprint) {
  std::string lines;
  for (const Preset& p : presets) {
    nlohmann::ordered_json line{{"policy", p.policy},
                                {"model", p.model},
                                {"context", p.context},
                                {"seeds", p.seeds},
                                {"kl", {p.divergence, p.divergence_error}},
                                {"bits", p.bits}};
    if (p.facts >= 0) line["facts"] = p.facts;
    if (!fingerprint.empty()) line["model_fingerprint"] = fingerprint;
    lines += line.dump() + "\n";
  }
  write_file(file, lines);
}

void Presets::check_write(const std::filesystem::path& file,
                          const std::vector<std::filesystem::path>& inputs) {
  check_output(file, inputs);
}

Presets Presets::parse(std::string_view lines, const std::string& name) {
  Presets presets;
  presets.name_ = name;
  size_t number = 0;
  for (size_t start = 0; start < lines.size();) {
    const size_t end = std::min(lines.find('\n', start), lines.size());
    const std::string_view line = lines.substr(start, end - start);
    start = end + 1, ++number;
    if (line.find_first_not_of(" \r\t") == std::string_view::npos) continue;
    try {
      const json j = parse_json(line, "it");
      presets.presets_.push_back(preset_from(j));
      const std::string only = j.value("model_fingerprint", std::string());
      if (presets.all().size() == 1) presets.model_fingerprint_ = only;
      if (only != presets.model_fingerprint_)
        throw Error(ErrorCode::kCorrupt, "it is for another model than the lines before");
    } catch (const std::exception& e) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("{}: line {} is no preset: {}; tools/results_presets.py and pith "
                              "tune make such files",
                              name, number, e.what()));
    }
  }
  if (presets.presets_.empty())
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: there is no preset in it", name));
  return presets;
}

std::vector<const Preset*> Presets::nearest(uint64_t context) const {
  const auto distance = [&](const Preset& p) {
    return std::fabs(std::log(static_cast<double>(p.context) / static_cast<double>(context)));
  };
  double least = std::numeric_limits<double>::infinity();
  for (const Preset& p : presets_) least = std::min(least, distance(p));
  std::vector<const Preset*> near;
  for (const Preset& p : presets_)
    if (distance(p) == least) near.push_back(&p);
  // Of equal divergences the one with fewer bits.
  std::ranges::stable_sort(near, [](const Preset* a, const Preset* b) {
    return a->divergence != b->divergence ? a->divergence < b->divergence : a->bits < b->bits;
  });
  return near;
}

namespace {

struct Fitting {
  const Preset* preset;
  size_t bytes;
};

/// The best of what fits, which comes by rising divergence.
const Fitting& best_of(const std::vector<Fitting>& fitting, PresetGoal goal, double best_facts) {
  if (goal == PresetGoal::kText || best_facts < 0) return fitting.front();
  const double enough = goal == PresetGoal::kFacts ? best_facts : 0.75 * best_facts;
  return *std::ranges::find_if(fitting,
                               [&](const Fitting& f) { return f.preset->facts >= enough; });
}

}  // namespace

PresetChoice Presets::choose(const ModelConfig& config, const StandaloneOptions& options,
                             const std::string& budget, PresetGoal goal) const {
  StandaloneOptions o = options;
  if (o.context == 0) o.context = static_cast<size_t>(config.context);
  PresetChoice choice;
  choice.context = o.context;
  choice.exact_bytes = o.context * config.bytes_per_token(DType::kF16);
  choice.budget_bytes = bytes_of(budget, choice.exact_bytes);
  size_t least = std::numeric_limits<size_t>::max();
  const Preset* smallest = nullptr;
  std::vector<Fitting> fitting;
  for (const Preset* p : nearest(o.context)) {
    o.policy = Policy::parse(p->policy);
    size_t bytes = 0;
    try {
      bytes = estimate_ledger(config, o, o.context).cache_bytes();
    } catch (const Error& e) {
      // A codec for other head sizes, or a share of a short context that is less than a row.
      if (e.code() != ErrorCode::kUnsupported && e.code() != ErrorCode::kInvalidArgument) throw;
      continue;
    }
    if (bytes < least) least = bytes, smallest = p;
    if (bytes > choice.budget_bytes) continue;
    fitting.push_back({p, bytes});
    choice.best_facts = std::max(choice.best_facts, p->facts);
  }
  if (goal == PresetGoal::kFacts && !fitting.empty() && choice.best_facts < 0)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("auto: no policy of {} that fits was measured on facts; choose for "
                            "text, or make a table with tasks",
                            name_));
  if (!fitting.empty()) {
    const Fitting& best = best_of(fitting, goal, choice.best_facts);
    choice.policy = Policy::parse(best.preset->policy), choice.measured = *best.preset;
    choice.bytes = best.bytes, choice.goal = goal, choice.fitting = fitting.size();
    return choice;
  }
  if (smallest == nullptr)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("auto: none of {} can be had with this model at {} tokens", name_, o.context));
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("auto: a budget of {} ({}) is below the least of {}: {} takes up to {} "
                          "at {} tokens; raise --kv-budget, or name a policy yourself",
                          budget, mib(choice.budget_bytes), name_, smallest->policy, mib(least),
                          o.context));
}

}  // namespace pith
