// In a build without CUDA, the counterpart of cuda/cuda_layer.cc.

#include "layer/layer_backend.h"
#include "session/no_cuda.h"

namespace pith {

std::unique_ptr<ComputeBackend> make_cuda_compute(const ComputeOptions& /*options*/) {
  refuse_cuda();
}

}  // namespace pith
