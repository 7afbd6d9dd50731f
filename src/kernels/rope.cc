#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pith/error.h"

namespace pith {
namespace {

constexpr int64_t kSteps = 64;
constexpr int64_t kFar = kSteps * kSteps;

/// Llama 3.1: wavelengths past the low-frequency bound are stretched by `factor`, those below the
/// high-frequency bound are kept, and those between are blended linearly in context / wavelength.
double scaled(double inv_freq, const RopeScaling& s) {
  if (s.factor == 1) return inv_freq;
  if (s.linear) return inv_freq / s.factor;
  const double turns = static_cast<double>(s.original_context) * inv_freq / (2 * std::numbers::pi);
  if (turns < s.low_freq_factor) return inv_freq / s.factor;
  if (turns > s.high_freq_factor) return inv_freq;
  const double keep = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - keep) * inv_freq / s.factor + keep * inv_freq;
}

}  // namespace

Rope::Rope(size_t head_dim, double theta, const RopeScaling& scaling) {
  const size_t rotated = scaling.rotated == 0 ? head_dim : scaling.rotated;
  const auto& divisors = scaling.divisors;
  const bool even = head_dim > 0 && head_dim % 2 == 0 && rotated % 2 == 0 && rotated <= head_dim;
  const bool positive = theta > 0 && scaling.factor > 0 &&
                        std::all_of(divisors.begin(), divisors.end(),
                                    [](double d) { return d > 0 && std::isfinite(d); });
  if (!even || !positive || (!divisors.empty() && divisors.size() != rotated / 2))
    throw Error(ErrorCode::kInvalidArgument,
                "rotary embedding needs an even head_dim, an even number of rotated channels "
                "within it, a positive base and scaling factor, and a positive divisor a pair if "
                "any; check the model's config.json");
  const size_t half = head_dim / 2;
  for (size_t i = 0; i < half; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(rotated);
    double inv_freq = scaled(std::pow(theta, -exponent), scaling);
    if (!divisors.empty() && i < rotated / 2) inv_freq /= divisors[i];
    inv_freq_.push_back(i < rotated / 2 ? inv_freq : 0.0);
  }
  make_tables();
}

Rope::Rope(std::vector<double> frequencies) : inv_freq_(std::move(frequencies)) {
  if (inv_freq_.empty() ||
      !std::all_of(inv_freq_.begin(), inv_freq_.end(), [](double w) { return std::isfinite(w); }))
    throw Error(ErrorCode::kInvalidArgument,
                "rotary embedding needs a finite frequency per pair of channels");
  make_tables();
}

void Rope::make_tables() {
  for (int64_t j = 0; j < kSteps; ++j) {
    for (double w : inv_freq_)
      step_.push_back(static_cast<float>(std::cos(static_cast<double>(j) * w)));
    for (double w : inv_freq_)
      step_.push_back(static_cast<float>(std::sin(static_cast<double>(j) * w)));
    for (double w : inv_freq_)
      block_.push_back(std::polar(1.0, static_cast<double>(j * kSteps) * w));
  }
}

void Rope::angles(float* cos, float* sin, int64_t position) const {
  for (size_t i = 0; i < inv_freq_.size(); ++i) {
    const double angle = static_cast<double>(position) * inv_freq_[i];
    cos[i] = static_cast<float>(std::cos(angle));
    sin[i] = static_cast<float>(std::sin(angle));
  }
}

void Rope::rotate(const Kernels& kernels, float* x, int64_t positions) const {
  if (positions == 0) return;
  std::vector<float> cos(inv_freq_.size()), sin(inv_freq_.size());
  angles(cos.data(), sin.data(), positions);
  kernels.rotate(x, cos.data(), sin.data(), head_dim());
}

LayerRopes::LayerRopes(const Rope* all) {
  if (all) distinct_.push_back(all);
}

LayerRopes::LayerRopes(const std::vector<const Rope*>& layers) {
  for (const Rope* rope : layers) {
    const auto known = std::find(distinct_.begin(), distinct_.end(), rope);
    of_.push_back(static_cast<size_t>(known - distinct_.begin()));
    if (known == distinct_.end()) distinct_.push_back(rope);
  }
}

RopeCursor::RopeCursor(const Rope& rope)
    : rope_(&rope), far_turn_(rope.inv_freq_.size()), near_turn_(2 * rope.inv_freq_.size()) {}

const float* RopeCursor::approach(int64_t position) {
  const size_t half = rope_->inv_freq_.size();
  if (const int64_t far = position / kFar; far != far_) {
    for (size_t i = 0; i < half; ++i)
      far_turn_[i] = std::polar(1.0, static_cast<double>(far * kFar) * rope_->inv_freq_[i]);
    far_ = far;
    near_ = -1;
  }
  if (const int64_t near = position / kSteps; near != near_) {
    const std::complex<double>* block =
        rope_->block_.data() + static_cast<size_t>(near % kSteps) * half;
    for (size_t i = 0; i < half; ++i) {
      const double ar = far_turn_[i].real(), ai = far_turn_[i].imag();
      const double br = block[i].real(), bi = block[i].imag();
      near_turn_[i] = static_cast<float>(ar * br - ai * bi);
      near_turn_[half + i] = static_cast<float>(ar * bi + ai * br);
    }
    near_ = near;
  }
  return rope_->step_.data() + static_cast<size_t>(position % kSteps) * 2 * half;
}

void RopeCursor::angles(float* cos, float* sin, int64_t position) {
  if (position < 0) return rope_->angles(cos, sin, position);
  const size_t half = rope_->inv_freq_.size();
  const float *step = approach(position), *near = near_turn_.data();
  for (size_t i = 0; i < half; ++i) {
    cos[i] = near[i] * step[i] - near[half + i] * step[half + i];
    sin[i] = near[i] * step[half + i] + near[half + i] * step[i];
  }
}

void RopeCursor::rotate_rows(const Kernels& kernels, float* x, const uint32_t* positions,
                             int64_t first_position, size_t count) {
  const size_t dim = rope_->head_dim();
  for (size_t t = 0; t < count; ++t) {
    const int64_t position =
        positions ? int64_t{positions[t]} : first_position + static_cast<int64_t>(t);
    if (position < 0) {
      rope_->rotate(kernels, x + t * dim, position);
      continue;
    }
    const float* step = approach(position);
    kernels.rotate_by_two(x + t * dim, near_turn_.data(), step, dim);
  }
}

}  // namespace pith
