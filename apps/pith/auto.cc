// `auto` and --kv: reads them, measures a model without figures (pith_tools/screen.h) and says
// what pith_tools/choose.h chose.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <filesystem>

#include "console.h"
#include "engine.h"
#include "interrupt.h"
#include "pith/error.h"
#include "pith/nearest.h"
#include "pith_tools/choose.h"
#include "pith_tools/screen.h"

namespace pith::cli {
namespace {

constexpr const char* kAuto = "auto";

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "auto: " + why);
}

void refuse_size(const std::string& policy) {
  if (!says_memory(policy)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--kv-policy {}: this is a size, not a policy; --kv {} chooses the best "
                          "policy for it",
                          policy, policy));
}

void refuse_word(const std::string& memory) {
  if (says_memory(memory) || memory == "exact" ||
      !std::isalpha(static_cast<unsigned char>(memory[0])))
    return;
  std::vector<std::string> words = memory_words();
  words.insert(words.begin(), "exact");
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--kv {}: this is no size{}; use {}, a share (30%) or bytes (16MiB); "
                          "--kv-policy takes a policy",
                          memory, did_you_mean(memory, words), fmt::join(words, ", ")));
}

/// --kv, or a budget without a policy, is auto.
void read_memory(PolicyOptions& o, std::vector<std::string>* many) {
  refuse_size(o.policy);
  if (many != nullptr) std::ranges::for_each(*many, refuse_size);
  const bool named = o.policy_given || o.policy != "exact" || (many != nullptr && !many->empty());
  if (!o.memory.empty()) {
    if (named || !o.budget.empty())
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--kv {} stands for policy and budget; leave out --kv-policy "
                              "and --kv-budget, or --kv",
                              o.memory));
    refuse_word(o.memory);
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

/// A figure about a model is known of it, measured here, or of other models and says so.
class Chooser {
 public:
  Chooser(const ModelOptions& o, const AutoPlace& place) : o_(o), place_(place) {
    choose_.model = o.model;
    choose_.budget = o.policy.budget;
    choose_.presets = o.policy.presets;
    choose_.goal = o.policy.goal == "text"    ? PresetGoal::kText
                   : o.policy.goal == "facts" ? PresetGoal::kFacts
                                              : PresetGoal::kBoth;
    choose_.session.context = static_cast<size_t>(o.context > 0 ? o.context : place.context);
    choose_.session.threads = 1;
    if (place.screens && !o.policy.no_screen)
      choose_.measure = [this](std::span<const std::string> policies) { return measure(policies); };
  }
  Chooser(const Chooser&) = delete;
  Chooser& operator=(const Chooser&) = delete;

  PresetChoice choose() const { return choose_policy(choose_); }

 private:
  std::optional<std::vector<Preset>> measure(std::span<const std::string> policies) const {
    say(fmt::format(
        "pith: auto has no figures of this model: it measures {} {} once, for a minute or two "
        "(Ctrl-C or --no-screen: what is safe on others)",
        policies.size(), policies.size() == 1 ? "policy" : "policies"));
    const auto model = place_.model ? place_.model : load_model(o_);
    const auto keeper = keep_weights(model, o_);
    ScreenOptions s;
    s.model = model_name(o_.model), s.fingerprint = model_fingerprint(o_.model);
    s.session.threads = worker_threads(o_);
    s.session.isa = o_.isa, s.session.device = o_.device;
    ProgressBar bar("measuring", "tokens", o_.json);
    auto all = screen(model, policies, s, bar.callback());
    bar.finish();
    if (all) return all;
    say("pith: not measured: it was ended, or would take minutes more on this machine");
    clear_interrupt();
    return std::nullopt;
  }

  const ModelOptions& o_;
  const AutoPlace& place_;
  ChooseOptions choose_;
};

}  // namespace

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
