#pragma once
// Storage types of dense numbers. Arithmetic is always f32.

#include <cstddef>
#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

enum class DType : uint8_t { kF32, kF16, kBF16 };

/// Bytes of one number.
constexpr size_t size_of(DType t) { return t == DType::kF32 ? 4 : 2; }

/// "f32", "f16" or "bf16".
const char* to_string(DType t);

/// Parses "f32", "f16" or "bf16". Throws kInvalidArgument for anything else.
DType parse_dtype(std::string_view name);

}  // namespace pith

#pragma GCC visibility pop
