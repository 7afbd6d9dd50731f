#include "select/key_directions.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace pith {
namespace {

constexpr size_t kTile = 64;

double dot(const float* a, const double* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

double norm(const float* a, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += double{a[i]} * a[i];
  return std::max(std::sqrt(sum), 1e-12);
}

/// Calls f(row, key) for each row of a store.
template <class F>
void for_keys(const RowStore& store, F&& f) {
  const size_t dim = store.keys().dim();
  std::vector<float> tile(kTile * dim);  // [kTile, D]
  for (size_t first = 0; first < store.rows(); first += kTile) {
    const size_t n = std::min(kTile, store.rows() - first);
    store.decode_keys(tile.data(), first, n);
    for (size_t t = 0; t < n; ++t) f(first + t, tile.data() + t * dim);
  }
}

}  // namespace

void score_directions(std::span<double> scores, const RowStore& store) {
  const size_t dim = store.keys().dim();
  std::vector<double> anchor(dim);
  for_keys(store, [&](size_t, const float* key) {
    const double length = norm(key, dim);
    for (size_t c = 0; c < dim; ++c) anchor[c] += key[c] / length;
  });
  // The mean's length does not change a head's order, but heads may share their rows (adakv).
  double square = 0;
  for (double c : anchor) square += c * c;
  const double length = std::max(std::sqrt(square), 1e-12);
  for_keys(store, [&](size_t r, const float* key) {
    scores[r] = -dot(key, anchor.data(), dim) / (norm(key, dim) * length);
  });
}

}  // namespace pith
