#include "methods/qjl/qjl_cuda.h"

#include <fmt/format.h>

#include "pith/error.h"

namespace pith::cuda {

void QjlProjection::check() const {
  if (rows && (m == 256 || m == 512) && (head_dim == 64 || head_dim == 128)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("QJL on the GPU was asked for m = {} bits at head_dim {}; it takes m = 256 "
                  "or 512 and head_dim 64 or 128",
                  m, head_dim));
}

GroupedBytes qjl_bytes(int m, int head_dim) {
  const auto d = static_cast<size_t>(head_dim);
  return {static_cast<size_t>(m + kQjlOutlierSketch) * 4, 128, 8 * d, 4 * d};
}

}  // namespace pith::cuda
