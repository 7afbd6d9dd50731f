#include "core/weight_type.h"

#include <algorithm>
#include <array>

#include "core/gguf.h"

namespace pith {
namespace {

constexpr std::array kAll = {WeightType::kF32,    WeightType::kF16,    WeightType::kBF16,
                             WeightType::kQ8Zero, WeightType::kQ4Zero, WeightType::kQ4One,
                             WeightType::kQ5Zero, WeightType::kQ5One,  WeightType::kQ4K,
                             WeightType::kQ5K,    WeightType::kQ6K,    WeightType::kIq4Xs,
                             WeightType::kIq4Nl,  WeightType::kQ3K,    WeightType::kQ2K};

constexpr std::array<uint8_t, 2> kFirst = {0, 2}, kQ2 = {80, 82};
constexpr std::array<uint8_t, 1> kQ3 = {108}, kQ6 = {208};

const GgufTensorType& row_of(WeightType type) {
  return *gguf_tensor_type(static_cast<uint32_t>(type));
}

}  // namespace

std::span<const WeightType> weight_types() { return kAll; }
const char* to_string(WeightType type) { return row_of(type).name; }
size_t block_elements(WeightType type) { return row_of(type).elements; }
size_t block_bytes(WeightType type) { return row_of(type).bytes; }

std::span<const uint8_t> scale_offsets(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16: return {};
    case WeightType::kQ4One:
    case WeightType::kQ5One:
    case WeightType::kQ4K:
    case WeightType::kQ5K: return kFirst;
    case WeightType::kQ2K: return kQ2;
    case WeightType::kQ3K: return kQ3;
    case WeightType::kQ6K: return kQ6;
    case WeightType::kQ4Zero:
    case WeightType::kQ5Zero:
    case WeightType::kQ8Zero:
    case WeightType::kIq4Nl:
    case WeightType::kIq4Xs: break;
  }
  return std::span(kFirst).first(1);
}

std::optional<WeightType> weight_type(uint32_t gguf_id) {
  for (WeightType type : kAll) {
    if (static_cast<uint32_t>(type) == gguf_id) return type;
  }
  return std::nullopt;
}

}  // namespace pith
