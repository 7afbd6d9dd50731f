// The score selectors' rules on the GPU: what is judged when, as on the CPU.

#include "attend/cuda/device_selector.h"
#include "methods/registry_cuda.h"
#include "methods/scores/budget_rule.h"
#include "methods/scores/scores.h"
#include "methods/scores/snapkv.h"

namespace pith::cuda {
namespace {

class KNormRule final : public BudgetRule {
 public:
  using BudgetRule::BudgetRule;
  void score(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) const final {
    score_norms(space, rows, stream);
  }
};

class KeyDiffRule final : public BudgetRule {
 public:
  using BudgetRule::BudgetRule;
  void score(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) const final {
    score_directions(space, rows, stream);
  }
};

/// Rules that look at attention mass alone.
class MassRule : public BudgetRule {
 public:
  using BudgetRule::BudgetRule;
  bool wants_mass() const final { return true; }
  bool reads_rows() const final { return false; }
};

class TovaRule final : public MassRule {
 public:
  using MassRule::MassRule;
  void score(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) const final {
    score_mass(space, rows, 1, true, stream);
  }
  MassRequest mass(size_t, const BodyCounts&) const override { return {1, true}; }
};

class H2oRule final : public MassRule {
 public:
  H2oRule(const SelectorPlace& p, const H2oOptions& options)
      : MassRule(p, options), decay_(static_cast<float>(options.decay)) {}
  void score(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) const final {
    score_mass(space, rows, 1, false, stream);
  }
  MassRequest mass(size_t tokens, const BodyCounts&) const override { return {tokens, false}; }
  float mass_kept() const override { return decay_; }

 private:
  float decay_;
};

class SnapKvRule : public MassRule {
 public:
  SnapKvRule(const SelectorPlace& p, const SnapKvOptions& options)
      : MassRule(p, options), votes_(options, p.site.window) {}
  void score(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) const final {
    score_mass(space, rows, static_cast<int>(votes_.kernel), false, stream);
  }
  MassRequest mass(size_t tokens, const BodyCounts& counts) const override {
    return votes_.mass(tokens, interval(), until_judged(counts));
  }

 private:
  SnapKvVotes votes_;
};

class PyramidKvRule final : public SnapKvRule {
 public:
  PyramidKvRule(const SelectorPlace& p, const PyramidKvOptions& options)
      : SnapKvRule(p, options), budget_{sizes_, p.site, options.beta} {}
  size_t budget_at(size_t n) const override {
    return budget_.at(n + budget_.site.sink + budget_.site.window);
  }

 private:
  PyramidBudget budget_;
};

template <class Rule, class O = ScoreOptions>
SelectorOnGpu make(const SelectorPlace& place) {
  return {nullptr, std::make_shared<Rule>(place, place.options.as<O>())};
}

}  // namespace

SelectorOnGpu make_knorm_on_gpu(const SelectorPlace& place) { return make<KNormRule>(place); }
SelectorOnGpu make_keydiff_on_gpu(const SelectorPlace& place) { return make<KeyDiffRule>(place); }
SelectorOnGpu make_tova_on_gpu(const SelectorPlace& place) { return make<TovaRule>(place); }
SelectorOnGpu make_h2o_on_gpu(const SelectorPlace& place) {
  return make<H2oRule, H2oOptions>(place);
}
SelectorOnGpu make_snapkv_on_gpu(const SelectorPlace& place) {
  return make<SnapKvRule, SnapKvOptions>(place);
}
SelectorOnGpu make_pyramidkv_on_gpu(const SelectorPlace& place) {
  return make<PyramidKvRule, PyramidKvOptions>(place);
}

}  // namespace pith::cuda
