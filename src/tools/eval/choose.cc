// Figures of the model itself come first, then those of an earlier screen or a new one, then those
// of all models.

#include "pith_tools/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "pith/error.h"
#include "pith_tools/screen.h"

namespace pith {
namespace {

constexpr size_t kCandidates = 3;  // largest that fit, of which the best on this model is taken

constexpr std::pair<std::string_view, std::string_view> kWords[] = {
    {"half", "50%"}, {"quarter", "25%"}, {"tenth", "10%"}};

Presets from_file(const std::filesystem::path& file, const std::string& fingerprint) {
  Presets presets = Presets::read(file);
  if (const std::string& only = presets.model_fingerprint(); !only.empty() && only != fingerprint)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("auto: {} was tuned for another model, or for this one under another "
                            "file's name; tune it again with 'pith tune', or leave --presets out",
                            file.string()));
  return presets;
}

/// The candidates with figures of this model, all of them or none.
std::vector<Preset> figures_of(const std::vector<Preset>& candidates,
                               const std::string& fingerprint, const ChooseOptions& o) {
  if (candidates.front().policy == "exact") return {};  // needs no figures
  std::vector<Preset> own = screened(fingerprint), found;
  const auto pick = [&] {
    found.clear();
    for (const Preset& c : candidates)
      for (const Preset& p : own)
        if (p.policy == c.policy) found.push_back(p);
    return found.size() == candidates.size();
  };
  if (pick()) return found;
  if (!o.measure) return {};
  std::vector<std::string> missing;
  for (const Preset& c : candidates)
    if (std::ranges::none_of(found, [&](const Preset& p) { return p.policy == c.policy; }))
      missing.push_back(c.policy);
  auto all = o.measure(missing);
  if (!all) return {};
  own = *std::move(all);
  return pick() ? found : std::vector<Preset>();
}

/// Among the policies that are safe elsewhere.
PresetChoice for_any(const ModelConfig& config, const std::string& fingerprint,
                     const ChooseOptions& o) {
  const Presets any = Presets::built_in();
  std::vector<Preset> candidates = any.fitting(config, o.session, o.budget);
  std::ranges::stable_sort(candidates,
                           [](const Preset& a, const Preset& b) { return a.bits > b.bits; });
  if (candidates.size() > kCandidates) candidates.resize(kCandidates);
  std::vector<Preset> own = figures_of(candidates, fingerprint, o);
  const Presets from =
      own.empty() ? any : Presets::of(std::move(own), "what was measured on this model");
  return from.choose(config, o.session, o.budget, o.goal);
}

size_t least_bytes(const Presets& presets, const ModelConfig& config, StandaloneOptions session) {
  size_t least = std::numeric_limits<size_t>::max();
  for (const Preset& p : presets.fitting(config, session, "1000000GiB")) {
    session.policy = Policy::parse(p.policy);
    const Ledger most = estimate_ledger(config, session, session.context);
    least = std::min<size_t>(least, most.cache_bytes());
  }
  return least;
}

}  // namespace

std::string memory_budget(std::string_view word) {
  for (const auto& [name, budget] : kWords)
    if (word == name) return std::string(budget);
  return std::string(word);
}

std::vector<std::string> memory_words() {
  std::vector<std::string> words;
  for (const auto& [word, share] : kWords) words.emplace_back(word);
  return words;
}

bool says_memory(std::string_view text) {
  const std::string budget = memory_budget(text);
  // No policy begins with a digit.
  return budget != text || (!text.empty() && text[0] >= '0' && text[0] <= '9');
}

size_t read_in_all(size_t prompt, int64_t predict, size_t context) {
  constexpr size_t kLeast = 256;  // a quarter of a few words is no cache to write an answer with
  const size_t all = prompt + static_cast<size_t>(std::max<int64_t>(predict, 0));
  return std::min(std::max(all, kLeast), context);
}

PresetChoice choose_policy(const ChooseOptions& o) {
  const std::string fingerprint = model_fingerprint(o.model);
  const ModelConfig config = read_model_config(o.model);
  if (!o.presets.empty())
    return from_file(o.presets, fingerprint).choose(config, o.session, o.budget, o.goal);
  const Presets known = Presets::built_in(fingerprint);
  if (known.model_fingerprint().empty()) return for_any(config, fingerprint, o);
  try {
    return known.choose(config, o.session, o.budget, o.goal);
  } catch (const Error& e) {
    // Where nothing that was measured on this model is as small, something else may be.
    const auto others_are_smaller = [&] {
      return least_bytes(Presets::built_in(), config, o.session) <
             least_bytes(known, config, o.session);
    };
    const bool no_facts = e.code() == ErrorCode::kUnsupported;
    if (!no_facts && (e.code() != ErrorCode::kInvalidArgument || !others_are_smaller())) throw;
  }
  return for_any(config, fingerprint, o);
}

}  // namespace pith
