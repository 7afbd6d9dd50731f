// The C face: the list of methods, what policies cost, and presets.

#include "pith/policy.h"

#include <map>
#include <mutex>

#include "c/c_api.h"
#include "methods/own_names.h"
#include "pith/presets.h"

namespace pith::c_api {
namespace {

/// The methods, which programs add to. Texts are handed out, and live as long as the
/// library: an info that was listed once stays where it is.
class MethodList {
 public:
  std::vector<const MethodInfo*> all() {
    const std::lock_guard turn(listing_);
    // None is ever taken out: the list is as it was unless there are more.
    const size_t added = added_methods();
    if (!list_.empty() && added == added_) return list_;
    list_.clear();
    for (const MethodInfo& info : methods())
      list_.push_back(&kept_.try_emplace(info.name, info).first->second);
    added_ = added;
    return list_;
  }

 private:
  std::mutex listing_;
  size_t added_ = 0;  // by programs, when list_ was made
  std::vector<const MethodInfo*> list_;
  std::map<std::string, const MethodInfo> kept_;
};

std::vector<const MethodInfo*> all_methods() {
  static MethodList list;
  return list.all();
}

const Presets& all_presets() {
  static const Presets all = Presets::built_in();
  return all;
}

template <class T>
const T& at(const std::vector<T>& all, size_t index, const char* what) {
  if (index >= all.size())
    throw Error(ErrorCode::kInvalidArgument, std::string(what) + " " + std::to_string(index) +
                                                 "; this build has " + std::to_string(all.size()));
  return all[index];
}

pith_preset_request request_defaults() {
  return {sizeof(pith_preset_request), nullptr, nullptr, PITH_CPU, PITH_GOAL_BOTH};
}

/// The number of a measured policy in the table.
size_t number_of(const Preset& preset) {
  const std::vector<Preset>& all = all_presets().all();
  const auto found = std::ranges::find_if(all, [&](const Preset& p) {
    return p.policy == preset.policy && p.model == preset.model && p.context == preset.context;
  });
  return static_cast<size_t>(found - all.begin());
}

}  // namespace
}  // namespace pith::c_api

using namespace pith::c_api;  // NOLINT(google-build-using-namespace): all functions are of it

pith_status pith_policy_text(const char* policy, const char* budget, char* text, size_t capacity,
                             size_t* written, pith_error* error) {
  return guarded(error, [&] {
    pith::Policy parsed = pith::Policy::parse(&given(policy, "the policy"));
    if (budget) parsed.set_budget(budget);
    hand_out(parsed.to_string(), text, capacity, written, "bytes");
  });
}

size_t pith_method_count(void) { return all_methods().size(); }

pith_status pith_method_get(size_t index, pith_method* method, pith_error* error) {
  return guarded(error, [&] {
    const pith::MethodInfo& m = *at(all_methods(), index, "method");
    write(method,
          {.size = sizeof(pith_method),
           .name = m.name.c_str(),
           .summary = m.summary.c_str(),
           .source = m.source.c_str(),
           .size_parameter = m.size_parameter.c_str(),
           .parameters = m.parameters.size(),
           .is_selector = m.is_selector,
           .on_gpu = m.on_gpu,
           .needs_mass = m.needs_mass,
           .needs_queries = m.needs_queries,
           .needs_rope = m.needs_rope,
           .weighted = m.weighted,
           .ragged = m.ragged,
           .shares = m.shares,
           .keys_before_rope = m.keys_before_rope,
           .block_rows = m.block_rows,
           .learns_rows = m.learns_rows,
           .needs = m.needs.c_str(),
           .offers = m.offers.c_str()},
          "the place for the method");
  });
}

pith_status pith_method_parameter(size_t method, size_t index, pith_parameter* parameter,
                                  pith_error* error) {
  return guarded(error, [&] {
    const pith::ParameterInfo& p =
        at(at(all_methods(), method, "method")->parameters, index, "parameter");
    write(parameter,
          {sizeof(pith_parameter), p.name.c_str(), p.default_value.c_str(), p.help.c_str()},
          "the place for the parameter");
  });
}

pith_status pith_estimate(const pith_model* model, const pith_session_options* options,
                          int32_t device, size_t tokens, pith_ledger* ledger, pith_error* error) {
  return guarded(error, [&] {
    write(ledger,
          ledger_of(pith::estimate_ledger(given(model, "the model").model->config(),
                                          options_of(options), tokens, device_of(device))),
          "the place for the ledger");
  });
}

size_t pith_preset_count(void) { return all_presets().all().size(); }

pith_status pith_preset_get(size_t index, pith_preset* preset, pith_error* error) {
  return guarded(error, [&] {
    const pith::Preset& p = at(all_presets().all(), index, "preset");
    write(preset,
          {.size = sizeof(pith_preset),
           .policy = p.policy.c_str(),
           .model = p.model.c_str(),
           .context = p.context,
           .seeds = p.seeds,
           .divergence = p.divergence,
           .divergence_error = p.divergence_error,
           .bits = p.bits,
           .facts = p.facts},
          "the place for the preset");
  });
}

void pith_preset_defaults(pith_preset_request* request, size_t size) {
  fill(request, size, request_defaults());
}

pith_status pith_preset_choose(const pith_model* model, const pith_preset_request* request,
                               pith_preset_choice* choice, pith_error* error) {
  return guarded(error, [&] {
    static_assert(PITH_GOAL_BOTH == static_cast<int>(pith::PresetGoal::kBoth));
    const pith_preset_request r =
        read(&given(request, "what is asked for"), request_defaults(), "what is asked for");
    pith::StandaloneOptions options;
    static_cast<pith::SessionOptions&>(options) = options_of(r.session);
    options.device = device_of(r.device);
    const pith::PresetChoice found = all_presets().choose(
        given(model, "the model").model->config(), options, &given(r.budget, "the budget"),
        static_cast<pith::PresetGoal>(one_of(r.goal, 3, "goal")));
    pith_preset_choice to = {.size = sizeof(pith_preset_choice),
                             .preset = number_of(found.measured),
                             .fitting = found.fitting,
                             .bytes = found.bytes,
                             .budget_bytes = found.budget_bytes,
                             .exact_bytes = found.exact_bytes,
                             .context = found.context,
                             .best_facts = found.best_facts,
                             .why = {}};
    const std::string why = found.why();
    why.copy(to.why, sizeof(to.why) - 1);
    write(choice, to, "the place for the choice");
  });
}
