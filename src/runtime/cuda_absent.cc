// In a build without CUDA, the counterpart of cuda/cuda_runtime.cc.

#include "pith/error.h"
#include "runtime/runtime.h"

namespace pith {

void refuse_cuda() {
  throw Error(ErrorCode::kUnsupported,
              "the device 'cuda' was asked for, but this build has no CUDA; build one that has "
              "(cmake --preset cuda && ninja -C build/cuda pith_cli; in Python: pip install . -C "
              "cmake.define.PITH_CUDA=ON), or use the CPU (--device cpu)");
}

std::unique_ptr<RuntimeBackend> make_cuda_runtime(const RuntimeOptions& /*options*/) {
  refuse_cuda();
}

}  // namespace pith
