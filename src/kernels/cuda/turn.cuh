#pragma once
// RoPE's angles in kernels, from the position itself: 40 operations each.

#include <cstdint>

#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {

/// Cosine and sine of the angle of one pair of channels; `turns`: turns a position, which is the
/// frequency over 2 pi. Whole turns are taken off in f64: exact to 3e-7 at any position.
__device__ inline float2 turn_at(double turns, int64_t position) {
  const double all = static_cast<double>(position) * turns;
  float sine, cosine;
  sincospif(2 * static_cast<float>(all - rint(all)), &sine, &cosine);
  return {cosine, sine};
}

/// Channel c of a row [dim] as it was before RoPE put it at `position`. Without turns: as it is.
template <class T>
__device__ inline float turned_back(const T* row, int c, int dim, const double* turns,
                                    int64_t position) {
  const float x = to_float(row[c]);
  if (!turns) return x;
  const int half = dim / 2;
  const float2 angle = turn_at(turns[c % half], position);
  return c < half ? fmaf(x, angle.x, to_float(row[c + half]) * angle.y)
                  : fmaf(x, angle.x, -to_float(row[c - half]) * angle.y);
}

}  // namespace pith::cuda
