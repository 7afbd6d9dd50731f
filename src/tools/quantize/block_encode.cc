#include "tools/quantize/block_encode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr std::array kTypes = {WeightType::kQ8Zero, WeightType::kQ4Zero, WeightType::kQ5Zero,
                               WeightType::kQ4K};

/// A scale as the file holds it.
struct Half {
  explicit Half(float x) : bits(f32_to_f16(x)), value(f16_to_f32(bits)) {
    if (std::isfinite(value)) return;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a block would need the scale {}, and f16 ends at 65504", x));
  }
  void put(uint8_t* to) const { std::memcpy(to, &bits, sizeof(bits)); }
  uint16_t bits;
  float value;
};

/// x / scale to the nearest whole number in [least, most].
int code_of(float x, float inverse, int least, int most) {
  return static_cast<int>(
      std::lrint(std::clamp(x * inverse, static_cast<float>(least), static_cast<float>(most))));
}
float inverse_of(float scale) { return scale == 0 ? 0 : 1 / scale; }

void encode_q8(uint8_t* out, const float* x) {
  float most = 0;
  for (size_t i = 0; i < 32; ++i) most = std::max(most, std::abs(x[i]));
  const Half scale(most / 127);
  scale.put(out);
  for (size_t i = 0; i < 32; ++i)
    out[2 + i] = static_cast<uint8_t>(code_of(x[i], inverse_of(scale.value), -127, 127));
}

/// The scale with the least square error among some about the one that reaches the number farthest
/// from 0, with codes from -half to half - 1.
Half best_scale(const float* x, int half) {
  float farthest = 0;
  for (size_t i = 0; i < 32; ++i)
    if (std::abs(x[i]) > std::abs(farthest)) farthest = x[i];
  const auto error_of = [&](float scale) {
    float error = 0;
    for (size_t i = 0; i < 32; ++i) {
      const auto code = static_cast<float>(code_of(x[i], inverse_of(scale), -half, half - 1));
      error += (x[i] - scale * code) * (x[i] - scale * code);
    }
    return error;
  };
  Half best(farthest / static_cast<float>(-half));
  float least = error_of(best.value);
  constexpr int kTries = 12;
  for (int i = -kTries; i <= kTries; ++i) {
    const float reach = static_cast<float>(half) * (1 + static_cast<float>(i) / 40);
    const float inverse = farthest == 0 ? 0 : -reach / farthest;
    float products = 0, squares = 0;
    for (size_t j = 0; j < 32; ++j) {
      const auto code = static_cast<float>(code_of(x[j], inverse, -half, half - 1));
      products += x[j] * code, squares += code * code;
    }
    if (squares == 0) continue;
    const Half fitted(products / squares);
    const float error = error_of(fitted.value);
    if (error < least) best = fitted, least = error;
  }
  return best;
}

/// Half bytes of 32 codes: the low halves first.
void put_halves(uint8_t* out, const std::array<int, 32>& codes) {
  for (size_t i = 0; i < 16; ++i)
    out[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

void encode_q4(uint8_t* out, const float* x) {
  const Half scale = best_scale(x, 8);
  scale.put(out);
  std::array<int, 32> codes{};
  for (size_t i = 0; i < 32; ++i) codes[i] = code_of(x[i], inverse_of(scale.value), -8, 7) + 8;
  put_halves(out + 2, codes);
}

void encode_q5(uint8_t* out, const float* x) {
  const Half scale = best_scale(x, 16);
  scale.put(out);
  std::array<int, 32> codes{};
  uint32_t fifth = 0;
  for (size_t i = 0; i < 32; ++i) {
    codes[i] = code_of(x[i], inverse_of(scale.value), -16, 15) + 16;
    fifth |= static_cast<uint32_t>(codes[i] >> 4) << i;
  }
  std::memcpy(out + 2, &fifth, sizeof(fifth));
  put_halves(out + 6, codes);
}

/// y = scale code - minimum, with codes from 0 to 15 and minimum >= 0.
struct Line {
  float scale = 0, minimum = 0;

  float error(const float* x) const {
    float sum = 0;
    for (size_t i = 0; i < 32; ++i) {
      const auto code = static_cast<float>(code_of(x[i] + minimum, inverse_of(scale), 0, 15));
      const float off = x[i] - (scale * code - minimum);
      sum += off * off;
    }
    return sum;
  }
};

/// The line of least square error through numbers and the codes that another line gives them.
Line refitted(const float* x, const Line& line) {
  float codes = 0, squares = 0, sum = 0, products = 0;
  for (size_t i = 0; i < 32; ++i) {
    const auto c = static_cast<float>(code_of(x[i] + line.minimum, inverse_of(line.scale), 0, 15));
    codes += c, squares += c * c, sum += x[i], products += x[i] * c;
  }
  const float spread = 32 * squares - codes * codes;
  if (spread <= 0) return line;
  Line out{(32 * products - codes * sum) / spread, (codes * products - squares * sum) / spread};
  if (out.minimum < 0) out = {products / squares, 0};
  return out.scale > 0 ? out : line;
}

Line best_line(const float* x) {
  const auto [least_x, most_x] = std::minmax_element(x, x + 32);
  const float low = std::min(*least_x, 0.0f), width = *most_x - low;
  if (!(width > 0)) return {0, -low};
  Line best{width / 15, -low};
  float least = best.error(x);
  constexpr int kTries = 20;
  for (int i = 0; i <= kTries; ++i) {
    const float steps = 14 + static_cast<float>(i) / 10;
    const Line line = refitted(x, {width / steps, -low});
    const float error = line.error(x);
    if (error < least) best = line, least = error;
  }
  return best;
}

/// The numbers nearest to a code of 6 bits times its block's scale.
int six_bits(float x, float unit) { return code_of(x, inverse_of(unit), 0, 63); }

void encode_q4k(uint8_t* out, const float* x) {
  std::array<Line, 8> lines;
  float scale = 0, minimum = 0;
  for (size_t j = 0; j < 8; ++j) {
    lines[j] = best_line(x + 32 * j);
    scale = std::max(scale, lines[j].scale), minimum = std::max(minimum, lines[j].minimum);
  }
  const Half d(scale / 63), dmin(minimum / 63);
  d.put(out), dmin.put(out + 2);
  uint8_t* sides = out + 4;
  uint8_t* halves = out + 16;
  std::fill(sides, halves + 128, uint8_t{0});
  for (size_t j = 0; j < 8; ++j) {
    // Neighbours of the nearest may do better: one is rounded with the other's rounding in view.
    const int s0 = six_bits(lines[j].scale, d.value), m0 = six_bits(lines[j].minimum, dmin.value);
    int s = s0, m = m0;
    float least = HUGE_VALF;
    for (int a = std::max(s0 - 1, 0); a <= std::min(s0 + 1, 63); ++a) {
      for (int b = std::max(m0 - 1, 0); b <= std::min(m0 + 1, 63); ++b) {
        const float error =
            Line{d.value * static_cast<float>(a), dmin.value * static_cast<float>(b)}.error(x +
                                                                                            32 * j);
        if (error < least) s = a, m = b, least = error;
      }
    }
    if (j < 4) {
      sides[j] = static_cast<uint8_t>(sides[j] | s);
      sides[j + 4] = static_cast<uint8_t>(sides[j + 4] | m);
    } else {
      sides[j + 4] = static_cast<uint8_t>((s & 15) | (m & 15) << 4);
      sides[j - 4] = static_cast<uint8_t>(sides[j - 4] | (s >> 4) << 6);
      sides[j] = static_cast<uint8_t>(sides[j] | (m >> 4) << 6);
    }
    const Line line{d.value * static_cast<float>(s), dmin.value * static_cast<float>(m)};
    for (size_t i = 0; i < 32; ++i) {
      const int code = code_of(x[32 * j + i] + line.minimum, inverse_of(line.scale), 0, 15);
      uint8_t& byte = halves[32 * (j / 2) + i];
      byte = static_cast<uint8_t>(byte | code << (4 * (j & 1)));
    }
  }
}

}  // namespace

std::span<const WeightType> encoded_types() { return kTypes; }

void encode_blocks(std::byte* out, const float* x, WeightType type, size_t n) {
  void (*encode)(uint8_t*, const float*) = nullptr;
  switch (type) {
    case WeightType::kQ8Zero: encode = encode_q8; break;
    case WeightType::kQ4Zero: encode = encode_q4; break;
    case WeightType::kQ5Zero: encode = encode_q5; break;
    case WeightType::kQ4K: encode = encode_q4k; break;
    default:
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("blocks of {} are not made; supported: Q8_0, Q4_0, Q5_0, Q4_K",
                              to_string(type)));
  }
  for (size_t i = 0; i < n; i += block_elements(type), out += block_bytes(type))
    encode(reinterpret_cast<uint8_t*>(out), x + i);
}

}  // namespace pith
