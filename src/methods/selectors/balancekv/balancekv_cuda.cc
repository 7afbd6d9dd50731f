// BalanceKV's block mode on the GPU: levels are halved where they lie, each the body's end then.

#include <fmt/format.h>

#include "methods/registry_cuda.h"
#include "methods/selectors/balancekv/balancekv.h"
#include "rows/cuda/device_codec.h"
#include "select/cuda/halving.h"

namespace pith::cuda {
namespace {

class BalanceBlocks final : public DeviceChooser {
 public:
  BalanceBlocks(const BalanceRule& rule, const SelectorSite& site) : rule_(rule), site_(site) {}

  void choose(const SelectSpace& space, const CandidateRows& rows, const Step& step,
              cudaStream_t stream) const override {
    HalvingCall call;
    call.dtype = rows.dtype;
    call.dim = rows.dim;
    call.k = rows.k;
    call.v = rows.v;
    call.head_stride = rows.head_stride;
    call.row_stride = static_cast<size_t>(rows.dim);
    // A level's rows are all new, or have all been in a selection.
    call.positions = rows.known > 0 ? rows.positions : nullptr;
    call.positions_stride = rows.side_stride;
    call.first_position = rows.first_position;
    call.kept = space.kept;
    call.kept_stride = space.stride;
    call.heads = rows.heads;
    call.groups = 1;
    call.size = rows.rows;
    call.seed = site_.seed;
    call.layer = site_.layer;
    call.first_head = site_.first_head;
    call.tag = step.tag;
    halve_batch(device_rule(rule_.halving), call, stream);
  }
  size_t weights() const override { return rule_.rounds; }
  float weight_exponent() const override { return rule_.weight_exponent; }
  bool settles() const override { return rule_.rounds > 0; }
  size_t settled(const PlanState& state) const override {
    return HalveBlocks::load(state).levels[rule_.rounds];
  }

 private:
  BalanceRule rule_;
  SelectorSite site_;
};

}  // namespace

SelectorOnGpu make_balancekv_on_gpu(const SelectorPlace& place) {
  const BalanceOptions options = place.options.as<BalanceOptions>().at(place.budget);
  const BalanceRule rule = balance_rule(options, place.budget, place.site.scale);
  return {nullptr, std::make_shared<BalanceBlocks>(rule, place.site),
          options.heavy.sizes(place.budget)};
}

}  // namespace pith::cuda
