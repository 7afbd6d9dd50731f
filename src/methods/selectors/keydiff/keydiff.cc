// keydiff: drop the rows whose keys point where most keys point (Park et al., "KeyDiff: Key
// Similarity-Based KV Cache Eviction", 2025, section 3). The score is minus the cosine between a
// key and the mean of the body's normalised keys (select/key_directions.h). No attention is
// needed.

#include "methods/methods.h"
#include "methods/selectors/scores/scores.h"
#include "select/key_directions.h"

namespace pith {
namespace {

class KeyDiff final : public Scorer {
 public:
  using Scorer::Scorer;

  std::unique_ptr<Chooser> clone() const override { return std::make_unique<KeyDiff>(*this); }

 private:
  void score(std::span<HeadBody> bodies, Scores& scores) const override {
    for_heads(bodies, [&](size_t h) { score_directions(scores[h], bodies[h].store()); });
  }
};

}  // namespace

SelectorRow keydiff_row() {
  SelectorRow row = score_row("keydiff", "rows whose keys differ most from the mean key",
                              "Park et al. 2025 (arXiv 2504.15364), as in kvpress");
  row.takes<ScoreOptions>();
  row.on_gpu = true;
  row.resolve = [](const SelectorPlace& r) {
    return best_by<KeyDiff>(r, "keydiff", r.options.as<ScoreOptions>(), {});
  };
  return row;
}

}  // namespace pith
