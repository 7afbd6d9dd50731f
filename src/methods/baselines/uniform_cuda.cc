// uniform on the GPU: the rows of the CPU's sample, judged 32 at a time, so that up to 31 rows stay
// exact for longer.

#include "methods/baselines/uniform_cuda.h"

#include <cmath>

#include "attend/cuda/device_codec.h"
#include "attend/cuda/device_selector.h"
#include "methods/baselines/baselines.h"
#include "methods/registry_cuda.h"

namespace pith::cuda {
namespace {

class UniformRule final : public BestRows {
 public:
  UniformRule(const SelectorPlace& p, const UniformOptions& options)
      : source_{p.site.seed, p.site.layer, p.site.first_head},
        budget_(p.budget.rows(*options.budget, "uniform: budget")),
        weights_(options.weights),
        heavy_(options.heavy.heavy.has_value()) {}

  void score(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) const override {
    score_words(space, rows, source_, stream);
  }
  bool reads_rows() const override { return false; }
  bool reads_positions() const override { return true; }
  size_t budget_at(size_t) const override { return budget_; }
  /// Heavy stores let many rows leave at once.
  size_t interval() const override { return heavy_ ? 1 : 32; }
  bool any_time() const override { return true; }
  size_t parts() const override { return weights_ ? 1 : 0; }
  void weigh(std::span<WeightedPart> parts, const BodyCounts& c) const override {
    parts[0].rows = c.judged;
    if (c.judged == 0) return;
    parts[0].log_weight = static_cast<float>(
        std::log(static_cast<double>(c.judged_at) / static_cast<double>(c.judged)));
  }

 private:
  WordSource source_;
  size_t budget_;
  bool weights_, heavy_;
};

}  // namespace

SelectorOnGpu make_uniform_on_gpu(const SelectorPlace& place) {
  const auto& options = place.options.as<UniformOptions>();
  if (!options.budget) {
    if (!options.heavy.heavy) return {make_rate_body(options, place.site), nullptr};
    refuse_on_gpu("uniform(rate=...) with heavy rows, whose count only the device would know,",
                  "uniform(budget=...,heavy=...) is there");
  }
  return {nullptr, std::make_shared<UniformRule>(place, options),
          options.heavy.sizes(place.budget)};
}

}  // namespace pith::cuda
