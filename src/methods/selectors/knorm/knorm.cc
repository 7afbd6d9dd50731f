// knorm: drop the rows with the largest key norms (Devoto et al., "A Simple and Effective L2
// Norm-Based Strategy for KV Cache Compression", 2024). Cost: each key is decoded once at each
// selection, 2 D operations.

#include "methods/methods.h"
#include "methods/selectors/scores/scores.h"

namespace pith {
namespace {

constexpr size_t kTile = 64;

class KNorm final : public Scorer {
 public:
  using Scorer::Scorer;

  std::unique_ptr<Chooser> clone() const override { return std::make_unique<KNorm>(*this); }

 private:
  void score(std::span<HeadBody> bodies, Scores& scores) const override {
    const size_t dim = site().head_dim;
    for_heads(bodies, [&](size_t h) {
      const CodedRows& keys = bodies[h].store().keys();  // RoPE keeps norms: no turning needed
      std::vector<float> tile(kTile * dim);              // [kTile, D]
      for (size_t first = 0; first < keys.rows(); first += kTile) {
        const size_t n = std::min(kTile, keys.rows() - first);
        keys.decode(tile.data(), first, n);
        for (size_t t = 0; t < n; ++t) {
          double sum = 0;
          for (size_t c = 0; c < dim; ++c) sum += double{tile[t * dim + c]} * tile[t * dim + c];
          scores[h][first + t] = -sum;
        }
      }
    });
  }
};

}  // namespace

SelectorRow knorm_row() {
  SelectorRow row = score_row("knorm", "rows with the smallest key norms",
                              "Devoto et al. 2024 (arXiv 2406.11430), as in kvpress");
  row.takes<ScoreOptions>();
  row.on_gpu = true;
  row.resolve = [](const SelectorPlace& r) {
    return best_by<KNorm>(r, "knorm", r.options.as<ScoreOptions>(), {});
  };
  return row;
}

}  // namespace pith
