// `auto`: the policy that is measured best on this model for a number of bytes. A model without
// figures is measured first (pith_tools/screen.h), or gets what was safe on all models measured so
// far.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "console.h"
#include "engine.h"
#include "interrupt.h"
#include "pith/error.h"
#include "pith/presets.h"
#include "pith_tools/catalogue.h"
#include "pith_tools/screen.h"

namespace pith::cli {
namespace {

constexpr const char* kAuto = "auto";
constexpr size_t kCandidates = 3;  // largest that fit, of which the best on this model is taken

constexpr std::pair<const char*, const char*> kWords[] = {
    {"half", "50%"}, {"quarter", "25%"}, {"tenth", "10%"}};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "auto: " + why);
}

/// --kv, or a budget without a policy, is auto.
void read_memory(PolicyOptions& o, std::vector<std::string>* many) {
  const bool named = o.policy_given || o.policy != "exact" || (many != nullptr && !many->empty());
  if (!o.memory.empty()) {
    if (named || !o.budget.empty())
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--kv {} says policy and budget in one word; leave out --kv-policy "
                              "and --kv-budget, or --kv",
                              o.memory));
    if (o.memory != "exact") o.budget = memory_budget(o.memory);
    o.memory.clear();
  }
  if (named || o.budget.empty()) return;
  if (many != nullptr)
    many->emplace_back(kAuto);
  else
    o.policy = kAuto;
}

void check(const PolicyOptions& o) {
  if (o.budget.empty())
    refuse("it needs --kv-budget, in MiB (16MiB) or per cent of the exact cache's bytes (25%)");
  if (o.sink >= 0 || o.window >= 0 || !o.cache_type_k.empty() || !o.cache_type_v.empty())
    refuse(
        "it chooses sink, window and storage itself; leave out --kv-sink-tokens, --kv-window, "
        "-ctk and -ctv");
}

Presets from_file(const std::string& file, const std::string& fingerprint) {
  Presets presets = Presets::read(file);
  if (const std::string& only = presets.model_fingerprint(); !only.empty() && only != fingerprint)
    refuse(fmt::format(
        "{} was tuned for another model, or for this one under another file's name; tune it again "
        "with 'pith tune', or leave --presets out",
        file));
  return presets;
}

/// What is said of a model is known of it, or is measured here, or is of others and says so.
class Chooser {
 public:
  Chooser(const ModelOptions& o, const AutoPlace& place)
      : o_(o), place_(place), fingerprint_(model_fingerprint(o.model)) {
    session_.context = static_cast<size_t>(o.context > 0 ? o.context : place.context);
    session_.threads = 1;
  }

  PresetChoice choose() const {
    const ModelConfig config = read_model_config(o_.model);
    const std::string& file = o_.policy.presets;
    const Presets known =
        file.empty() ? Presets::built_in(fingerprint_) : from_file(file, fingerprint_);
    const PresetGoal goal = o_.policy.goal == "text"    ? PresetGoal::kText
                            : o_.policy.goal == "facts" ? PresetGoal::kFacts
                                                        : PresetGoal::kBoth;
    if (!file.empty()) return known.choose(config, session_, o_.policy.budget, goal);
    try {
      if (!known.model_fingerprint().empty())
        return known.choose(config, session_, o_.policy.budget, goal);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kInvalidArgument) throw;  // nothing measured is as small
    }
    return for_any(config, goal);
  }

 private:
  /// Among the policies that are safe elsewhere.
  PresetChoice for_any(const ModelConfig& config, PresetGoal goal) const {
    const Presets any = Presets::built_in();
    std::vector<Preset> candidates = any.fitting(config, session_, o_.policy.budget);
    std::ranges::stable_sort(candidates,
                             [](const Preset& a, const Preset& b) { return a.bits > b.bits; });
    if (candidates.size() > kCandidates) candidates.resize(kCandidates);
    std::vector<Preset> own = figures_of(candidates);
    const Presets from =
        own.empty() ? any : Presets::of(std::move(own), "what was measured on this model");
    return from.choose(config, session_, o_.policy.budget, goal);
  }

  /// The candidates with figures of this model, all of them or none.
  std::vector<Preset> figures_of(const std::vector<Preset>& candidates) const {
    if (candidates.front().policy == "exact") return {};  // needs no figures
    std::vector<Preset> own = screened(fingerprint_), found;
    const auto pick = [&] {
      found.clear();
      for (const Preset& c : candidates)
        for (const Preset& p : own)
          if (p.policy == c.policy) found.push_back(p);
      return found.size() == candidates.size();
    };
    if (pick()) return found;
    if (!place_.screens || o_.policy.no_screen) return {};
    std::vector<std::string> missing;
    for (const Preset& c : candidates)
      if (std::ranges::none_of(found, [&](const Preset& p) { return p.policy == c.policy; }))
        missing.push_back(c.policy);
    own = measure(missing);
    return pick() ? found : std::vector<Preset>();
  }

  std::vector<Preset> measure(const std::vector<std::string>& policies) const {
    say(fmt::format(
        "pith: auto knows no figures of this model: it measures {} {} once, for a minute or two "
        "(Ctrl-C or --no-screen: what is safe on others)",
        policies.size(), policies.size() == 1 ? "policy" : "policies"));
    const auto model = place_.model ? place_.model : load_model(o_);
    const auto keeper = keep_weights(model, o_);
    ScreenOptions s;
    s.model = model_name(o_.model), s.fingerprint = fingerprint_;
    s.session.threads = worker_threads(o_);
    s.session.isa = o_.isa, s.session.device = o_.device;
    ProgressBar bar("measuring", "tokens", o_.json);
    auto all = screen(model, policies, s, bar.callback());
    bar.finish();
    if (all) return *std::move(all);
    say("pith: not measured: it was ended, or would take minutes more on this machine");
    clear_interrupt();
    return {};
  }

  const ModelOptions& o_;
  const AutoPlace& place_;
  std::string fingerprint_;
  StandaloneOptions session_;
};

}  // namespace

std::string memory_budget(const std::string& word) {
  for (const auto& [name, budget] : kWords)
    if (word == name) return budget;
  return word;
}

std::string model_name(const std::string& model) {
  const auto path = std::filesystem::absolute(model).lexically_normal();
  return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
}

void settle_auto(ModelOptions& o, std::vector<std::string>* many, const AutoPlace& place) {
  read_memory(o.policy, many);
  std::vector<std::string*> autos;
  if (o.policy.policy == kAuto) autos.push_back(&o.policy.policy);
  if (many != nullptr)
    for (std::string& policy : *many)
      if (policy == kAuto) autos.push_back(&policy);
  if (autos.empty()) {
    if (!o.policy.presets.empty()) refuse("--presets is for --kv-policy auto, which is not given");
    if (!o.policy.goal.empty()) refuse("--kv-goal is for --kv-policy auto, which is not given");
    return;
  }
  check(o.policy);
  const PresetChoice choice = Chooser(o, place).choose();
  const std::string why = choice.why();
  const size_t end = why.find('\n');
  say("pith: auto: " + why.substr(0, end));
  say("pith: " + why.substr(end + 1));
  if (o.policy.verbose) say("pith: " + choice.details());
  for (std::string* policy : autos) *policy = choice.measured.policy;
  o.policy.budget.clear();
}

}  // namespace pith::cli
