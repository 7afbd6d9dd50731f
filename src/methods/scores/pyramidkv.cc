// pyramidkv: SnapKV's score with a budget that falls from the first layer to the last (Cai et al.,
// "PyramidKV", 2024, section 3.2): see KeepPyramid. Cost: SnapKV's.

#include "methods/scores/scores.h"
#include "methods/scores/snapkv.h"

namespace pith {
namespace {

SelectorParts make_pyramidkv(const SelectorRequest& r) {
  auto options = r.options.as<PyramidKvOptions>();
  auto rule = pyramid_rule(options, score_budget(options, r.budget), r.site);
  const MassWish votes = votes_of(options, r.site.window);
  options.queries = votes.queries;
  SelectorParts parts =
      best_parts(r, "pyramidkv", options, votes, std::make_unique<SnapKv>(r, options.kernel));
  parts.rule = std::move(rule);
  return parts;
}

}  // namespace

std::shared_ptr<const KeepBest> pyramid_rule(const PyramidKvOptions& options,
                                             const ScoreBudget& sizes, const SelectorSite& site) {
  return std::make_shared<KeepPyramid>(
      best_sizes(sizes, site), votes_of(options, site.window),
      Pyramid{sizes.budget, site.window, site.layer, site.layers, options.beta});
}

Fields PyramidKvOptions::fields() {
  return SnapKvOptions::fields() +
         Fields{number("beta", beta, {1, 1e6}, "mean budget over the last layer's; 1 = SnapKV")};
}

SelectorRow pyramidkv_row() {
  SelectorRow row = score_row("pyramidkv", "SnapKV with a budget that falls over the layers",
                              "Cai et al. 2024 (arXiv 2406.02069), as in kvpress");
  row.takes<PyramidKvOptions>();
  row.default_sink = 0;
  row.side_bytes = sizeof(uint32_t) + sizeof(float);
  row.make = make_pyramidkv;
  return row;
}

}  // namespace pith
