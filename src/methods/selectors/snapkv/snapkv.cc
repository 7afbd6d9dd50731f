// snapkv: the last queries vote on which rows of the prompt matter (Li et al., "SnapKV: LLM Knows
// What You are Looking for Before Generation", 2024, section 4). A row's score is its attention
// mass from the last `queries` queries, averaged over `kernel` neighbouring rows (zeros beyond the
// ends, as kvpress pools) and over the group's query heads. Cost per row: a few additions at each
// selection; attend adds one number per voting query and row.

#include "methods/selectors/scores/snapkv.h"

#include "methods/methods.h"
#include "methods/selectors/scores/scores.h"

namespace pith {

Fields SnapKvOptions::fields() {
  return ScoreOptions::fields() +
         Fields{whole("queries", queries, {.least = 1},
                      "last queries that vote; as many as the window has rows by default"),
                whole("kernel", kernel, {.least = 1, .most = 1023, .odd = true},
                      "neighbouring rows over which votes are averaged; 1 = none")};
}

void SnapKv::score(std::span<HeadBody> bodies, Scores& scores) const {
  for_heads(bodies, [&](size_t h) {
    const std::span<const float> mass = bodies[h].store().mass();
    const size_t half = kernel_ / 2;
    for (size_t r = 0; r < mass.size(); ++r) {
      double sum = 0;
      for (size_t i = r > half ? r - half : 0; i <= std::min(r + half, mass.size() - 1); ++i)
        sum += mass[i];
      scores[h][r] = sum;
    }
  });
}

SelectorRow snapkv_row() {
  SelectorRow row = score_row("snapkv", "rows that the prompt's last queries attend to",
                              "Li et al. 2024 (arXiv 2404.14469), as in kvpress");
  row.takes<SnapKvOptions>();
  row.default_sink = 0;
  row.side_bytes = sizeof(uint32_t) + sizeof(float);
  row.on_gpu = true;
  row.resolve = [](const SelectorPlace& r) {
    auto options = r.options.as<SnapKvOptions>();
    const MassWish votes = votes_of(options, r.site.window);
    options.queries = votes.queries;
    return best_by<SnapKv>(r, "snapkv", options, votes, options.kernel);
  };
  return row;
}

}  // namespace pith
