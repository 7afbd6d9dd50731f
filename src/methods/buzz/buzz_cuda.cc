// BUZZ's rule on the GPU: cells as on the CPU, and an eviction when a row comes for which there is
// no room.

#include "methods/buzz/buzz_cuda.h"

#include "attend/cuda/device_selector.h"
#include "methods/buzz/buzz.h"
#include "methods/registry_cuda.h"

namespace pith::cuda {
namespace {

class BuzzOnGpu final : public ScoreRule {
 public:
  explicit BuzzOnGpu(const BuzzRule& rule) : rule_(rule), options_(rule.options) {}

  void choose(const SelectSpace& space, const JudgedRows& rows, int,
              cudaStream_t stream) const override {
    const BuzzStrides strides{static_cast<int>(rule_.old_stride()),
                              static_cast<int>(rule_.new_stride()), options_.localmax};
    choose_cells(space, rows, strides, stream);
    if (options_.weights) weigh_cells(rows, strides, stream);
  }
  std::optional<Judgement> judge(const BodyCounts& c, Moment moment) const override {
    if (moment != Moment::kBeforeRow || c.held < rule_.threshold) return std::nullopt;
    return Judgement{0, rule_.cells().of(c.judged, c.held)};
  }
  bool reads_rows() const override { return false; }
  bool weighs_rows() const override { return options_.weights; }
  size_t parts() const override { return options_.weights ? 1 : 0; }
  void weigh(std::span<WeightedPart> parts, const BodyCounts& c) const override {
    parts[0] = {c.judged, 0, true};
  }
  bool scales_queries() const override { return options_.logn; }
  void scale_token(void* scaled, const StepQueries& queries, const QueryNote* note,
                   cudaStream_t stream) const override {
    scale_by_log(scaled, queries, {}, note, stream);
  }
  void scale_chunk(void* scaled, const StepQueries& queries, const QueryNote& note,
                   cudaStream_t stream) const override {
    scale_by_log(scaled, queries, note, nullptr, stream);
  }
  bool wants_mass() const override { return options_.localmax; }
  MassRequest mass(size_t tokens, const BodyCounts&) const override {
    return {options_.localmax ? tokens : 0, false};
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
