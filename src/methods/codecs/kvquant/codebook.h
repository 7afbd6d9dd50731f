#pragma once
// A non-uniform code for numbers mostly in [0, 1]: 2^b levels from weighted 1-d k-means (Lloyd),
// begun at quantiles. KVQuant's "nuq" datatype.

#include <array>
#include <cstdint>
#include <span>

namespace pith {

inline constexpr int kMostCodebookBits = 4;

/// A number and how much its squared error counts.
struct WeightedNumber {
  float x = 0, weight = 0;
};

class Codebook {
 public:
  Codebook() = default;
  /// Fits 2^bits levels. Sorts `numbers`. Cost: n log n and about 30 (n + 2^b).
  Codebook(std::span<WeightedNumber> numbers, int bits);
  /// Of levels that another one had, in f16.
  explicit Codebook(std::span<const uint16_t> levels);

  uint8_t nearest(float x) const {
    uint8_t code = 0;
    for (size_t i = 0; i + 1 < size_; ++i) code = static_cast<uint8_t>(code + (x > bounds_[i]));
    return code;
  }
  /// Ascending, as f16 holds them; [16], unused ones 0.
  const float* levels() const { return levels_.data(); }
  size_t size() const { return size_; }

 private:
  void set_bounds();

  size_t size_ = 0;                                             // 2^b
  std::array<float, size_t{1} << kMostCodebookBits> levels_{};  // [2^b]
  std::array<float, size_t{1} << kMostCodebookBits> bounds_{};  // [2^b - 1] halfway between
};

}  // namespace pith
