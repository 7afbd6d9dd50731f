#include "methods/codecs/kvtc/transform_tables.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "methods/codecs/kvtc/eigen.h"
#include "methods/codecs/kvtc/normal_levels.h"

namespace pith {
namespace {

/// [D, D] of rows [n, D] around `mean`.
std::vector<double> covariance(const std::vector<float>& rows, const std::vector<float>& mean) {
  const size_t dim = mean.size(), n = rows.size() / dim;
  std::vector<double> sums(dim * dim), x(dim);
  for (size_t t = 0; t < n; ++t) {
    for (size_t c = 0; c < dim; ++c) x[c] = rows[t * dim + c] - mean[c];
    for (size_t a = 0; a < dim; ++a)
      for (size_t b = 0; b < dim; ++b) sums[a * dim + b] += x[a] * x[b];
  }
  for (double& s : sums) s /= static_cast<double>(n);
  return sums;
}

}  // namespace

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

TransformTables find_transform(const std::vector<float>& rows, const std::vector<float>& mean,
                               size_t code_bits) {
  const size_t dim = mean.size();
  Eigen found = eigen_of(covariance(rows, mean), dim);
  // Directions that these rows lack may come with later ones: no variance is below 1e-6 of the
  // largest, nor far below the mean, where all rows are alike and each direction is as good.
  const double constant = std::inner_product(mean.begin(), mean.end(), mean.begin(), 0.0);
  const double least = std::max({1e-6 * found.values[0], 1e-7 * constant, 1e-8});
  for (double& v : found.values) v = std::max(v, least);
  TransformTables tables;
  tables.bits = bits_by_variance(found.values, code_bits);
  std::erase(tables.bits, uint8_t{0});  // they are the last
  const size_t coded = tables.bits.size();
  tables.vectors.assign(found.vectors.begin(),
                        found.vectors.begin() + static_cast<ptrdiff_t>(coded * dim));
  for (size_t i = 0; i < coded; ++i)
    tables.deviations.push_back(std::min(65504.0f, static_cast<float>(std::sqrt(found.values[i]))));
  return tables;
}

}  // namespace pith
