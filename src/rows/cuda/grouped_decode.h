#pragma once
// One translation unit a codec: the kernels take the compiler long.

#include "attend/cuda/decode.h"

namespace pith::cuda {

void decode_kivi2(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream);
void decode_kivi4(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream);
void decode_int4(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream);
void decode_int8(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream);
/// Rows that a Walsh-Hadamard transform rotated.
void decode_rotated_int4(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream);
void decode_rotated_int8(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream);
/// Keys in int8, values in int4, as they are or rotated.
void decode_int8_int4(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream);
void decode_int8_rotated_int4(const DecodeCall& call, const DecodeScratch& scratch,
                              cudaStream_t stream);
/// One side in rows of f16 or bf16 as they are, the other in int4 or int8.
void decode_f16_keys(int bits, const DecodeCall& call, const DecodeScratch& scratch,
                     cudaStream_t stream);
void decode_f16_values(int bits, const DecodeCall& call, const DecodeScratch& scratch,
                       cudaStream_t stream);
void decode_bf16_keys(int bits, const DecodeCall& call, const DecodeScratch& scratch,
                      cudaStream_t stream);
void decode_bf16_values(int bits, const DecodeCall& call, const DecodeScratch& scratch,
                        cudaStream_t stream);
/// turboquant (plane_tiles.cuh), values in fewer bits than keys.
void decode_turboquant4_3(const DecodeCall& call, const DecodeScratch& scratch,
                          cudaStream_t stream);
void decode_turboquant4_2(const DecodeCall& call, const DecodeScratch& scratch,
                          cudaStream_t stream);
void decode_turboquant3_2(const DecodeCall& call, const DecodeScratch& scratch,
                          cudaStream_t stream);
/// Keys in int8, values in turboquant's 3 bits.
void decode_int8_turboquant3(const DecodeCall& call, const DecodeScratch& scratch,
                             cudaStream_t stream);

}  // namespace pith::cuda
