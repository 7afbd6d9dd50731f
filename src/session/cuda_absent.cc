// What a build without CUDA has in place of cuda/cuda_engine.cc.

#include "pith/error.h"
#include "session/backend.h"
#include "session/no_cuda.h"

namespace pith {

void refuse_cuda() {
  throw Error(ErrorCode::kUnsupported,
              "the device 'cuda' was asked for, but this build has no CUDA; build one that has "
              "(cmake --preset cuda && ninja -C build/cuda pith_cli; in Python: pip install . -C "
              "cmake.define.PITH_CUDA=ON), or use the CPU (--device cpu)");
}

// The other build takes the model over. NOLINTNEXTLINE(performance-unnecessary-value-param)
std::unique_ptr<EngineBackend> make_cuda_engine(std::shared_ptr<const Model> /*model*/,
                                                const EngineOptions& /*options*/) {
  refuse_cuda();
}
double cuda_read_rate() { refuse_cuda(); }
size_t cuda_bytes_in_use() { refuse_cuda(); }

}  // namespace pith
