// BUZZ's cells on the GPU.

#include "methods/selectors/buzz/buzz_cuda.h"

#include "methods/registry_cuda.h"
#include "methods/selectors/buzz/buzz.h"
#include "select/cuda/key_directions.h"

namespace pith::cuda {
namespace {

class BuzzOnGpu final : public DeviceChooser {
 public:
  explicit BuzzOnGpu(const BuzzRule& rule) : rule_(rule), options_(rule.options) {}

  void choose(const SelectSpace& space, const CandidateRows& rows, const Step& step,
              cudaStream_t stream) const override {
    const bool alike = step.size > 0;
    const BuzzCells cells{static_cast<int>(rule_.old_stride()),
                          static_cast<int>(alike ? step.size : rule_.new_stride()),
                          static_cast<int>(step.first),
                          static_cast<int>(step.behind),
                          alike,
                          options_.localmax,
                          options_.by_key};
    if (options_.by_key) score_directions(space, rows, stream);
    choose_cells(space, rows, cells, stream);
    if (options_.weights) weigh_cells(rows, cells, stream);
  }
  bool reads_rows() const override { return options_.by_key; }
  bool weighs_rows() const override { return options_.weights; }
  size_t weights() const override { return options_.weights ? 1 : 0; }
  bool scales_queries() const override { return options_.logn; }
  void scale_token(void* scaled, const StepQueries& queries, const QueryNote* note,
                   cudaStream_t stream) const override {
    scale_by_log(scaled, queries, {}, note, stream);
  }
  void scale_chunk(void* scaled, const StepQueries& queries, const QueryNote& note,
                   cudaStream_t stream) const override {
    scale_by_log(scaled, queries, note, nullptr, stream);
  }

 private:
  BuzzRule rule_;
  BuzzOptions options_;
};

}  // namespace

SelectorOnGpu make_buzz_on_gpu(const SelectorPlace& place) {
  return {nullptr, std::make_shared<BuzzOnGpu>(buzz_rule(place.options.as<BuzzOptions>(),
                                                         place.budget, place.site.window))};
}

}  // namespace pith::cuda
