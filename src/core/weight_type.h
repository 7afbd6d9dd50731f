#pragma once
// How weight matrices store their rows: dense numbers, or blocks of 32 or 256 codes with their
// scales. DType, which caches are made of too, has the dense ones alone.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "pith/dtype.h"

namespace pith {

/// Numbered as GGUF numbers them.
enum class WeightType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kQ4Zero = 2,
  kQ4One = 3,
  kQ5Zero = 6,
  kQ5One = 7,
  kQ8Zero = 8,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kIq4Nl = 20,
  kIq4Xs = 23,
  kBF16 = 30
};

/// All of them, the dense ones first.
std::span<const WeightType> weight_types();
/// GGUF's name, e.g. "Q4_K".
const char* to_string(WeightType type);
/// Numbers of a block, 1 of dense types, and its bytes.
size_t block_elements(WeightType type);
size_t block_bytes(WeightType type);
/// Bytes of n numbers, which are whole blocks.
inline size_t row_bytes(WeightType type, size_t n) {
  return n / block_elements(type) * block_bytes(type);
}
/// Where a block's f16 scales and minima lie.
std::span<const uint8_t> scale_offsets(WeightType type);

/// The one with this number, if it is one of these.
std::optional<WeightType> weight_type(uint32_t gguf_id);
constexpr WeightType weight_type(DType dtype) {
  if (dtype == DType::kF32) return WeightType::kF32;
  return dtype == DType::kF16 ? WeightType::kF16 : WeightType::kBF16;
}
/// The dense type that this is, if it is one.
constexpr std::optional<DType> dense_type(WeightType type) {
  switch (type) {
    case WeightType::kF32: return DType::kF32;
    case WeightType::kF16: return DType::kF16;
    case WeightType::kBF16: return DType::kBF16;
    default: return std::nullopt;
  }
}

}  // namespace pith
