// tova: keep the rows that the last query attends to most (Oren et al., "Transformers are
// Multi-State RNNs", 2024). As in kvpress, probabilities are averaged over all query heads of the
// layer, so that its KV heads keep the same rows, and the last row itself always stays (the window
// of 1). Cost per row: none beyond the selection; attend adds one number per row and step.

#include "methods/scores/scores.h"

namespace pith {
namespace {

class Tova final : public ScoreSelector {
 public:
  Tova(const SelectorRequest& r, const ScoreOptions& options)
      : ScoreSelector(r.context, r.site, score_budget(options, r.budget)) {}

  MassRequest mass(size_t /*tokens*/) const override { return {1, true}; }
  std::string describe() const override { return text("tova", ScoreOptions{}); }
  std::unique_ptr<Selector> clone() const override { return std::make_unique<Tova>(*this); }

 private:
  // The bodies hold the same rows, as they have always been given the same scores.
  void score(std::span<HeadBody> bodies, Scores& scores) const override {
    for (HeadBody& body : bodies) {
      const std::span<const float> mass = body.store().mass();
      for (size_t r = 0; r < mass.size(); ++r) scores[0][r] += mass[r];
    }
    for (size_t h = 1; h < bodies.size(); ++h) scores[h] = scores[0];
  }
};

}  // namespace

SelectorRow tova_row() {
  SelectorRow row = score_row("tova", "rows that the last query attends to most",
                              "Oren et al. 2024 (arXiv 2401.06104), as in kvpress");
  row.takes<ScoreOptions>();
  row.default_sink = 0;
  row.default_window = [](const MethodOptions&, const BudgetSite&, bool) { return 1u; };
  row.side_bytes = sizeof(uint32_t) + sizeof(float);
  row.make = [](const SelectorRequest& r) -> std::unique_ptr<Selector> {
    return std::make_unique<Tova>(r, r.options.as<ScoreOptions>());
  };
  return row;
}

}  // namespace pith
