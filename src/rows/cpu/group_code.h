#pragma once
// How a group of numbers becomes codes: scale and minimum are rounded to f16 first, then each code
// is the nearest for the rounded ones. Shared by per-token and per-channel groups, and the
// definition that the CUDA coders follow.

#include <cstddef>
#include <cstdint>

namespace pith {

/// code = round((x - low) * inverse), between 0 and 2^b - 1.
struct GroupCode {
  float inverse = 0, low = 0;
  uint32_t most = 0;
  uint32_t operator()(float x) const;
};

/// For numbers between `least` and `most`. Writes the f16 scale and, if `low_bits` is not null, the
/// f16 minimum; without, codes lie around 2^(b-1) and the larger end decides. Throws kNonFinite
/// where f16 cannot hold them.
GroupCode choose_code(float least, float most, int bits, uint16_t* scale_bits, uint16_t* low_bits);

/// Writes `code` of channel c (of `dim`) into a row laid out as CodeRows says; the row was zeroed.
void put_code(uint8_t* row, size_t dim, int bits, size_t c, uint32_t code);

}  // namespace pith
