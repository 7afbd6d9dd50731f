#include "kernels/cuda/matvec.h"

#include <fmt/format.h>

#include "kernels/cuda/device.h"
#include "pith/error.h"

namespace pith::cuda {

void MatvecCall::check() const {
  // Alone, a token's activations lie in shared memory.
  const size_t most = (device_info().shared_per_block - 1024) / sizeof(float);
  const bool even = w.out % static_cast<size_t>(parts_of(end)) == 0;
  if (w.in > 0 && w.out > 0 && even && w.in % (16 / size_of(w.dtype)) == 0 && w.in <= most) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("a weight matrix of {} x {} {} on the GPU: rows must be whole 16-byte "
                          "pieces and at most {} numbers long; use --device cpu",
                          w.out, w.in, to_string(w.dtype), most));
}

}  // namespace pith::cuda
