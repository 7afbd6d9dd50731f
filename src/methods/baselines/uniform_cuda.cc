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
      : BestRows(std::make_shared<KeepBest>(
            // Heavy stores let many rows leave at once.
            BestSizes{.budget = options.rows(p.budget),
                      .interval = options.heavy.heavy ? size_t{1} : size_t{32}})),
        source_{p.site.seed, p.site.layer, p.site.first_head},
        weights_(options.weights) {}

  void score(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) const override {
    score_words(space, rows, source_, stream);
  }
  bool reads_rows() const override { return false; }
  bool reads_positions() const override { return true; }
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
  bool weights_;
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
