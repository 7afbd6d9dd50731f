#include "pith/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "eval/layer_forms.h"
#include "eval/tune_measure.h"
#include "pith/error.h"

namespace pith {
namespace {

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
    measure_.expect(2 * forms_.size() + kinds_.size() * layers_ + o.bits.size());
  }

  std::optional<TuneResult> run() {
    auto uniform = measure_.run(policies_, false);
    if (!uniform) return std::nullopt;
    uniform_ = *std::move(uniform);
    for (size_t f = 0; f < forms_.size(); ++f) forms_[f].bits = uniform_[f].bits;
    for (const double bits : o_.bits) choose_forms(forms_, {}, bits);  // refused at once
    for (Kind& kind : kinds_) {
      kind.weighed_in = nearest_form(kind);
      result_.weighed_in.push_back(policies_[kind.weighed_in]);
    }
    for (size_t l = 0; l < layers_; ++l) result_.units.push_back({l, std::nullopt, {}, {}});
    if (!weigh(result_.units) || !split_heavy_layers()) return std::nullopt;
    std::vector<std::string> found;
    for (const double bits : o_.bits)
      found.push_back(Policy::parse(policy_of(forms_, choose(bits), heads_)).to_string());
    if (!report(policies_, result_.forms) || !report(found, result_.found)) return std::nullopt;
    return std::move(result_);
  }

 private:
  struct Kind {
    std::string name;
    std::vector<size_t> forms;
    size_t weighed_in = 0;  // of forms_
  };

  /// Forms that are alone of their kind go with the first: what a layer loses in one of them says
  /// something of the others too, and weighing takes as long as all else.
  void find_kinds() {
    for (size_t f = 0; f < forms_.size(); ++f) {
      const std::string name = kind_of(policies_[f]);
      const auto same = [&](const std::string& other) { return kind_of(other) == name; };
      const bool single = std::ranges::count_if(policies_, same) == 1;
      auto at = std::ranges::find(kinds_, name, &Kind::name);
      if (single && !kinds_.empty()) at = kinds_.begin();
      if (at == kinds_.end()) at = kinds_.insert(at, {name, {}, 0});
      at->forms.push_back(f);
    }
  }

  /// The form whose bits are nearest to those wanted, by ratio: what layers are weighed in.
  size_t nearest_form(const Kind& kind) const {
    double wanted = 0;
    for (const double bits : o_.bits)
      wanted += std::log(bits) / static_cast<double>(o_.bits.size());
    return *std::ranges::min_element(
        kind.forms, {}, [&](size_t f) { return std::abs(std::log(forms_[f].bits) - wanted); });
  }

  /// Measures each unit's loss in each kind; false if told to stop.
  bool weigh(std::span<TunedUnit> units) {
    for (const Kind& kind : kinds_) {
      std::vector<std::string> policies;
      for (const TunedUnit& unit : units)
        policies.push_back(alone(unit, policies_[kind.weighed_in]));
      const auto measured = measure_.run(policies, false);
      if (!measured) return false;
      for (size_t u = 0; u < units.size(); ++u)
        units[u].alone.push_back({(*measured)[u].text.mean, (*measured)[u].answers.mean});
    }
    return true;
  }

  double loss(const TuneLoss& l) const { return l.text + o_.answer_weight * l.answers; }

  /// Layers that lose more than an equal share in some kind are weighed head by head: often one of
  /// them is what looks far back. False if told to stop.
  bool split_heavy_layers() {
    if (heads_ == 1) return true;
    std::vector<double> all(kinds_.size());
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

  /// What a unit loses in a form: what it loses in that which it was weighed in, times what the
  /// form loses in all layers against that.
  double loss_in(const TunedUnit& unit, size_t kind, size_t form) const {
    const TuneMeasured &weighed = uniform_[kinds_[kind].weighed_in], &wanted = uniform_[form];
    const auto scaled = [](double alone, double in, double of) {
      return in > 0 ? alone * of / in : 0;
    };
    return loss({scaled(unit.alone[kind].text, weighed.text.mean, wanted.text.mean),
                 scaled(unit.alone[kind].answers, weighed.answers.mean, wanted.answers.mean)});
  }

  /// The form of each head, [layers, heads].
  std::vector<size_t> choose(double bits) {
    std::vector<FormUnit> units;
    for (const TunedUnit& unit : result_.units) {
      units.push_back({std::vector<double>(forms_.size()), unit.head ? 1 : heads_});
      for (size_t k = 0; k < kinds_.size(); ++k)
        for (const size_t f : kinds_[k].forms) units.back().losses[f] = loss_in(unit, k, f);
    }
    const std::vector<size_t> chosen = choose_forms(forms_, units, bits);
    std::vector<size_t> all(layers_ * heads_);
    for (size_t u = 0; u < units.size(); ++u) {
      TunedUnit& unit = result_.units[u];
      unit.forms.push_back(policies_[chosen[u]]);
      for (size_t h = 0; h < heads_; ++h)
        if (unit.head.value_or(h) == h) all[unit.layer * heads_ + h] = chosen[u];
    }
    return all;
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
  static const std::vector<std::string> kForms{"express(s=1.6%,heavy=3.2%)+int4(hadamard=true)",
                                               "express(s=3.2%,heavy=6.25%)+int4(hadamard=true)",
                                               "express(s=6.4%,heavy=12.5%)+int4(hadamard=true)",
                                               "express(s=12.8%,heavy=25%)+int4(hadamard=true)",
                                               "exact+int4(hadamard=true)"};
  return kForms;
}

std::optional<TuneResult> tune(const std::shared_ptr<const Model>& model,
                               std::span<const int32_t> text, const TuneOptions& options,
                               const Progress& progress) {
  return Tuner(model, text, options, progress).run();
}

}  // namespace pith
