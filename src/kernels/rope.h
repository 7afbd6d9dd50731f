#pragma once
// Rotary position embedding (Su et al. 2021) in the half-split layout of Hugging Face models:
// channel i is paired with channel i + D/2 and turned by position * inv_freq[i].

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace pith {

/// Llama 3.1's frequency scaling ("rope_type": "llama3"); factor 1 = none.
struct RopeScaling {
  float factor = 1;
  float low_freq_factor = 1;
  float high_freq_factor = 4;
  int64_t original_context = 8192;
  bool linear = false;  ///< "linear": every frequency divided by factor
};

class Rope {
 public:
  Rope(size_t head_dim, double theta, const RopeScaling& scaling = {});

  size_t head_dim() const { return 2 * inv_freq_.size(); }
  /// Cosines and sines of one position, [D/2] each. Angles are formed in double, so that position
  /// 10^6 is as exact as position 10.
  void angles(float* cos, float* sin, int64_t position) const;
  /// x [D] turned by `positions` steps (negative undoes).
  void rotate(const Kernels& kernels, float* x, int64_t positions) const;

 private:
  std::vector<double> inv_freq_;  // [D/2]
};

}  // namespace pith
