#include "attend/cuda/decode_kernel.cuh"

namespace pith::cuda {

void decode_dense(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream) {
  launch_decode<NoCodec>(call, scratch, stream);
}

}  // namespace pith::cuda
