// pyramidkv: SnapKV's score with a budget that falls from the first layer to the last (Cai et al.,
// "PyramidKV", 2024, section 3.2): see KeepPyramid. Cost: SnapKV's.

#include "methods/methods.h"
#include "methods/selectors/scores/scores.h"
#include "methods/selectors/scores/snapkv.h"

namespace pith {
namespace {

ResolvedSelector resolve_pyramidkv(const SelectorPlace& r) {
  auto options = r.options.as<PyramidKvOptions>();
  auto rule = pyramid_rule(options, score_budget(options, r.budget), r.site);
  const MassWish votes = votes_of(options, r.site.window);
  options.queries = votes.queries;
  ResolvedSelector selector = best_by<SnapKv>(r, "pyramidkv", options, votes, options.kernel);
  selector.rule = std::move(rule);
  return selector;
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
  row.on_gpu = true;
  row.resolve = resolve_pyramidkv;
  return row;
}

}  // namespace pith
