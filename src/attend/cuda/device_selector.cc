#include "attend/cuda/device_selector.h"

#include "attend/cuda/device_codec.h"
#include "compress/heavy.h"

namespace pith::cuda {

void refuse_heavy_on_gpu(const Parameters& parameters) {
  if (!has_heavy(parameters)) return;
  refuse_on_gpu(parameters.method() + "(heavy=...)", "samples are without heavy rows there");
}

}  // namespace pith::cuda
