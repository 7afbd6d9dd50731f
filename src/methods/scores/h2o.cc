// h2o: keep the heavy hitters, the rows with the most accumulated attention, beside the recent ones
// (Zhang et al., "H2O: Heavy-Hitter Oracle", 2023, section 4). Attention is summed over every query
// so far and over the query heads of the KV head's group; the recent rows are the policy's window.
// `decay` multiplies the sums at each selection, so that old fame fades. Cost per row: the sum
// itself, one number added per query and row, by attend.

#include "methods/scores/scores.h"

namespace pith {
namespace {

class H2o final : public ScoreSelector {
 public:
  H2o(const SelectorRequest& r, const H2oOptions& options)
      : ScoreSelector(r.context, r.site, score_budget(options, r.budget)), options_(options) {}

  MassRequest mass(size_t tokens) const override { return {tokens, false}; }
  std::string describe() const override { return text("h2o", options_); }
  std::unique_ptr<Selector> clone() const override { return std::make_unique<H2o>(*this); }

 private:
  void score(std::span<HeadBody> bodies, Scores& scores) const override {
    for (size_t h = 0; h < bodies.size(); ++h) copy_mass(scores[h], bodies[h]);
  }
  void selected(std::span<HeadBody> bodies) override {
    if (options_.decay == 1) return;
    const auto decay = static_cast<float>(options_.decay);
    for (HeadBody& body : bodies)
      for (float& m : body.store().mass()) m *= decay;
  }

  H2oOptions options_;
};

}  // namespace

Fields H2oOptions::fields() {
  return ScoreOptions::fields() +
         Fields{number("decay", decay, {0, 1}, "factor on the sums at each selection")};
}

SelectorRow h2o_row() {
  SelectorRow row =
      score_row("h2o", "rows with the most accumulated attention, and the recent ones",
                "Zhang et al. 2023 (arXiv 2306.14048)");
  row.takes<H2oOptions>();
  row.default_sink = 0;
  row.side_bytes = sizeof(uint32_t) + sizeof(float);
  row.make = [](const SelectorRequest& r) -> std::unique_ptr<Selector> {
    return std::make_unique<H2o>(r, r.options.as<H2oOptions>());
  };
  return row;
}

}  // namespace pith
