#include "methods/codecs/kvtc/transform_tables.h"

#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "methods/codecs/kvtc/eigen.h"
#include "methods/codecs/kvtc/normal_levels.h"
#include "rows/tight_rows.h"

namespace pith {
namespace {

/// [D, D] of rows [n, D] around `mean`, times `weights`.
std::vector<double> covariance(const std::vector<float>& rows, const std::vector<float>& mean,
                               const std::vector<float>& weights) {
  const size_t dim = mean.size(), n = rows.size() / dim;
  std::vector<double> sums(dim * dim), x(dim);
  for (size_t t = 0; t < n; ++t) {
    for (size_t c = 0; c < dim; ++c) x[c] = double{weights[c]} * (rows[t * dim + c] - mean[c]);
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
                               const std::vector<float>& weights, size_t code_bits) {
  const size_t dim = mean.size();
  Eigen found = eigen_of(covariance(rows, mean, weights), dim);
  // Directions that these rows lack may come with later ones: no variance is below 1e-6 of the
  // largest, nor far below the mean, where all rows are alike and each direction is as good.
  double constant = 0;
  for (size_t c = 0; c < dim; ++c) constant += std::pow(double{weights[c]} * mean[c], 2);
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
