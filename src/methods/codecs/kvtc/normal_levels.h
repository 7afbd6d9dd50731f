#pragma once
// Levels of least squared error for normal numbers of variance 1 (Lloyd and Max), 1 to 8 bits.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pith {

inline constexpr int kMostLevelBits = 8;

class NormalLevels {
 public:
  explicit NormalLevels(int bits);

  /// The nearest level's index.
  uint32_t nearest(float x) const {
    uint32_t code = 0;
    for (size_t step = levels_.size() / 2; step > 0; step /= 2)
      if (x > bounds_[code + step - 1]) code += static_cast<uint32_t>(step);
    return code;
  }
  float at_nearest(float x) const { return levels_[nearest(x)]; }
  /// Ascending.
  const std::vector<float>& levels() const { return levels_; }
  /// Mean squared error.
  double error() const { return error_; }

 private:
  std::vector<float> levels_;  // [2^b]
  std::vector<float> bounds_;  // [2^b - 1] halfway between
  double error_ = 1;
};

/// Of b bits at [b - 1].
const std::array<NormalLevels, kMostLevelBits>& normal_levels();

}  // namespace pith
