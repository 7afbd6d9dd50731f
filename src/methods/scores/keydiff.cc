// keydiff: drop the rows whose keys point where most keys point (Park et al., "KeyDiff: Key
// Similarity-Based KV Cache Eviction", 2025, section 3). The score is minus the cosine between a
// key and the mean of the body's normalised keys. No attention is needed. Cost: each key is decoded
// twice at each selection, 4 D operations.

#include <algorithm>
#include <cmath>

#include "methods/scores/scores.h"

namespace pith {
namespace {

constexpr size_t kTile = 64;

class KeyDiff final : public Scorer {
 public:
  using Scorer::Scorer;

  std::unique_ptr<Chooser> clone() const override { return std::make_unique<KeyDiff>(*this); }

 private:
  static double dot(const float* a, const double* b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  }
  static double norm(const float* a, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += double{a[i]} * a[i];
    return std::max(std::sqrt(sum), 1e-12);
  }
  /// Calls f(row, key) for each row of a body.
  template <class F>
  void for_keys(const RowStore& store, F&& f) const {
    const size_t dim = site().head_dim;
    std::vector<float> tile(kTile * dim);  // [kTile, D]
    for (size_t first = 0; first < store.rows(); first += kTile) {
      const size_t n = std::min(kTile, store.rows() - first);
      store.decode_keys(tile.data(), first, n);
      for (size_t t = 0; t < n; ++t) f(first + t, tile.data() + t * dim);
    }
  }
  void score(std::span<HeadBody> bodies, Scores& scores) const override {
    const size_t dim = site().head_dim;
    for_heads(bodies, [&](size_t h) {
      std::vector<double> anchor(dim);
      for_keys(bodies[h].store(), [&](size_t, const float* key) {
        const double length = norm(key, dim);
        for (size_t c = 0; c < dim; ++c) anchor[c] += key[c] / length;
      });
      // The mean's length does not change a head's order, but heads may share their rows (adakv).
      double square = 0;
      for (double c : anchor) square += c * c;
      const double length = std::max(std::sqrt(square), 1e-12);
      for_keys(bodies[h].store(), [&](size_t r, const float* key) {
        scores[h][r] = -dot(key, anchor.data(), dim) / (norm(key, dim) * length);
      });
    });
  }
};

}  // namespace

SelectorRow keydiff_row() {
  SelectorRow row = score_row("keydiff", "rows whose keys differ most from the mean key",
                              "Park et al. 2025 (arXiv 2504.15364), as in kvpress");
  row.takes<ScoreOptions>();
  row.make = [](const SelectorRequest& r) {
    return best_parts(r, "keydiff", r.options.as<ScoreOptions>(), {},
                      std::make_unique<KeyDiff>(r.context, r.site));
  };
  return row;
}

}  // namespace pith
