// tova: keep the rows that the last query attends to most (Oren et al., "Transformers are
// Multi-State RNNs", 2024). As in kvpress, probabilities are averaged over all query heads of the
// layer, so that its KV heads keep the same rows, and the last row itself always stays (the window
// of 1). Cost per row: none beyond the selection; attend adds one number per row and step.

#include "methods/methods.h"
#include "methods/selectors/scores/scores.h"

namespace pith {
namespace {

class Tova final : public Scorer {
 public:
  using Scorer::Scorer;

  std::unique_ptr<Chooser> clone() const override { return std::make_unique<Tova>(*this); }

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
  row.on_gpu = true;
  row.resolve = [](const SelectorPlace& r) {
    return best_by<Tova>(r, "tova", r.options.as<ScoreOptions>(), {MassWish::Of::kLast});
  };
  return row;
}

}  // namespace pith
