#include "pith_tools/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "pith/error.h"
#include "tools/eval/layer_forms.h"
#include "tools/eval/tune_measure.h"

namespace pith {
namespace {

constexpr double kSlack = 1e-6;  // bits: what a choice may take more than asked

class Tuner {
 public:
  Tuner(const std::shared_ptr<const Model>& model, std::span<const int32_t> text,
        const TuneOptions& o, const Progress& progress)
      : o_(o),
        heads_(static_cast<size_t>(model->config().kv_heads)),
        measure_(model, text, o, progress) {
    result_.window = measure_.window();
    losses_.seed = o.session.seed;
    std::vector<double> bits;  // at most
    for (const std::string& form : o.forms.empty() ? TuneOptions::standard_forms() : o.forms) {
      const Policy policy = one_rule(form);
      std::vector<bool> layers(static_cast<size_t>(model->config().layers), true);
      try {
        bits.push_back(most_bits(policy, o.session.device, *model));
      } catch (const Error& e) {
        // Of the standard ones those that this model or device cannot have are not there.
        if (!o.forms.empty() || e.code() != ErrorCode::kUnsupported) throw;
        for (size_t l = 0; l < layers.size(); ++l) layers[l] = possible(form, l, *model);
        if (std::ranges::find(layers, true) == layers.end()) continue;
        bits.push_back(most_bits(policy, Device::kCpu, *model));
      }
      losses_.forms.push_back(policy);
      forms_.push_back(policy.to_string());
      there_.push_back(std::move(layers));
    }
    if (forms_.empty())
      throw Error(ErrorCode::kUnsupported,
                  "none of the standard forms is possible for this model; name others");
    losses_.reference = nearest(bits);
    measure_.expect(forms_.size(), 2 * o.bits.size());
  }

  std::optional<TuneResult> run() {
    const auto losses = measure_.losses(losses_, [&](const auto& bits) {
      set_bits(bits);
      for (const double asked : o_.bits) choose_forms(units_, asked);  // refused at once
    });
    if (!losses) return std::nullopt;
    for (size_t h = 0; h < units_.size(); ++h) {
      result_.heads.push_back({h / heads_, h % heads_, losses->alone[h], {}});
      for (size_t f = 0; f < forms_.size(); ++f)
        units_[h].losses[f] =
            losses->alone[h][f].text + o_.answer_weight * losses->alone[h][f].answers;
    }
    for (size_t f = 0; f < forms_.size(); ++f) result_.forms.push_back(form_alone(f));
    if (!find() || !report()) return std::nullopt;
    return std::move(result_);
  }

 private:
  static Policy one_rule(const std::string& form) {
    Policy policy = Policy::parse(form);
    if (policy.rules.size() > 1)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' says itself which layers it is for; a form is one policy for "
                              "any layer",
                              form));
    if (policy.prompt != PromptReading::kChunks)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' says how prompts are read, which is of a whole policy and not "
                              "of a form; leave prompt= out",
                              form));
    return policy;
  }

  double most_bits(const Policy& policy, Device device, const Model& model) const {
    StandaloneOptions session = o_.session;
    session.policy = policy, session.device = device;
    double most = 0;
    // Shares of a sample may be too few rows for what shares of the text are enough for.
    for (const size_t context : {measure_.shortest(), measure_.window()}) {
      session.context = context;
      most = estimate_ledger(model.config(), session, context).effective_bits();
    }
    return most;
  }

  /// Whether one layer may have a form that not all may.
  bool possible(const std::string& form, size_t layer, const Model& model) const {
    try {
      most_bits(Policy::parse(fmt::format("exact;layers={}:{}", layer, form)), o_.session.device,
                model);
      return true;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kUnsupported) throw;
      return false;
    }
  }

  /// The place of those bits that are nearest to the bits asked for, by ratio.
  size_t nearest(const std::vector<double>& bits) const {
    double wanted = 0;
    for (const double asked : o_.bits) wanted += std::log(asked);
    wanted /= static_cast<double>(o_.bits.size());
    const auto at = std::ranges::min_element(
        bits, {}, [&](double b) { return std::abs(std::log(b) - wanted); });
    return static_cast<size_t>(at - bits.begin());
  }

  void set_bits(const std::vector<std::vector<double>>& of_layers) {
    for (size_t l = 0; l < of_layers.size(); ++l) {
      FormUnit unit{std::vector<double>(forms_.size()), of_layers[l]};
      for (size_t f = 0; f < forms_.size(); ++f)
        if (!there_[f][l]) unit.bits[f] = kNotThere;
      units_.insert(units_.end(), heads_, unit);
    }
  }

  /// A form in all heads that may have it.
  TunedForm form_alone(size_t f) const {
    TunedForm form{forms_[f], 0, {}};
    double count = 0;
    for (size_t h = 0; h < units_.size(); ++h) {
      if (units_[h].bits[f] == kNotThere) continue;
      form.bits += units_[h].bits[f];
      form.alike.text += result_.heads[h].alone[f].text;
      form.alike.answers += result_.heads[h].alone[f].answers;
      ++count;
    }
    form.bits /= count;
    return form;
  }

  TuneLoss sum_of(const std::vector<size_t>& chosen) const {
    TuneLoss sum;
    for (size_t h = 0; h < chosen.size(); ++h) {
      const TuneLoss& loss = result_.heads[h].alone[chosen[h]];
      sum.text += loss.text, sum.answers += loss.answers;
    }
    return sum;
  }

  /// A policy for each number of bits. Forms beside each other may take more than alone (heads that
  /// share a table share it with fewer), so that what is found is measured, and found again for
  /// fewer until it fits. False if told to stop.
  bool find() {
    const double least = least_bits(units_);
    std::vector<double> allowed = o_.bits;
    std::vector<std::vector<size_t>> chosen(allowed.size());
    std::vector<std::string> found(allowed.size());
    std::vector<TuneMeasured> measured;
    for (bool fits = false; !fits;) {
      for (size_t b = 0; b < allowed.size(); ++b) {
        chosen[b] = choose_few_forms(units_, allowed[b], o_.form_cost);
        found[b] = Policy::parse(policy_of(forms_, chosen[b], heads_)).to_string();
      }
      auto runs = measure_.run(found, false);
      if (!runs) return false;
      measured = *std::move(runs);
      fits = true;
      for (size_t b = 0; b < allowed.size(); ++b) {
        const double over = measured[b].bits - o_.bits[b];
        if (over <= kSlack) continue;
        const double expected = bits_of(units_, chosen[b]);
        if (expected <= least)
          throw Error(
              ErrorCode::kInvalidArgument,
              fmt::format("{:.3g} bits per number: the smallest forms together take {:.3g}; "
                          "give more bits or smaller forms",
                          o_.bits[b], measured[b].bits));
        allowed[b] = std::max(expected - over, least);
        fits = false;
      }
    }
    for (size_t b = 0; b < chosen.size(); ++b) {
      for (size_t h = 0; h < chosen[b].size(); ++h) result_.heads[h].chosen.push_back(chosen[b][h]);
      TunedPolicy& p = result_.found.emplace_back();
      p.preset.policy = found[b];
      p.predicted = sum_of(chosen[b]);
      p.chosen_on = {measured[b].text.mean, measured[b].answers.mean};
    }
    return true;
  }

  /// False if told to stop.
  bool report() {
    std::vector<std::string> policies;
    for (const TunedPolicy& p : result_.found) policies.push_back(p.preset.policy);
    const auto measured = measure_.run(policies, true);
    if (!measured) return false;
    for (size_t i = 0; i < policies.size(); ++i) {
      const TuneMeasured& m = (*measured)[i];
      TunedPolicy& p = result_.found[i];
      p.preset = {policies[i], "", result_.window, 1, m.text.mean, m.text.error, m.bits};
      p.answers = m.answers.mean, p.answers_error = m.answers.error;
    }
    return true;
  }

  const TuneOptions& o_;
  size_t heads_;
  TuneMeasure measure_;
  HeadLossOptions losses_;
  std::vector<std::string> forms_;
  std::vector<std::vector<bool>> there_;  // [forms][L]
  std::vector<FormUnit> units_;           // [L * G]
  TuneResult result_;
};

}  // namespace

const std::vector<std::string>& TuneOptions::standard_forms() {
  static const std::vector<std::string> kForms = [] {
    std::vector<std::string> forms;
    // Percent of the rows that are heavy and in the coreset, and how a row's weight w counts: w^0.5
    // lost less in nearly every head that was measured, whole weights where many rows are kept.
    const auto add = [&](const char* keys, const char* weight, const char* values,
                         std::initializer_list<std::array<double, 2>> shares) {
      for (const auto& [heavy, coreset] : shares)
        forms.push_back(fmt::format(
            "express(heavy={:g}%,heavy_keys=0.15,s={:g}%{})+k:{}+v:turboquant(bits={}),window=32",
            heavy, coreset, weight, keys, values));
    };
    constexpr const char *kRoot = ",weight=0.5", *kWhole = "";
    const char* keys = "turboquant(bits=4)";
    add(keys, kRoot, "3",
        {{1.6, 1.6}, {3.2, 1.6}, {4.8, 1.6}, {6.8, 1.6}, {9.6, 1.6}, {12.5, 6.4}});
    add(keys, kWhole, "3", {{9.6, 1.6}, {12.5, 6.4}, {25, 12.8}});
    // A mean before RoPE takes outlying channels out; so do keys of 8 bits.
    keys = "turboquant(bits=4,center=32,pre_rope=true)";
    add(keys, kRoot, "3",
        {{3.2, 1.6}, {4.8, 3.2}, {6.8, 3.2}, {9.6, 3.2}, {12.5, 6.4}, {25, 12.8}});
    add(keys, kRoot, "2", {{3.2, 1.6}});
    add("int8", kRoot, "3", {{3.2, 1.6}, {6.8, 1.6}});
    add("int8", kWhole, "3", {{12.5, 6.4}, {25, 12.8}});
    // Or the head's own directions, where enough rows share the tables.
    add("kvtc(bits=2.25)", kRoot, "3", {{16, 6.4}, {25, 12.8}, {40, 12.8}});
    add("kvtc(bits=2.25)", kWhole, "3", {{16, 6.4}, {25, 12.8}});
    add("kvtc(bits=3.25)", kRoot, "3", {{25, 12.8}});
    for (const char* codec :
         {"k:turboquant(bits=3,center=128,pre_rope=true)+v:turboquant(bits=2)",
          "k:turboquant(bits=4,center=128,pre_rope=true)+v:turboquant(bits=2)",
          "k:turboquant(bits=3,center=128)+v:turboquant(bits=2)", "turboquant(bits=3,center=128)",
          "k:turboquant(bits=4,center=128)+v:turboquant(bits=3)", "turboquant(bits=4,center=128)",
          "k:kvtc(bits=2.25)+v:turboquant(bits=2)", "k:kvtc(bits=2.25)+v:turboquant(bits=3)",
          "k:kvtc(bits=3.25)+v:turboquant(bits=3)", "k:kvtc(bits=4.25)+v:turboquant(bits=4)",
          "kivi(bits=2)", "kivi(bits=4)", "k:int8+v:turboquant(bits=3)", "int8"})
      forms.push_back(fmt::format("exact+{},window=32", codec));
    return forms;
  }();
  return kForms;
}

std::optional<TuneResult> tune(const std::shared_ptr<const Model>& model,
                               std::span<const int32_t> text, const TuneOptions& options,
                               const Progress& progress) {
  return Tuner(model, text, options, progress).run();
}

}  // namespace pith
