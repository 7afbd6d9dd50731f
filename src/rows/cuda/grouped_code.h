#pragma once
// KIVI, int4 and int8 rows on the GPU: coding, and decode attention straight from the codes.
// Rows are coded in blocks of 32; fewer stay in the window until a block is full.

#include <span>

#include "attend/cuda/code_rows.h"
#include "attend/cuda/decode.h"
#include "attend/cuda/mass.h"

namespace pith::cuda {

/// The last two code rows that a Walsh-Hadamard transform rotated, as int4 and int8 do.
enum class GroupedCodec { kKivi2, kKivi4, kInt4, kInt8, kRotatedInt4, kRotatedInt8 };

/// The rows that share a scale, and whether a minimum stands beside it.
enum class Grouping { kChannelKeys, kTokenKeys, kAsymmetricValues, kSymmetricValues };

template <Grouping kGrouping>
inline constexpr bool kIsKeys =
    kGrouping == Grouping::kChannelKeys || kGrouping == Grouping::kTokenKeys;
template <Grouping kGrouping>
inline constexpr bool kHasMinima =
    kGrouping == Grouping::kChannelKeys || kGrouping == Grouping::kAsymmetricValues;

GroupedBytes grouped_bytes(GroupedCodec codec, int head_dim);

/// Many places at once: one launch for up to 64 keys' and one for their values.
void code_grouped(GroupedCodec codec, const CodeBatch& batch, std::span<const CodeJob> keys,
                  std::span<const CodeJob> values, cudaStream_t stream);

/// Coded rows of many places as dense ones (DeviceCodec::unpack_keys_of).
void unpack_grouped_keys(GroupedCodec codec, std::span<const UnpackRowsCall> calls,
                         cudaStream_t stream);
void unpack_grouped_values(GroupedCodec codec, std::span<const UnpackRowsCall> calls,
                           cudaStream_t stream);

/// int4 and int8, rotated or not, `bits` a code. Rows move as they are (see MoveCodesCall), and the
/// mass of a token is summed over dense and coded keys (see MassTarget).
void move_coded_rows(int bits, std::span<const MoveCodesCall> calls, cudaStream_t stream);
/// Keys alone, else values.
void move_coded_sides(int bits, bool keys, std::span<const MoveCodesCall> calls,
                      cudaStream_t stream);
/// The same of KIVI's values in two bits alone.
void move_kivi2_values(const MoveCodesCall& call, cudaStream_t stream);
void add_coded_mass(GroupedCodec keys, const TokenMass& call, const MassTarget* target,
                    cudaStream_t stream);

/// Decode attention over dense spans and spans of `codec`.
void decode_grouped(GroupedCodec codec, const DecodeCall& call, const DecodeScratch& scratch,
                    cudaStream_t stream);

}  // namespace pith::cuda
