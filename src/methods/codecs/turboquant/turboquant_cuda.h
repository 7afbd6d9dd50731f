#pragma once
// turboquant's decode kernels: one translation unit a number of bits, since they take the compiler
// long.

#include "attend/cuda/decode.h"

namespace pith::cuda {

/// Decode attention over dense spans and coded ones, whose codes lie in fragments (level_format.h)
/// and whose keys may be centred (DeviceSpan::group_blocks).
void decode_turboquant1(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream);
void decode_turboquant2(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream);
void decode_turboquant3(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream);
void decode_turboquant4(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream);

}  // namespace pith::cuda
