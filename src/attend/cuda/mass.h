#pragma once
// Attention mass on the GPU: probabilities of a step's queries, summed for each stored row of a KV
// head over the query heads of its group. A second pass over the keys, with the sums that attention
// left behind.
//
// Cost: a token reads its keys once more, mostly from cache; a chunk of T queries takes 2 D T
// operations per query head and row on the tensor cores, half of attention's.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attend/cuda/decode.h"
#include "kernels/cuda/ragged.h"
#include "pith/dtype.h"

namespace pith::cuda {

/// Rows of all KV heads and their mass. Coded rows stand between dense ones: in `mass` the order is
/// dense rows 0, ..., coded_from - 1, then the coded ones, then dense row coded_from and so on.
struct MassTarget {
  const void* keys = nullptr;  // [G, head_stride / D, D]
  float* mass = nullptr;       // [G, stride]
  size_t head_stride = 0;      ///< numbers
  size_t stride = 0;
  int32_t rows = 0;
  int32_t known = 0;  ///< rows, coded ones too, that have mass already; the others start from 0
  const void *codes = nullptr, *code_side = nullptr;  // [G, block_stride] blocks of coded keys
  size_t block_stride = 0;
  const void* records = nullptr;  // [G, record_stride] see DeviceCodec::record_bytes
  size_t record_stride = 0;
  int32_t coded_from = 0, coded = 0;
  int32_t first_head = 0;  ///< of the call's heads the first that is one of these
  /// Heads differ in their dense rows, and there are no codes, or in their coded rows, and none are
  /// dense: `rows`, or `coded`, is then the most of a head. A head's codes begin with a block.
  RaggedHeads heads = {};

  /// Of the call's heads.
  PITH_BOTH_SIDES size_t own(size_t head) const { return head - static_cast<size_t>(first_head); }
  PITH_BOTH_SIDES int count(size_t head) const {
    return codes ? rows : heads.rows_of(own(head), rows);
  }
  PITH_BOTH_SIDES int coded_count(size_t head) const {
    return codes ? heads.rows_of(own(head), coded) : 0;
  }
  PITH_BOTH_SIDES size_t first_block(size_t head) const {
    return heads.at(own(head), block_stride * kBlockRows) / kBlockRows;
  }
  PITH_BOTH_SIDES size_t keys_at(size_t head, size_t dim) const {
    return heads.at(own(head), head_stride, dim);
  }
  PITH_BOTH_SIDES size_t mass_at(size_t head) const { return heads.at(own(head), stride); }
};

struct MassShape {
  int query_heads = 0, kv_heads = 0, head_dim = 0;  ///< H, G, D: 64, 128 or 256
  DType dtype = DType::kF16;                        ///< of q and rows: kF16 or kBF16
  float soft_cap = 0;                               ///< as AttentionVariant's
};

/// One query, that sees all rows.
struct TokenMass {
  MassShape shape;
  const void* q = nullptr;         // [H, D]
  const float* log_sum = nullptr;  // [H] natural logarithm of the denominators
  /// As a decode call's, behind which this one comes. In a batch the place says where q and
  /// log_sum are, and the target is `target_at` bytes behind its note.
  DecodeCompany company = {};
  size_t target_at = 0;
  size_t targets_apart = 0;  ///< bytes from a KV head's target to the next one's; 0: they have one
};
/// `target` [1 or G] is read on the device, so that a graph stays valid. Coded rows are left out:
/// their codec sees to them (DeviceCodec::add_token_mass).
void add_token_mass(const TokenMass& call, const MassTarget* target, cudaStream_t stream);

/// The last `queries` of T queries; query t sees the first before + t + 1 rows.
struct ChunkMass {
  MassShape shape;
  const void* q = nullptr;         // [T, H, D]
  const float* log_sum = nullptr;  // [T, H] logarithm to base 2 of the denominators
  int tokens = 0, queries = 0;     // T
  int before = 0;
};
/// Dense rows alone.
void add_chunk_mass(const ChunkMass& call, const MassTarget& target, cudaStream_t stream);

}  // namespace pith::cuda
