#include "core/finite.h"

#include <cstdint>

namespace pith {
namespace {

template <class T>
bool any_full_exponent(const void* numbers, size_t count, T mask) {
  // Adding the exponent's lowest bit carries into the sign bit only from an exponent of all ones:
  // a loop without branches, which compilers turn into vector code.
  const T low = static_cast<T>(mask & (~mask + 1));
  const T* x = static_cast<const T*>(numbers);
  T seen = 0;
  for (size_t i = 0; i < count; ++i) seen |= static_cast<T>((x[i] & mask) + low);
  return (seen & static_cast<T>(~(static_cast<T>(~T{0}) >> 1))) != 0;
}

}  // namespace

bool has_non_finite(const void* numbers, DType dtype, size_t count) {
  switch (dtype) {
    case DType::kF32: return any_full_exponent<uint32_t>(numbers, count, 0x7F800000u);
    case DType::kF16: return any_full_exponent<uint16_t>(numbers, count, 0x7C00u);
    case DType::kBF16: return any_full_exponent<uint16_t>(numbers, count, 0x7F80u);
  }
  return false;
}

}  // namespace pith
