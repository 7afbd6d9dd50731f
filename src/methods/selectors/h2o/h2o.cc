// h2o: keep the heavy hitters, the rows with the most accumulated attention, beside the recent ones
// (Zhang et al., "H2O: Heavy-Hitter Oracle", 2023, section 4). Attention is summed over every query
// so far and over the query heads of the KV head's group; the recent rows are the policy's window.
// `decay` multiplies the sums at each selection, so that old fame fades. Cost per row: the sum
// itself, one number added per query and row, by attend.

#include "methods/methods.h"
#include "methods/selectors/scores/scores.h"

namespace pith {
namespace {

class H2o final : public Scorer {
 public:
  H2o(const Context& context, const SelectorSite& site, double decay)
      : Scorer(context, site), decay_(static_cast<float>(decay)) {}

  void kept(const Step& /*step*/, std::span<HeadBody> bodies) override {
    if (decay_ == 1) return;
    for (HeadBody& body : bodies)
      for (float& m : body.store().mass()) m *= decay_;
  }
  std::unique_ptr<Chooser> clone() const override { return std::make_unique<H2o>(*this); }

 private:
  void score(std::span<HeadBody> bodies, Scores& scores) const override {
    for (size_t h = 0; h < bodies.size(); ++h) copy_mass(scores[h], bodies[h]);
  }

  float decay_;
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
  row.on_gpu = true;
  row.resolve = [](const SelectorPlace& r) {
    const auto options = r.options.as<H2oOptions>();
    return best_by<H2o>(r, "h2o", options, {MassWish::Of::kAll}, options.decay);
  };
  return row;
}

}  // namespace pith
