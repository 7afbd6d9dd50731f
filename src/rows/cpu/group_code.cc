#include "rows/cpu/group_code.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "pith/error.h"

namespace pith {

uint32_t GroupCode::operator()(float x) const {
  const float code = std::nearbyint((x - low) * inverse);
  return static_cast<uint32_t>(std::clamp(code, 0.0f, static_cast<float>(most)));
}

GroupCode choose_code(float least, float most, int bits, uint16_t* scale_bits, uint16_t* low_bits) {
  const auto levels = static_cast<float>((1 << bits) - 1);
  const auto half = static_cast<float>(1 << (bits - 1));
  const float scale = low_bits ? (most - least) / levels : std::max(-least, most) / (half - 1);
  *scale_bits = f32_to_f16(scale);
  if (low_bits) *low_bits = f32_to_f16(least);
  const float rounded = f16_to_f32(*scale_bits);
  const float low = low_bits ? f16_to_f32(*low_bits) : -rounded * half;
  if (!std::isfinite(rounded) || !std::isfinite(low))
    throw Error(ErrorCode::kNonFinite,
                fmt::format("keys or values between {} and {} do not fit {}-bit codes with f16 "
                            "scales; {}",
                            least, most, bits,
                            std::isfinite(least) && std::isfinite(most)
                                ? "use bf16 or f32 rows for this model"
                                : "the model's activations are not finite"));
  return {rounded > 0 ? 1 / rounded : 0, low, static_cast<uint32_t>(levels)};
}

void put_code(uint8_t* row, size_t dim, int bits, size_t c, uint32_t code) {
  const auto b = static_cast<size_t>(bits);
  const size_t group = c / 32, bytes = std::min<size_t>(32, dim - group * 32) * b / 8;
  const size_t at = c % 32;
  row[group * 4 * b + at % bytes] |= static_cast<uint8_t>(code << (at / bytes * b));
}

}  // namespace pith
