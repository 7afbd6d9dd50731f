// For builds without CUDA, in place of cuda/cuda_engine.cc.

#include "runtime/runtime.h"
#include "session/backend.h"

namespace pith {

// The other build takes the model over. NOLINTNEXTLINE(performance-unnecessary-value-param)
std::unique_ptr<EngineBackend> make_cuda_engine(std::shared_ptr<const Model> /*model*/,
                                                const EngineOptions& /*options*/,
                                                RuntimeBackend& /*runtime*/) {
  refuse_cuda();
}
double cuda_read_rate() { refuse_cuda(); }
size_t cuda_bytes_in_use() { refuse_cuda(); }

}  // namespace pith
