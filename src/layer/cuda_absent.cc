// In a build without CUDA, the counterpart of cuda/cuda_layer.cc.

#include "layer/layer_backend.h"
#include "runtime/runtime.h"

namespace pith {

std::unique_ptr<LayerBackend> make_cuda_layer(RuntimeBackend& /*runtime*/,
                                              const LayerCacheOptions& /*options*/) {
  refuse_cuda();
}

void step_cuda_layers(std::span<const BackendStep> /*steps*/) { refuse_cuda(); }

}  // namespace pith
