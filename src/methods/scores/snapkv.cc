// snapkv: the last queries vote on which rows of the prompt matter (Li et al., "SnapKV: LLM Knows
// What You are Looking for Before Generation", 2024, section 4). A row's score is its attention
// mass from the last `queries` queries, averaged over `kernel` neighbouring rows (zeros beyond the
// ends, as kvpress pools) and over the group's query heads. Cost per row: a few additions at each
// selection; attend adds one number per voting query and row.

#include "methods/scores/snapkv.h"

#include "methods/scores/scores.h"

namespace pith {

Fields SnapKvOptions::fields() {
  return ScoreOptions::fields() +
         Fields{whole("queries", queries, {.least = 1},
                      "last queries that vote; as many as the window has rows by default"),
                whole("kernel", kernel, {.least = 1, .most = 1023, .odd = true},
                      "neighbouring rows over which votes are averaged; 1 = none")};
}

// A long step brings all the votes itself. Short steps collect theirs; starting anew when a whole
// number of periods is left makes the votes at the next selection those of the last queries.
MassRequest SnapKvVotes::mass(size_t tokens, size_t interval, size_t until) const {
  if (tokens >= queries) return {queries, true};
  return {tokens, until % std::min(queries, interval) < tokens};
}

SnapKv::SnapKv(const SelectorRequest& r, const SnapKvOptions& options)
    : ScoreSelector(r.context, r.site, score_budget(options, r.budget)),
      options_(options),
      votes_(options, r.site.window) {}

MassRequest SnapKv::mass(size_t tokens) const {
  return votes_.mass(tokens, sizes().interval, until_selection());
}

void SnapKv::score(std::span<HeadBody> bodies, Scores& scores) const {
  for_heads(bodies, [&](size_t h) {
    const std::span<const float> mass = bodies[h].store().mass();
    const size_t half = votes_.kernel / 2;
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
  row.make = [](const SelectorRequest& r) -> std::unique_ptr<Selector> {
    return std::make_unique<SnapKv>(r, r.options.as<SnapKvOptions>());
  };
  return row;
}

}  // namespace pith
