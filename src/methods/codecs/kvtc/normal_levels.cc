#include "methods/codecs/kvtc/normal_levels.h"

#include <cmath>
#include <numbers>

namespace pith {
namespace {

/// Of numbers above x, which is not negative: their share, and their sum.
double share(double x) { return 0.5 * std::erfc(x * std::numbers::sqrt2 / 2); }
double sum(double x) {
  return std::exp(-x * x / 2) * std::numbers::sqrt2 * std::numbers::inv_sqrtpi / 2;
}

/// x with share(x / sqrt(3)) = y: quantiles of the variance 3 are the best levels' density.
double quantile(double y) {
  double low = 0, high = 20;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (share(middle / std::numbers::sqrt3) > y ? low : high) = middle;
  }
  return low;
}

}  // namespace

NormalLevels::NormalLevels(int bits) {
  constexpr int kRounds = 200;  // Lloyd's, from close by
  const size_t half = size_t{1} << (bits - 1);
  std::vector<double> level(half);  // from 0 up; the others mirror them
  for (size_t i = 0; i < half; ++i)
    level[i] = quantile(0.5 - (static_cast<double>(i) + 0.5) / static_cast<double>(2 * half));
  const auto below = [&](size_t i) { return i == 0 ? 0 : (level[i - 1] + level[i]) / 2; };
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < half; ++i) {
      const double low = below(i);
      const bool last = i + 1 == half;
      const double high = last ? 0 : below(i + 1);
      level[i] = (sum(low) - (last ? 0 : sum(high))) / (share(low) - (last ? 0 : share(high)));
    }
  error_ = 0;
  for (size_t i = 0; i < half; ++i) {
    const double low = below(i);
    const bool last = i + 1 == half;
    const double high = last ? 0 : below(i + 1);
    const double numbers = share(low) - (last ? 0 : share(high));
    const double first = sum(low) - (last ? 0 : sum(high));
    const double second = numbers + low * sum(low) - (last ? 0 : high * sum(high));
    error_ += 2 * (second - 2 * level[i] * first + level[i] * level[i] * numbers);
  }
  for (size_t i = half; i-- > 0;) levels_.push_back(static_cast<float>(-level[i]));
  for (size_t i = 0; i < half; ++i) levels_.push_back(static_cast<float>(level[i]));
  for (size_t i = 0; i + 1 < levels_.size(); ++i)
    bounds_.push_back((levels_[i] + levels_[i + 1]) / 2);
}

const std::array<NormalLevels, kMostLevelBits>& normal_levels() {
  static const std::array<NormalLevels, kMostLevelBits> kLevels{
      NormalLevels(1), NormalLevels(2), NormalLevels(3), NormalLevels(4),
      NormalLevels(5), NormalLevels(6), NormalLevels(7), NormalLevels(8)};
  return kLevels;
}

}  // namespace pith
