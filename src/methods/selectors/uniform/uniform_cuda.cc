// uniform on the GPU: the rows of the CPU's sample.

#include "methods/selectors/uniform/uniform_cuda.h"

#include "methods/registry_cuda.h"
#include "methods/selectors/uniform/uniform.h"
#include "rows/cuda/device_codec.h"

namespace pith::cuda {
namespace {

class LeastWords final : public BestRows {
 public:
  LeastWords(const SelectorSite& site, bool weights)
      : source_{site.seed, site.layer, site.first_head}, weights_(weights) {}

  bool reads_rows() const override { return false; }
  bool any_time() const override { return true; }
  size_t weights() const override { return weights_ ? 1 : 0; }

 private:
  void score(const SelectSpace& space, const CandidateRows& rows,
             cudaStream_t stream) const override {
    score_words(space, rows, source_, stream);
  }

  WordSource source_;
  bool weights_;
};

}  // namespace

SelectorOnGpu make_uniform_on_gpu(const SelectorPlace& place) {
  const auto& options = place.options.as<UniformOptions>();
  const auto heavy = options.heavy.sizes(place.budget);
  if (!options.budget) return {make_rate_body(options, place.site), nullptr, heavy};
  return {nullptr, std::make_shared<LeastWords>(place.site, options.weights), heavy};
}

}  // namespace pith::cuda
