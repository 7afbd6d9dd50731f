#pragma once
// Rotary position embedding (Su et al. 2021) in the half-split layout of Hugging Face models:
// channel i is paired with channel i + D/2 and turned by position * inv_freq[i].

#include <complex>
#include <cstdint>
#include <new>
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
  /// The divisor of each frequency (LongRoPE, GGUF's rope_freqs): [rotated / 2]; empty: 1.
  std::vector<double> divisors = {};
  /// Channels that turn, an even number; 0 = all. Pairs past rotated / 2 stand still.
  size_t rotated = 0;
};

/// Numbers in whole cache lines: a vector that spans two lines costs two loads.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  explicit LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t n) {
    return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{64}));
  }
  void deallocate(T* p, size_t) { ::operator delete (p, std::align_val_t{64}); }
  bool operator==(const LineAllocator&) const { return true; }
};

class Rope {
 public:
  /// Throws kInvalidArgument for an odd head_dim, a theta, factor or divisor that is not positive,
  /// or more rotated channels than head_dim.
  Rope(size_t head_dim, double theta, const RopeScaling& scaling = {});
  /// From the frequencies themselves, in radians per position: [D/2]. Throws kInvalidArgument for
  /// none and for numbers that are not finite.
  explicit Rope(std::vector<double> frequencies);

  size_t head_dim() const { return 2 * inv_freq_.size(); }
  /// Radians a position, of each pair of channels: [D/2].
  const std::vector<double>& frequencies() const { return inv_freq_; }
  /// Cosines and sines of one position, [D/2] each. Angles are formed in double, so that position
  /// 10^6 is as exact as position 10.
  void angles(float* cos, float* sin, int64_t position) const;
  /// x [D] turned by `positions` steps (negative undoes).
  void rotate(const Kernels& kernels, float* x, int64_t positions) const;

 private:
  friend class RopeCursor;
  void make_tables();

  std::vector<double> inv_freq_;  // [D/2]
  // e^(i j w) and e^(i 64 j w) for j < 64: what RopeCursor multiplies instead of calling sin.
  std::vector<float, LineAllocator<float>> step_;  // [64, 2, D/2] cosines, then sines
  std::vector<std::complex<double>> block_;        // [64, D/2]
};

/// The RoPE of every layer: few differ. Does not own them.
class LayerRopes {
 public:
  LayerRopes() = default;       ///< none is known
  LayerRopes(const Rope* all);  // NOLINT(google-explicit-constructor)
  explicit LayerRopes(const std::vector<const Rope*>& layers);  // [L]

  /// The different ones, in the order of the first layer that has them.
  const std::vector<const Rope*>& distinct() const { return distinct_; }
  /// Which of distinct() layer `layer` has.
  size_t index(int layer) const { return of_.empty() ? 0 : of_[static_cast<size_t>(layer)]; }
  const Rope* of(int layer) const { return distinct_.empty() ? nullptr : distinct_[index(layer)]; }

 private:
  std::vector<const Rope*> distinct_;
  std::vector<size_t> of_;  // [L]; empty: all layers have the same
};

/// Angles of many positions that lie near each other, as the rows of a tile do: a position is
/// 4096 a + 64 b + c, and e^(i position w) is the product of three factors. The first is computed
/// when a changes, its product with the second when b changes; c's, one f32 complex product, is all
/// that most rows cost. Exact to 2e-7. Not thread-safe: one for each worker.
class RopeCursor {
 public:
  explicit RopeCursor(const Rope& rope);
  /// As Rope::angles.
  void angles(float* cos, float* sin, int64_t position);
  /// Rotates row t of x [count, D] to positions[t], or to first_position + t if positions is null.
  void rotate_rows(const Kernels& kernels, float* x, const uint32_t* positions,
                   int64_t first_position, size_t count);

 private:
  /// Makes near_turn_ that of position / 64 * 64; returns the step from there.
  const float* approach(int64_t position);

  const Rope* rope_;
  int64_t far_ = -1, near_ = -1;                        // a and 64 a + b of what is cached
  std::vector<std::complex<double>> far_turn_;          // [D/2]
  std::vector<float, LineAllocator<float>> near_turn_;  // [2, D/2] cosines, then sines
};

}  // namespace pith
