#include "methods/codecs/csr/packed_pairs.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/dtype.h"

namespace pith {
namespace {

constexpr float kLargestF16 = 65504;

}  // namespace

PackedPairs::PackedPairs(size_t atoms)
    : index_bits_(std::max(1, static_cast<int>(std::bit_width(atoms - 1)))) {}

uint16_t PackedPairs::pack(uint16_t* codes, const uint16_t* indices, const uint16_t* coefficients,
                           size_t pairs) const {
  float largest = 0;
  for (size_t i = 0; i < pairs; ++i)
    largest = std::max(largest, std::abs(f16_to_f32(coefficients[i])));
  // Codes are chosen for the scale that is stored. It is rounded up, so that nothing is cut; then
  // the largest number may be more than f16 has, and one step less is.
  const float exact = largest / static_cast<float>(most());
  uint16_t stored = f32_to_f16(exact);
  if (f16_to_f32(stored) < exact) ++stored;
  const float scale = f16_to_f32(stored);
  const float limit = std::min(static_cast<float>(most()), std::floor(kLargestF16 / scale));
  for (size_t i = 0; i < pairs; ++i) {
    const float steps = scale > 0 ? std::round(f16_to_f32(coefficients[i]) / scale) : 0;
    const int code = static_cast<int>(std::clamp(steps, -limit, limit));
    codes[i] = static_cast<uint16_t>(static_cast<uint32_t>(code) << index_bits_ | indices[i]);
  }
  return stored;
}

void PackedPairs::unpack(uint16_t* indices, uint16_t* coefficients, const uint16_t* codes,
                         const uint16_t* scales, size_t pairs, size_t rows) const {
  for (size_t t = 0; t < rows; ++t) {
    const float scale = f16_to_f32(scales[t]);
    for (size_t i = 0; i < pairs; ++i, ++codes, ++indices, ++coefficients) {
      *indices = static_cast<uint16_t>(index_of(*codes));
      const int steps = static_cast<int16_t>(*codes) >> index_bits_;
      *coefficients = f32_to_f16(static_cast<float>(steps) * scale);
    }
  }
}

}  // namespace pith
