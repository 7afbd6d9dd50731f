// BalanceKV's block mode on the GPU. The tree follows from the number of rows alone: after p
// batches of b rows level i holds b / 2 rows if bit i - 1 of p is set, and level T b / 2 for each
// 2^(T-1) batches. Rows lie level T | ... | level 0, so that the level to be halved is always the
// body's end.

#include <fmt/format.h>

#include <cmath>

#include "attend/cuda/device_codec.h"
#include "attend/cuda/device_selector.h"
#include "compress/cuda/halving.h"
#include "methods/balancekv/balancekv.h"
#include "methods/registry_cuda.h"

namespace pith::cuda {
namespace {

class BalanceBlocks final : public ScoreRule {
 public:
  BalanceBlocks(const BalanceRule& rule, const SelectorSite& site) : rule_(rule), site_(site) {}

  std::optional<Judgement> judge(const BodyCounts& c, Moment moment) const override {
    const size_t batches = c.seen / rule_.block;
    if (moment != Moment::kRow || c.seen % rule_.block != 0 || c.steps >= rule_.rounds ||
        batches % (size_t{1} << c.steps) != 0) {
      return std::nullopt;
    }
    return Judgement{c.held - rule_.block, rule_.block / 2};
  }
  void choose(const SelectSpace& space, const JudgedRows& rows, int,
              cudaStream_t stream) const override {
    HalvingCall call;
    call.dtype = rows.dtype;
    call.dim = rows.dim;
    call.k = rows.k;
    call.v = rows.v;
    call.head_stride = rows.head_stride;
    call.row_stride = static_cast<size_t>(rows.dim);
    // A level's rows are all new, or have all been judged.
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
    call.tag = static_cast<uint32_t>(rows.step);  // doublings of the rows' weight so far
    halve_batch(device_rule(rule_.halving), call, stream);
  }
  bool reads_positions() const override { return true; }
  size_t parts() const override { return rule_.rounds; }
  void weigh(std::span<WeightedPart> parts, const BodyCounts& c) const override {
    const size_t batches = c.seen / rule_.block;
    for (size_t i = 0; i < parts.size(); ++i) {
      const size_t level = parts.size() - i, carried = batches >> (level - 1);
      parts[i].rows = i == 0 ? settled(c) : rule_.block / 2 * (carried % 2);
      parts[i].log_weight = log_weight(level);
    }
  }
  bool settles() const override { return rule_.rounds > 0; }
  size_t settled(const BodyCounts& c) const override {
    return rule_.block / 2 * (c.seen / rule_.block >> (rule_.rounds - 1)) - c.coded;
  }
  float settled_log_weight() const override { return log_weight(rule_.rounds); }

 private:
  float log_weight(size_t level) const {
    return rule_.weight_exponent *
           static_cast<float>(std::log(std::ldexp(1.0, static_cast<int>(level))));
  }

  BalanceRule rule_;
  SelectorSite site_;
};

}  // namespace

SelectorOnGpu make_balancekv_on_gpu(const SelectorPlace& place) {
  const auto& options = place.options.as<BalanceOptions>();
  if (options.mode != BalanceOptions::Mode::kBlock) {
    refuse_on_gpu("balancekv(mode=stream), whose heads differ in their number of rows,",
                  "mode=block is there");
  }
  const BalanceRule rule = balance_rule(options, place.budget, place.site.scale);
  if (rule.block > kMostHalvingRows) {
    refuse_on_gpu(fmt::format("balancekv(b={})", rule.block),
                  fmt::format("b is at most {} there", kMostHalvingRows));
  }
  return {nullptr, std::make_shared<BalanceBlocks>(rule, place.site),
          options.heavy.sizes(place.budget)};
}

}  // namespace pith::cuda
