// h2o: keep the heavy hitters, the rows with the most accumulated attention, beside the recent ones
// (Zhang et al., "H2O: Heavy-Hitter Oracle", 2023, section 4). Attention is summed over every query
// so far and over the query heads of the KV head's group; the recent rows are the policy's window.
// `decay` multiplies the sums at each selection, so that old fame fades. Cost per row: the sum
// itself, one number added per query and row, by attend.

#include <fmt/format.h>

#include "methods/scores/score_selector.h"
#include "methods/scores/scores.h"

namespace pith {
namespace {

class H2o final : public ScoreSelector {
 public:
  H2o(const SelectorRequest& r, float decay)
      : ScoreSelector(r.context, r.site, score_budget(r)), decay_(decay) {}

  MassRequest mass(size_t tokens) const override { return {tokens, false}; }
  std::string describe() const override {
    return fmt::format("h2o(budget={},interval={},decay={})", sizes().budget, sizes().interval,
                       decay_);
  }
  std::unique_ptr<Selector> clone() const override { return std::make_unique<H2o>(*this); }

 private:
  void score(std::span<HeadBody> bodies, Scores& scores) const override {
    for (size_t h = 0; h < bodies.size(); ++h) copy_mass(scores[h], bodies[h]);
  }
  void selected(std::span<HeadBody> bodies) override {
    if (decay_ == 1) return;
    for (HeadBody& body : bodies)
      for (float& m : body.store().mass()) m *= decay_;
  }

  float decay_;
};

}  // namespace

SelectorRow h2o_row() {
  SelectorRow row = score_row(
      {"h2o", true, "rows with the most accumulated attention, and the recent ones",
       "Zhang et al. 2023 (arXiv 2306.14048)",
       score_parameters({{"decay", "1", "factor on the sums at each selection, 0 to 1"}}), ""});
  row.default_sink = 0;
  row.side_bytes = sizeof(uint32_t) + sizeof(float);
  row.make = [](const SelectorRequest& r) -> std::unique_ptr<Selector> {
    return std::make_unique<H2o>(r, static_cast<float>(r.parameters.number("decay", 0, 1)));
  };
  return row;
}

}  // namespace pith
