#include "pith/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>

#include "eval/layer_forms.h"
#include "eval/perplexity.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kRunsAtOnce = 8;  // sessions that are held beside the exact one

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
        perplexity_(model, {text.begin(), text.end()}, protocol(o)),
        progress_(progress) {
    if (perplexity_.pieces() < 2 * o.pieces)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the text has {} pieces of {} tokens, {} are needed: {} to choose on "
                              "and as many others to report on; give a longer text, or fewer or "
                              "smaller pieces",
                              perplexity_.pieces(), o.window, 2 * o.pieces, o.pieces));
    for (const std::string& form : o.forms.empty() ? TuneOptions::standard_forms() : o.forms) {
      const Policy policy = Policy::parse(form);
      if (policy.rules.size() > 1)
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("'{}' says itself which layers it is for; a form is one policy for "
                                "any layer",
                                form));
      forms_.push_back({policy.to_string(), 0, 0});
    }
    // Each reads the pieces; the exact ones beside them are not counted.
    total_ = (2 * forms_.size() + layers_ + 1) * o.pieces * perplexity_.steps();
  }

  std::optional<TuneResult> run() {
    std::vector<std::string> policies;
    for (const LayerForm& form : forms_) policies.push_back(form.policy);
    const auto uniform = measure(policies, 0);
    if (uniform.empty()) return std::nullopt;
    for (size_t f = 0; f < forms_.size(); ++f)
      forms_[f].bits = uniform[f].bits, forms_[f].loss = uniform[f].divergence;
    result_.weighed_in = nearest_form().policy;
    for (size_t l = 0; l < layers_; ++l) result_.units.push_back({l, std::nullopt, 0, ""});
    if (!weigh(result_.units) || !split_heavy_layers()) return std::nullopt;
    policies.push_back(Policy::parse(policy_of(forms_, choose(), heads_)).to_string());
    result_.measured = measure(policies, o_.pieces);
    if (result_.measured.empty()) return std::nullopt;
    return std::move(result_);
  }

 private:
  static PerplexityOptions protocol(const TuneOptions& o) {
    PerplexityOptions p;
    p.mode = PerplexityMode::kContinue;
    p.window = o.window, p.score = o.score;
    p.session = o.session;
    return p;
  }

  /// Each policy over as many pieces as are asked for, from `first` on; nothing if told to stop.
  std::vector<Preset> measure(const std::vector<std::string>& policies, size_t first) {
    std::vector<Preset> all;
    for (size_t from = 0; from < policies.size(); from += kRunsAtOnce) {
      const size_t n = std::min(kRunsAtOnce, policies.size() - from);
      std::vector<PerplexityRun> runs;
      for (size_t i = 0; i < n; ++i)
        runs.push_back({Policy::parse(policies[from + i]), o_.session.seed});
      std::vector<std::vector<Prediction>> predictions(n);
      std::vector<double> bits(n);
      for (size_t piece = first; piece < first + o_.pieces; ++piece) {
        const auto results = perplexity_.run(
            piece, runs, [&](size_t tokens) { return advance(tokens * n / (n + 1)); });
        if (results.empty()) return {};
        for (size_t i = 0; i < n; ++i) {
          predictions[i].insert(predictions[i].end(), results[i].predictions.begin(),
                                results[i].predictions.end());
          bits[i] = results[i].ledger.effective_bits();
        }
      }
      for (size_t i = 0; i < n; ++i) {
        const Estimate loss = summarise(predictions[i]).divergence;
        all.push_back({policies[from + i], "", o_.window, 1, loss.mean, loss.error, bits[i]});
      }
    }
    return all;
  }

  bool advance(size_t tokens) {
    const std::lock_guard lock(mutex_);
    done_ = std::min(done_ + tokens, total_);
    return !progress_ || progress_(done_, total_);
  }

  /// The form whose bits are nearest to those wanted, by ratio: what layers are weighed in.
  const LayerForm& nearest_form() const {
    return *std::ranges::min_element(
        forms_, {}, [&](const LayerForm& form) { return std::abs(std::log(form.bits / o_.bits)); });
  }

  /// Measures each unit's divergence; false if told to stop.
  bool weigh(std::span<TunedUnit> units) {
    std::vector<std::string> policies;
    for (const TunedUnit& unit : units) policies.push_back(alone(unit, result_.weighed_in));
    const auto measured = measure(policies, 0);
    for (size_t u = 0; u < measured.size(); ++u) units[u].divergence = measured[u].divergence;
    return !measured.empty();
  }

  /// Layers that lose more than an equal share are weighed head by head: often one of them is what
  /// looks far back. False if told to stop.
  bool split_heavy_layers() {
    if (heads_ == 1) return true;
    double all = 0;
    for (const TunedUnit& unit : result_.units) all += unit.divergence;
    std::vector<TunedUnit> light, parts;
    for (const TunedUnit& unit : result_.units)
      if (unit.divergence * static_cast<double>(layers_) <= all)
        light.push_back(unit);
      else
        for (size_t h = 0; h < heads_; ++h) parts.push_back({unit.layer, h, 0, ""});
    if (!parts.empty() && !weigh(parts)) return false;
    result_.units = std::move(light);
    result_.units.insert(result_.units.end(), parts.begin(), parts.end());
    return true;
  }

  /// The form of each head, [layers, heads].
  std::vector<size_t> choose() {
    std::vector<FormUnit> units;
    for (const TunedUnit& unit : result_.units)
      units.push_back({unit.divergence, unit.head ? 1 : heads_});
    const std::vector<size_t> chosen = choose_forms(forms_, units, o_.bits);
    std::vector<size_t> all(layers_ * heads_);
    for (size_t u = 0; u < units.size(); ++u) {
      TunedUnit& unit = result_.units[u];
      unit.form = forms_[chosen[u]].policy;
      for (size_t h = 0; h < heads_; ++h)
        if (unit.head.value_or(h) == h) all[unit.layer * heads_ + h] = chosen[u];
    }
    return all;
  }

  const TuneOptions& o_;
  size_t layers_, heads_;
  Perplexity perplexity_;
  const Progress& progress_;
  std::mutex mutex_;
  size_t done_ = 0, total_ = 0;
  std::vector<LayerForm> forms_;
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
