// Plain C++ twins of the primitives in level_rows.cc.

#include <cmath>

#include "kernels/cpu/tables.h"

namespace pith::levels_scalar {
namespace {

/// The level of channel c of row t, bit by bit.
float level(const LevelRows& rows, size_t t, size_t c) {
  const auto bits = static_cast<size_t>(rows.bits);
  const uint8_t* row = rows.codes + t * rows.stride;
  size_t code = 0;
  for (size_t i = 0; i < bits; ++i) {
    const size_t at = c * bits + i;
    code |= static_cast<size_t>(row[at / 8] >> (at % 8) & 1) << i;
  }
  return rows.levels[code];
}

}  // namespace

void dot_levels(float* out, size_t ld, const float* q, size_t queries, const LevelRows& rows,
                size_t count, float scale) {
  for (size_t t = 0; t < count; ++t)
    for (size_t m = 0; m < queries; ++m) {
      float sum = 0;
      for (size_t c = 0; c < rows.dim; ++c) sum += q[m * rows.dim + c] * level(rows, t, c);
      out[m * ld + t] = scale * sum;
    }
}

void add_levels(float* acc, const float* p, size_t ld, size_t queries, const LevelRows& rows,
                size_t count) {
  for (size_t t = 0; t < count; ++t)
    for (size_t c = 0; c < rows.dim; ++c) {
      const float x = level(rows, t, c);
      for (size_t m = 0; m < queries; ++m) acc[m * rows.dim + c] += p[m * ld + t] * x;
    }
}

void unpack_levels(float* out, const LevelRows& rows, const float* scale, const float* low,
                   size_t count) {
  for (size_t t = 0; t < count; ++t)
    for (size_t c = 0; c < rows.dim; ++c)
      out[t * rows.dim + c] = std::fma(scale[c], level(rows, t, c), low[c]);
}

}  // namespace pith::levels_scalar
