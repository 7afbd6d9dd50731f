#include "core/dtype.h"

#include <string>

#include "pith/error.h"

namespace pith {

const char* to_string(DType t) {
  switch (t) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
  }
  return "?";
}

DType parse_dtype(std::string_view name) {
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16})
    if (name == to_string(t)) return t;
  throw Error(ErrorCode::kInvalidArgument,
              "unknown dtype '" + std::string(name) + "'; supported: f32, f16, bf16");
}

}  // namespace pith
