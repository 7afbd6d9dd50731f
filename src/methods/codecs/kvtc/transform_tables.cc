#include "methods/codecs/kvtc/transform_tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/dtype.h"
#include "methods/codecs/kvtc/eigen.h"
#include "methods/codecs/kvtc/normal_levels.h"
#include "rows/tight_rows.h"

namespace pith {
namespace {

/// Rows [n, D] less `mean` [D], times `weights` [D].
struct Weighed {
  size_t dim;
  std::vector<double> x;  // [n, D]

  size_t rows() const { return x.size() / dim; }
  const double* row(size_t t) const { return x.data() + t * dim; }
  double product(size_t t, const double* with) const {
    return std::inner_product(row(t), row(t) + dim, with, 0.0);
  }
};

Weighed weighed(const std::vector<float>& rows, const std::vector<float>& mean,
                const std::vector<float>& weights) {
  Weighed all{mean.size(), {}};
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t c = i % all.dim;
    all.x.push_back(double{weights[c]} * (rows[i] - mean[c]));
  }
  return all;
}

/// Eigenvectors of x^T x / n. Cost: n D^2 + 6 D^3.
Eigen directions(const Weighed& of) {
  std::vector<double> sums(of.dim * of.dim);
  for (size_t t = 0; t < of.rows(); ++t) {
    const double* x = of.row(t);
    for (size_t a = 0; a < of.dim; ++a)
      for (size_t b = 0; b < of.dim; ++b) sums[a * of.dim + b] += x[a] * x[b];
  }
  for (double& s : sums) s /= static_cast<double>(of.rows());
  return eigen_of(std::move(sums), of.dim);
}

/// Those [R, D] along which the rows, fewer than channels, are not 0, of x x^T: n^2 D + 6 n^3.
std::vector<double> few_directions(const Weighed& of) {
  constexpr double kLeast = 1e-10;  // of the largest: rounding
  const size_t n = of.rows();
  std::vector<double> products(n * n);
  for (size_t a = 0; a < n; ++a)
    for (size_t b = 0; b < n; ++b) products[a * n + b] = of.product(a, of.row(b));
  const Eigen found = eigen_of(std::move(products), n);
  std::vector<double> vectors;
  for (size_t i = 0; i < n && found.values[i] > kLeast * found.values[0]; ++i) {
    const size_t first = vectors.size();
    vectors.resize(first + of.dim);
    for (size_t t = 0; t < n; ++t) {
      const double share = found.vectors[i * n + t] / std::sqrt(found.values[i]);
      for (size_t c = 0; c < of.dim; ++c) vectors[first + c] += share * of.row(t)[c];
    }
  }
  return vectors;
}

/// The rows but [first, last) of `all`, and those, both around the others' mean.
std::array<Weighed, 2> parted(const Weighed& all, size_t first, size_t last) {
  const auto out = [&](size_t t) { return t >= first && t < last; };
  std::vector<double> mean(all.dim);
  for (size_t t = 0; t < all.rows(); ++t)
    for (size_t c = 0; c < all.dim && !out(t); ++c) mean[c] += all.row(t)[c];
  const auto others = static_cast<double>(all.rows() - (last - first));
  std::array<Weighed, 2> parts{Weighed{all.dim, {}}, Weighed{all.dim, {}}};
  for (size_t t = 0; t < all.rows(); ++t)
    for (size_t c = 0; c < all.dim; ++c)
      parts[out(t) ? 1 : 0].x.push_back(all.row(t)[c] - mean[c] / others);
  return parts;
}

/// variances [D] <- mean squares of the rows [first, last) of `all` along directions of the others.
void variances_of(std::vector<double>& variances, const Weighed& all, size_t first, size_t last) {
  const size_t dim = all.dim;
  const auto [seen, later] = parted(all, first, last);
  const std::vector<double> vectors =
      seen.rows() < dim ? few_directions(seen) : directions(seen).vectors;
  const size_t found = vectors.size() / dim;
  variances.assign(dim, 0.0);
  double rest = 0;
  for (size_t t = 0; t < later.rows(); ++t) {
    rest += later.product(t, later.row(t));
    for (size_t i = 0; i < found; ++i) {
      const double square = std::pow(later.product(t, vectors.data() + i * dim), 2);
      variances[i] += square;
      rest -= square;
    }
  }
  for (size_t i = found; i < dim; ++i)
    variances[i] = std::max(rest, 0.0) / static_cast<double>(dim - found);
  for (double& v : variances) v /= static_cast<double>(later.rows());
}

/// The nearest numbers that do not rise: neighbours that do become their mean.
void level_rises(std::vector<double>& x) {
  struct Run {
    double sum;
    size_t count;
    bool below(const Run& next) const {
      return sum * static_cast<double>(next.count) < next.sum * static_cast<double>(count);
    }
  };
  std::vector<Run> runs;
  for (const double v : x) {
    runs.push_back({v, 1});
    for (size_t n = runs.size(); n > 1 && runs[n - 2].below(runs[n - 1]); --n) {
      runs[n - 2] = {runs[n - 2].sum + runs[n - 1].sum, runs[n - 2].count + runs[n - 1].count};
      runs.pop_back();
    }
  }
  x.clear();
  for (const Run& run : runs)
    x.resize(x.size() + run.count, run.sum / static_cast<double>(run.count));
}

}  // namespace

std::vector<double> later_variances(const std::vector<double>& rows, size_t dim, ThreadPool& pool) {
  constexpr size_t kParts = 4;
  const Weighed all{dim, rows};
  const size_t n = all.rows(), parts = std::min(n, kParts);
  std::vector<std::vector<double>> of_parts(parts);
  pool.parallel_for(parts, [&](size_t i, int) {
    variances_of(of_parts[i], all, n * i / parts, n * (i + 1) / parts);
  });
  std::vector<double> variances(dim);
  for (const std::vector<double>& part : of_parts)
    for (size_t i = 0; i < dim; ++i) variances[i] += part[i] / static_cast<double>(parts);
  level_rises(variances);
  return variances;
}

std::vector<uint8_t> bits_by_variance(const std::vector<double>& variances, size_t total) {
  const auto error = [](int bits) {
    return bits == 0 ? 1.0 : normal_levels()[static_cast<size_t>(bits - 1)].error();
  };
  std::vector<uint8_t> bits(variances.size());
  std::vector<double> gains(variances.size());
  const auto set_gain = [&](size_t i) {
    gains[i] = bits[i] < kMostLevelBits ? variances[i] * (error(bits[i]) - error(bits[i] + 1)) : 0;
  };
  for (size_t i = 0; i < bits.size(); ++i) set_gain(i);
  for (; total > 0; --total) {
    const auto best = std::max_element(gains.begin(), gains.end());  // the first of equal ones
    if (best == gains.end() || !(*best > 0)) break;
    const auto i = static_cast<size_t>(best - gains.begin());
    ++bits[i];
    set_gain(i);
  }
  return bits;
}

std::vector<uint8_t> pair_weights(std::span<const float> energy) {
  constexpr double kLeast = 1.0 / 64;  // a pair that these queries left alone may matter to others
  double sum = 0;
  for (const float e : energy) sum += std::sqrt(double{e});
  std::vector<uint8_t> codes;
  for (size_t i = 0; i < energy.size() && sum > 0 && std::isfinite(sum); ++i) {
    const double w = std::sqrt(double{energy[i]}) * static_cast<double>(energy.size()) / sum;
    codes.push_back(tight_of_half(f32_to_f16(static_cast<float>(std::max(w, kLeast)))));
  }
  return codes;
}

std::vector<float> channel_weights(std::span<const uint8_t> codes, size_t dim) {
  std::vector<float> all(dim, 1.0f);
  for (size_t i = 0; i < codes.size(); ++i)
    all[i] = all[i + dim / 2] = f16_to_f32(half_of_tight(codes[i]));
  return all;
}

TransformTables find_transform(const std::vector<float>& rows, const std::vector<float>& mean,
                               const std::vector<float>& weights, size_t code_bits,
                               ThreadPool& pool) {
  const size_t dim = mean.size();
  const Weighed all = weighed(rows, mean, weights);
  const Eigen found = directions(all);
  std::vector<double> variances = later_variances(all.x, dim, pool);
  // Where all rows are alike each direction is as good, and later ones may differ: no variance is
  // far below the mean, nor below 1e-6 of the largest.
  double constant = 0;
  for (size_t c = 0; c < dim; ++c) constant += std::pow(double{weights[c]} * mean[c], 2);
  const double least = std::max({1e-6 * variances[0], 1e-7 * constant, 1e-8});
  for (double& v : variances) v = std::max(v, least);
  TransformTables tables;
  tables.bits = bits_by_variance(variances, code_bits);
  std::erase(tables.bits, uint8_t{0});  // they are the last
  const size_t coded = tables.bits.size();
  tables.vectors.assign(found.vectors.begin(),
                        found.vectors.begin() + static_cast<ptrdiff_t>(coded * dim));
  for (size_t i = 0; i < coded; ++i)
    tables.deviations.push_back(std::min(65504.0f, static_cast<float>(std::sqrt(variances[i]))));
  return tables;
}

}  // namespace pith
