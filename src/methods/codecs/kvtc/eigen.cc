#include "methods/codecs/kvtc/eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace pith {
namespace {

/// A matrix on its way to its diagonal: main and side diagonal, and the turn so far.
struct Turned {
  size_t n = 0;
  std::vector<double> main, side;  // [n], [n - 1]
  std::vector<double> turn;        // [n, n], by rows
};

/// v [n] <- the reflection that leaves of column k only its first number below the diagonal, of
/// length 1, and 0 up to k; returns that number. A column without others stays: v is 0.
double reflection(std::vector<double>& v, const std::vector<double>& a, size_t n, size_t k) {
  double square = 0, rest = 0;
  std::fill_n(v.begin(), k + 1, 0.0);
  for (size_t i = k + 1; i < n; ++i) {
    v[i] = a[k * n + i];
    square += v[i] * v[i];
    if (i > k + 1) rest += v[i] * v[i];
  }
  if (!(rest > 0)) {
    const double first = v[k + 1];
    std::fill(v.begin(), v.end(), 0.0);
    return first;
  }
  const double length = v[k + 1] > 0 ? -std::sqrt(square) : std::sqrt(square);
  v[k + 1] -= length;
  const double norm = std::sqrt(rest + v[k + 1] * v[k + 1]);
  for (size_t i = k + 1; i < n; ++i) v[i] /= norm;
  return length;
}

Turned three_diagonals(std::vector<double> a, size_t n) {
  Turned t{n, std::vector<double>(n), std::vector<double>(n > 0 ? n - 1 : 0),
           std::vector<double>(n * n)};
  for (size_t i = 0; i < n; ++i) t.turn[i * n + i] = 1;
  std::vector<double> v(n), p(n);
  for (size_t k = 0; k + 1 < n; ++k) {
    t.side[k] = reflection(v, a, n, k);
    // A <- H A H = A - v q^T - q v^T with p = A v, q = 2 (p - (v p) v).
    double vp = 0;
    for (size_t i = k + 1; i < n; ++i) {
      p[i] = std::inner_product(v.begin() + static_cast<ptrdiff_t>(k) + 1, v.end(),
                                a.begin() + static_cast<ptrdiff_t>(i * n + k) + 1, 0.0);
      vp += v[i] * p[i];
    }
    for (size_t i = k + 1; i < n; ++i) p[i] = 2 * (p[i] - vp * v[i]);
    for (size_t i = k + 1; i < n; ++i)
      for (size_t j = k + 1; j < n; ++j) a[i * n + j] -= v[i] * p[j] + p[i] * v[j];
    // turn <- H turn
    std::fill(p.begin(), p.end(), 0.0);
    for (size_t i = k + 1; i < n; ++i)
      for (size_t j = 0; j < n; ++j) p[j] += v[i] * t.turn[i * n + j];
    for (size_t i = k + 1; i < n; ++i)
      for (size_t j = 0; j < n; ++j) t.turn[i * n + j] -= 2 * v[i] * p[j];
  }
  for (size_t i = 0; i < n; ++i) t.main[i] = a[i * n + i];
  return t;
}

/// One step on the block [low, high], whose side diagonal has no 0.
void shifted_step(Turned& t, size_t low, size_t high) {
  const double half = (t.main[high - 1] - t.main[high]) / 2, last = t.side[high - 1];
  const double root = std::hypot(half, last);
  const double shift = t.main[high] - last / (half + std::copysign(root, half)) * last;
  double x = t.main[low] - shift, z = t.side[low];
  for (size_t k = low; k < high; ++k) {
    const double r = std::hypot(x, z), c = r > 0 ? x / r : 1, s = r > 0 ? z / r : 0;
    const double a = t.main[k], b = t.side[k], d = t.main[k + 1];
    if (k > low) t.side[k - 1] = r;
    t.main[k] = c * c * a + 2 * c * s * b + s * s * d;
    t.main[k + 1] = s * s * a - 2 * c * s * b + c * c * d;
    t.side[k] = c * s * (d - a) + (c * c - s * s) * b;
    if (k + 1 < high) {
      x = t.side[k];
      z = s * t.side[k + 1];
      t.side[k + 1] *= c;
    }
    double* row = t.turn.data() + k * t.n;
    double* next = row + t.n;
    for (size_t j = 0; j < t.n; ++j) {
      const double left = row[j], right = next[j];
      row[j] = c * left + s * right;
      next[j] = c * right - s * left;
    }
  }
}

void diagonalise(Turned& t) {
  const auto nothing = [&](size_t i) {
    return std::fabs(t.side[i]) <= std::numeric_limits<double>::epsilon() *
                                       (std::fabs(t.main[i]) + std::fabs(t.main[i + 1]));
  };
  // Each value takes two or three steps; 60 a value would end a matrix that does not converge.
  size_t steps = 60 * t.n;
  for (size_t high = t.n; high-- > 1;)
    for (; !nothing(high - 1) && steps > 0; --steps) {
      size_t low = high - 1;
      while (low > 0 && !nothing(low - 1)) --low;
      shifted_step(t, low, high);
    }
}

}  // namespace

Eigen eigen_of(std::vector<double> matrix, size_t n) {
  Turned t = three_diagonals(std::move(matrix), n);
  diagonalise(t);
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return t.main[a] > t.main[b]; });
  Eigen out;
  for (const size_t i : order) {
    out.values.push_back(t.main[i]);
    const auto row = t.turn.begin() + static_cast<ptrdiff_t>(i * n);
    out.vectors.insert(out.vectors.end(), row, row + static_cast<ptrdiff_t>(n));
  }
  return out;
}

}  // namespace pith
