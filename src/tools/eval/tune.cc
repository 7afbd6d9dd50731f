#include "pith_tools/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "pith/error.h"
#include "tools/eval/layer_forms.h"
#include "tools/eval/tune_measure.h"

namespace pith {
namespace {

constexpr double kSlack = 1e-6;  // bits: what a choice may take more than asked

std::string alone(const TunedUnit& unit, const std::string& form) {
  return unit.head ? fmt::format("exact;layers={}/heads={}:{}", unit.layer, *unit.head, form)
                   : fmt::format("exact;layers={}:{}", unit.layer, form);
}

class Tuner {
 public:
  Tuner(const std::shared_ptr<const Model>& model, std::span<const int32_t> text,
        const TuneOptions& o, const Progress& progress)
      : o_(o),
        layers_(static_cast<size_t>(model->config().layers)),
        heads_(static_cast<size_t>(model->config().kv_heads)),
        measure_(model, text, o, progress) {
    for (const std::string& form : o.forms.empty() ? TuneOptions::standard_forms() : o.forms) {
      const Policy policy = Policy::parse(form);
      if (policy.rules.size() > 1)
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("'{}' says itself which layers it is for; a form is one policy for "
                                "any layer",
                                form));
      forms_.push_back({policy.to_string()});
      policies_.push_back(forms_.back().policy);
    }
    find_kinds();
    measure_.expect(2 * (forms_.size() + o.bits.size()) + 2 * kinds_.size() * layers_);
  }

  std::optional<TuneResult> run() {
    auto uniform = measure_.run(policies_, false);
    if (!uniform) return std::nullopt;
    uniform_ = *std::move(uniform);
    for (size_t f = 0; f < forms_.size(); ++f) forms_[f].bits = uniform_[f].bits;
    for (const double bits : o_.bits) choose_forms(forms_, {}, bits);  // refused at once
    for (Kind& kind : kinds_)
      for (const size_t form : forms_to_weigh(kind)) {
        kind.weighed.push_back({form, result_.weighed_in.size()});
        result_.weighed_in.push_back(policies_[form]);
      }
    for (size_t l = 0; l < layers_; ++l) result_.units.push_back({l, std::nullopt, {}, {}});
    if (!weigh(result_.units) || !split_heavy_layers()) return std::nullopt;
    const auto found = find();
    if (!found) return std::nullopt;
    if (!report(policies_, result_.forms) || !report(*found, result_.found)) return std::nullopt;
    return std::move(result_);
  }

 private:
  struct Weighed {
    size_t form, at;  // of forms_, of TunedUnit::alone
  };
  struct Kind {
    std::string name;
    std::vector<size_t> forms;
    std::vector<Weighed> weighed;  // one or two of its forms, that of fewer bits first
  };

  /// Forms that are alone of their kind go with the first: what a layer loses in one of them says
  /// something of the others too, and weighing takes as long as all else.
  void find_kinds() {
    std::vector<std::string> names;
    for (const std::string& policy : policies_) names.push_back(kind_of(policy));
    for (size_t f = 0; f < forms_.size(); ++f) {
      const std::string& name = names[f];
      const bool single = std::ranges::count(names, name) == 1;
      auto at = std::ranges::find(kinds_, name, &Kind::name);
      if (single && !kinds_.empty()) at = kinds_.begin();
      if (at == kinds_.end()) at = kinds_.insert(at, {name, {}, {}});
      at->forms.push_back(f);
    }
  }

  /// Of a kind's forms that whose bits are nearest to `wanted` times those asked for, by ratio.
  size_t nearest_form(const Kind& kind, double wanted) const {
    double bits = std::log(wanted);
    for (const double asked : o_.bits)
      bits += std::log(asked) / static_cast<double>(o_.bits.size());
    return *std::ranges::min_element(
        kind.forms, {}, [&](size_t f) { return std::abs(std::log(forms_[f].bits) - bits); });
  }

  /// Sizes are weighed in two: how much a head gains by more rows differs from head to head.
  std::vector<size_t> forms_to_weigh(const Kind& kind) const {
    const bool sizes = kind.name.find('%') != std::string::npos;
    if (!sizes) return {nearest_form(kind, 1)};
    const size_t less = nearest_form(kind, 0.5), more = nearest_form(kind, 2);
    return less == more ? std::vector{less} : std::vector{less, more};
  }

  /// Measures each unit's loss in the forms that are weighed; false if told to stop.
  bool weigh(std::span<TunedUnit> units) {
    for (const std::string& form : result_.weighed_in) {
      std::vector<std::string> policies;
      for (const TunedUnit& unit : units) policies.push_back(alone(unit, form));
      const auto measured = measure_.run(policies, false);
      if (!measured) return false;
      for (size_t u = 0; u < units.size(); ++u)
        units[u].alone.push_back({(*measured)[u].text.mean, (*measured)[u].answers.mean});
    }
    return true;
  }

  double loss(const TuneLoss& l) const { return l.text + o_.answer_weight * l.answers; }

  /// Layers that lose more than an equal share in some form are weighed head by head: often one of
  /// them is what looks far back. False if told to stop.
  bool split_heavy_layers() {
    if (heads_ == 1) return true;
    std::vector<double> all(result_.weighed_in.size());
    for (const TunedUnit& unit : result_.units)
      for (size_t k = 0; k < all.size(); ++k) all[k] += loss(unit.alone[k]);
    std::vector<TunedUnit> light, parts;
    for (const TunedUnit& unit : result_.units) {
      bool heavy = false;
      for (size_t k = 0; k < all.size(); ++k)
        heavy = heavy || loss(unit.alone[k]) * static_cast<double>(layers_) > all[k];
      if (!heavy)
        light.push_back(unit);
      else
        for (size_t h = 0; h < heads_; ++h) parts.push_back({unit.layer, h, {}, {}});
    }
    if (!parts.empty() && !weigh(parts)) return false;
    result_.units = std::move(light);
    result_.units.insert(result_.units.end(), parts.begin(), parts.end());
    return true;
  }

  double loss_in(const TunedUnit& unit, const Kind& kind, size_t form) const {
    std::vector<KnownLoss> text, answers;
    for (const auto& [weighed, at] : kind.weighed) {
      text.push_back({uniform_[weighed].text.mean, unit.alone[at].text});
      answers.push_back({uniform_[weighed].answers.mean, unit.alone[at].answers});
    }
    return loss({loss_alone(text, uniform_[form].text.mean),
                 loss_alone(answers, uniform_[form].answers.mean)});
  }

  /// The loss of each unit in each form.
  std::vector<FormUnit> weighed_units() const {
    std::vector<FormUnit> units;
    for (const TunedUnit& unit : result_.units) {
      units.push_back({std::vector<double>(forms_.size()), unit.head ? 1 : heads_});
      for (const Kind& kind : kinds_)
        for (const size_t f : kind.forms) units.back().losses[f] = loss_in(unit, kind, f);
    }
    return units;
  }

  std::string policy_text(const std::vector<size_t>& chosen) const {
    std::vector<size_t> all(layers_ * heads_);
    for (size_t u = 0; u < chosen.size(); ++u) {
      const TunedUnit& unit = result_.units[u];
      for (size_t h = 0; h < heads_; ++h)
        if (unit.head.value_or(h) == h) all[unit.layer * heads_ + h] = chosen[u];
    }
    return Policy::parse(policy_of(forms_, all, heads_)).to_string();
  }

  /// The expected bits of a choice, from its forms in all layers alike.
  double bits_of(const std::vector<FormUnit>& units, const std::vector<size_t>& chosen) const {
    double bits = 0;
    for (size_t u = 0; u < chosen.size(); ++u)
      bits += forms_[chosen[u]].bits * static_cast<double>(units[u].heads);
    return bits / static_cast<double>(layers_ * heads_);
  }

  /// A policy for each number of bits. Forms beside each other may take more than alone (heads that
  /// share a table share it with fewer), so that what is found is measured, and found again for
  /// fewer until it fits. Nothing if told to stop.
  std::optional<std::vector<std::string>> find() {
    const std::vector<FormUnit> units = weighed_units();
    const double least = std::ranges::min(forms_, {}, &LayerForm::bits).bits;
    std::vector<double> allowed = o_.bits;
    std::vector<std::vector<size_t>> chosen(allowed.size());
    std::vector<std::string> found(allowed.size());
    for (bool fits = false; !fits;) {
      for (size_t b = 0; b < allowed.size(); ++b) {
        chosen[b] = choose_forms(forms_, units, allowed[b]);
        found[b] = policy_text(chosen[b]);
      }
      const auto measured = measure_.run(found, false);
      if (!measured) return std::nullopt;
      fits = true;
      for (size_t b = 0; b < allowed.size(); ++b) {
        const double over = (*measured)[b].bits - o_.bits[b], expected = bits_of(units, chosen[b]);
        if (over <= kSlack || expected <= least) continue;
        allowed[b] = std::max(expected - over, least);
        fits = false;
      }
    }
    for (const auto& forms : chosen)
      for (size_t u = 0; u < forms.size(); ++u)
        result_.units[u].forms.push_back(policies_[forms[u]]);
    return found;
  }

  /// False if told to stop.
  bool report(const std::vector<std::string>& policies, std::vector<TunedPolicy>& into) {
    const auto measured = measure_.run(policies, true);
    if (!measured) return false;
    for (size_t i = 0; i < policies.size(); ++i) {
      const TuneMeasured& m = (*measured)[i];
      into.push_back({{policies[i], "", o_.window, 1, m.text.mean, m.text.error, m.bits},
                      m.answers.mean,
                      m.answers.error});
    }
    return true;
  }

  const TuneOptions& o_;
  size_t layers_, heads_;
  TuneMeasure measure_;
  std::vector<LayerForm> forms_;
  std::vector<std::string> policies_;  // of forms_
  std::vector<Kind> kinds_;
  std::vector<TuneMeasured> uniform_;  // [forms] in all layers
  TuneResult result_;
};

}  // namespace

const std::vector<std::string>& TuneOptions::standard_forms() {
  static const std::vector<std::string> kForms = [] {
    std::vector<std::string> forms;
    for (const char* rows :
         {"heavy=1.6%,s=1.6%", "heavy=3.2%,s=1.6%", "heavy=4.8%,s=1.6%", "heavy=6.8%,s=1.6%",
          "heavy=9.6%,s=1.6%", "heavy=12.5%,s=6.4%", "heavy=25%,s=12.8%"})
      forms.push_back(fmt::format(
          "express({},heavy_keys=0.15)+k:turboquant(bits=4)+v:turboquant(bits=3),window=32", rows));
    for (const char* codec :
         {"k:turboquant(bits=3,center=128)+v:turboquant(bits=2)", "turboquant(bits=3,center=128)",
          "k:turboquant(bits=4,center=128)+v:turboquant(bits=3)", "turboquant(bits=4,center=128)"})
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
