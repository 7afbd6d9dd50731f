// The score selectors on the GPU: the CPU's rules, and kernels for the scores.

#include "attend/cuda/device_selector.h"
#include "compress/cuda/key_directions.h"
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
  bool reads_rows() const final { return false; }
};

class TovaRule final : public MassRule {
 public:
  TovaRule(const SelectorPlace& p, const ScoreOptions& options)
      : MassRule(p, options, {MassWish::Of::kLast}) {}
  void score(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) const final {
    score_mass(space, rows, 1, true, stream);
  }
};

class H2oRule final : public MassRule {
 public:
  H2oRule(const SelectorPlace& p, const H2oOptions& options)
      : MassRule(p, options, {MassWish::Of::kAll}), decay_(static_cast<float>(options.decay)) {}
  void score(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) const final {
    score_mass(space, rows, 1, false, stream);
  }
  float mass_kept() const override { return decay_; }

 private:
  float decay_;
};

class SnapKvRule final : public MassRule {
 public:
  SnapKvRule(const SelectorPlace& p, const SnapKvOptions& options)
      : MassRule(p, options, votes_of(options, p.site.window)), kernel_(options.kernel) {}
  SnapKvRule(const SelectorPlace& p, const PyramidKvOptions& options)
      : MassRule(pyramid_rule(options, score_budget(options, p.budget), p.site)),
        kernel_(options.kernel) {}
  void score(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) const final {
    score_mass(space, rows, static_cast<int>(kernel_), false, stream);
  }

 private:
  size_t kernel_;
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
  return make<SnapKvRule, PyramidKvOptions>(place);
}

}  // namespace pith::cuda
