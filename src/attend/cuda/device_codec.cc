#include "attend/cuda/device_codec.h"

#include <fmt/format.h>

#include "pith/error.h"

namespace pith::cuda {

void refuse_on_gpu(const std::string& what, const std::string& supported) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{} is not on the GPU yet; {}; use --device cpu", what, supported));
}

}  // namespace pith::cuda
