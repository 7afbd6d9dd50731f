#include "kernels/cuda/skinny_product.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/device.h"
#include "pith/error.h"

namespace pith::cuda {

bool skinny_takes(const DeviceMatrix& w) {
  return w.dtype != DType::kF32 && w.in % kSkinnyPiece == 0 && w.out % 16 == 0;
}

// By measurement on an H100 (docs/decisions/0180): two blocks for each
// multiprocessor, which hold all of its shared memory for weights that are on their way.
SkinnyForm skinny_form(const DeviceMatrix& w, MatvecEnd end, bool whole) {
  if (parts_of(end) == 2) return {64, 1};
  const auto processors = static_cast<size_t>(device_info().multiprocessors);
  const int rows = w.out >= 128 * processors ? 128 : w.out >= 64 * processors ? 64 : 32;
  if (whole) return {rows, 1};
  const size_t blocks = (w.out + static_cast<size_t>(rows) - 1) / static_cast<size_t>(rows);
  return {rows, static_cast<int>(std::clamp<size_t>(2 * processors / blocks, 1, kMostSkinnyParts))};
}

void skinny_product(const SkinnyCall& call, cudaStream_t stream) {
  const SkinnyForm& f = call.form;
  const bool summed_here = f.parts == 1 || call.end == MatvecEnd::kStore;
  if (skinny_takes(call.w) && call.end != MatvecEnd::kAdd && call.tokens >= 1 &&
      call.tokens <= kMostSkinny && f.parts >= 1 && f.parts <= kMostSkinnyParts && summed_here &&
      (f.rows == 32 || f.rows == 64 || f.rows == 128))
    return launch_skinny(call, stream);
  throw Error(
      ErrorCode::kInternal,
      fmt::format("a product of {} tokens and {} x {} {}, {} rows at once, {} parts", call.tokens,
                  call.w.out, call.w.in, to_string(call.w.dtype), f.rows, f.parts));
}

}  // namespace pith::cuda
