#include "methods/codecs/kvquant/codebook.h"

#include <algorithm>
#include <vector>

#include "core/dtype.h"

namespace pith {
namespace {

constexpr int kRounds = 100;  // Lloyd has settled long before on every head looked at

/// Sums of weights and of weighted numbers before each place of a sorted list.
struct Sums {
  std::vector<double> weight, product;  // [n + 1]
  explicit Sums(std::span<const WeightedNumber> numbers) : weight(1), product(1) {
    for (const WeightedNumber& n : numbers) {
      weight.push_back(weight.back() + n.weight);
      product.push_back(product.back() + double{n.weight} * n.x);
    }
  }
};

}  // namespace

Codebook::Codebook(std::span<WeightedNumber> numbers, int bits) : size_(size_t{1} << bits) {
  std::sort(numbers.begin(), numbers.end(),
            [](const WeightedNumber& a, const WeightedNumber& b) { return a.x < b.x; });
  const Sums sums(numbers);
  const size_t n = numbers.size();
  std::vector<double> levels(size_);
  for (size_t i = 0; i < size_; ++i)
    levels[i] = n == 0 ? 0 : numbers[std::min(n - 1, (2 * i + 1) * n / (2 * size_))].x;
  for (int round = 0; round < kRounds; ++round) {
    bool moved = false;
    for (size_t i = 0, first = 0; i < size_; ++i) {
      const double bound = i + 1 < size_ ? (levels[i] + levels[i + 1]) / 2 : 1e30;
      const auto end = static_cast<size_t>(
          std::upper_bound(numbers.begin() + static_cast<ptrdiff_t>(first), numbers.end(), bound,
                           [](double b, const WeightedNumber& x) { return b < x.x; }) -
          numbers.begin());
      const double weight = sums.weight[end] - sums.weight[first];
      if (weight > 0) {
        const double mean = (sums.product[end] - sums.product[first]) / weight;
        moved |= mean != levels[i];
        levels[i] = mean;
      }
      first = end;
    }
    if (!moved) break;
  }
  std::sort(levels.begin(), levels.end());
  for (size_t i = 0; i < size_; ++i)
    levels_[i] = f16_to_f32(f32_to_f16(static_cast<float>(levels[i])));
  set_bounds();
}

Codebook::Codebook(std::span<const uint16_t> levels) : size_(levels.size()) {
  for (size_t i = 0; i < size_; ++i) levels_[i] = f16_to_f32(levels[i]);
  set_bounds();
}

void Codebook::set_bounds() {
  for (size_t i = 0; i + 1 < size_; ++i) bounds_[i] = (levels_[i] + levels_[i + 1]) / 2;
}

}  // namespace pith
