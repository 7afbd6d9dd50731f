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

/// Below so many tokens a share may be less than the sink and window of any policy.
constexpr size_t kShortContext = 2048;

Preset preset_from(const json& line) {
  Preset p;
  p.policy = line.at("policy"), p.model = line.at("model"), p.bits = line.at("bits");
  p.context = whole_number(line, "context"), p.seeds = whole_number(line, "seeds");
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

namespace {

/// A divergence from exact, in nats per token, in words about answers.
const char* in_words(double divergence, double facts) {
  if (divergence == 0) return "what exact answers";
  if (facts >= 0 && facts < 0.75) return "answers close to exact's that may miss single facts";
  if (divergence < 0.005) return "what exact answers, but for a word here and there";
  if (divergence < 0.03) return "answers very close to exact's";
  if (divergence < 0.15) return "answers close to exact's; a detail may be lost";
  if (divergence < 0.5) return "answers that often differ from exact's";
  return "answers that differ much from exact's";
}

}  // namespace

std::string PresetChoice::why() const {
  const double share = 100 * static_cast<double>(bytes) / static_cast<double>(exact_bytes);
  const std::string where = fmt::format("{} at {} tokens", measured.model, measured.context);
  const std::string first = fmt::format("{} of cache at most for {} tokens instead of {} ({:.0f}%)",
                                        mib(bytes), context, mib(exact_bytes), share);
  if (!measured.model_fingerprint.empty() || measured.policy == "exact")
    return fmt::format("{}\nexpect {}: KL {:.2g}{}", first,
                       in_words(measured.divergence, measured.facts), measured.divergence,
                       measured.policy == "exact" ? "" : ", measured on " + where);
  return fmt::format("{}\nnot measured on this model; KL {:.2g} at most on {}", first,
                     measured.divergence, where);
}

std::string PresetChoice::details() const {
  std::string among = "the least divergence";
  if (goal == PresetGoal::kFacts) among = "the most facts found";
  if (goal == PresetGoal::kBoth && best_facts >= 0)
    among =
        fmt::format("the least divergence beside 3/4 of the facts that the best found ({:.0f}%)",
                    100 * best_facts);
  std::string text = fmt::format(
      "{}; of {} that fit {} it had {}: KL {:.2g} ±{:.1g} nats a token "
      "at {:.2f} bits a number",
      measured.policy, fitting, mib(budget_bytes), among, measured.divergence,
      measured.divergence_error, measured.bits);
  if (measured.facts >= 0) text += fmt::format(", {:.0f}% of facts found", 100 * measured.facts);
  return text + fmt::format(", on {} at {} tokens, {} {}", measured.model, measured.context,
                            measured.seeds, measured.seeds == 1 ? "seed" : "seeds");
}

Presets Presets::built_in(const std::string& fingerprint) {
  std::vector<Preset> all;
  for (const std::string_view text : kPresetsOfModels) {
    const Presets own = parse(text, "the built-in presets");
    if (!fingerprint.empty() && own.model_fingerprint() == fingerprint)
      all.insert(all.end(), own.all().begin(), own.all().end());
  }
  if (!all.empty()) return of(std::move(all), "the built-in presets of this model");
  return parse(kPresetsForAny.front(), "the built-in presets for any model");
}

Presets Presets::of(std::vector<Preset> presets, const std::string& name) {
  Presets out;
  out.name_ = name;
  if (!presets.empty()) out.model_fingerprint_ = presets.front().model_fingerprint;
  out.presets_ = std::move(presets);
  return out;
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
      std::string& only = presets.presets_.back().model_fingerprint;
      only = j.value("model_fingerprint", std::string());
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

/// The presets that fit a budget, by rising divergence, and the rest of a choice.
struct Presets::Fitting {
  struct One {
    const Preset* preset;
    size_t bytes;
  };
  std::vector<One> all;
  PresetChoice choice;  // with what does not depend on which is the best
};

Presets::Fitting Presets::fit(const ModelConfig& config, const StandaloneOptions& options,
                              const std::string& budget) const {
  StandaloneOptions o = options;
  if (o.context == 0) o.context = static_cast<size_t>(config.context);
  Fitting found;
  PresetChoice& choice = found.choice;
  choice.context = o.context;
  o.policy = Policy::parse("exact");
  choice.exact_bytes = estimate_ledger(config, o, o.context).cache_bytes();
  choice.budget_bytes = bytes_of(budget, choice.exact_bytes);
  size_t least = std::numeric_limits<size_t>::max();
  const Preset* smallest = nullptr;
  for (const Preset* p : nearest(o.context)) {
    o.policy = Policy::parse(p->policy);
    size_t bytes = 0;
    try {
      bytes = estimate_ledger(config, o, o.context).cache_bytes();
    } catch (const Error& e) {
      // A codec for other head sizes, or rules for layers that this model does not have.
      if (e.code() != ErrorCode::kUnsupported && e.code() != ErrorCode::kInvalidArgument) throw;
      continue;
    }
    if (bytes < least) least = bytes, smallest = p;
    if (bytes > choice.budget_bytes) continue;
    found.all.push_back({p, bytes});
    choice.best_facts = std::max(choice.best_facts, p->facts);
  }
  choice.fitting = found.all.size();
  if (!found.all.empty()) return found;
  if (smallest == nullptr)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("auto: none of {} can be had with this model at {} tokens", name_, o.context));
  // Until a text has grown sink, window and least sizes take more than any share of it.
  const bool share = Budget::parse(budget).unit == Budget::Unit::kPercent;
  if (share && o.context < kShortContext) {
    found.all.push_back({smallest, least});
    choice.fitting = 1, choice.best_facts = smallest->facts;
    return found;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("auto: a budget of {} ({}) is below the least of {}: {} at {} tokens, "
                          "{:.1f}% of what exact takes; raise --kv-budget, or name a policy "
                          "yourself",
                          budget, mib(choice.budget_bytes), name_, mib(least), o.context,
                          std::ceil(1000 * static_cast<double>(least) /
                                    static_cast<double>(choice.exact_bytes)) /
                              10));
}

PresetChoice Presets::choose(const ModelConfig& config, const StandaloneOptions& options,
                             const std::string& budget, PresetGoal goal) const {
  Fitting found = fit(config, options, budget);
  PresetChoice choice = std::move(found.choice);
  if (goal == PresetGoal::kFacts && choice.best_facts < 0)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("auto: no policy of {} that fits was measured on facts; choose for "
                            "text, or make a table with tasks",
                            name_));
  const double enough = goal == PresetGoal::kText || choice.best_facts < 0 ? -1
                        : goal == PresetGoal::kFacts                       ? choice.best_facts
                                                     : 0.75 * choice.best_facts;
  const auto& best = *std::ranges::find_if(
      found.all, [&](const Fitting::One& f) { return f.preset->facts >= enough; });
  choice.policy = Policy::parse(best.preset->policy), choice.measured = *best.preset;
  choice.bytes = best.bytes, choice.goal = goal;
  return choice;
}

std::vector<Preset> Presets::fitting(const ModelConfig& config, const StandaloneOptions& options,
                                     const std::string& budget) const {
  std::vector<Preset> all;
  const Fitting found = fit(config, options, budget);
  for (const Fitting::One& f : found.all) all.push_back(*f.preset);
  return all;
}

}  // namespace pith
