#include "attend/cuda/prefill.h"
#include "pith/error.h"

namespace pith::cuda {

// Nobody calls it for a card of compute capability 8.0.
void prefill_chunks_wgmma(const PrefillCall&, cudaStream_t) {
  throw Error(ErrorCode::kUnsupported, "the emulated card has no wgmma");
}

}  // namespace pith::cuda
