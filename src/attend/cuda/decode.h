#pragma once
// Decode attention on the GPU: one query token a sequence against the stored rows of each of its
// KV heads. One launch, whatever the number of heads, spans and rows: the rows of all heads are one
// list of tiles, cut evenly over the multiprocessors (split-K); the last block to finish a head
// merges its partial results. Descriptors and row counts live on the device, so a captured graph
// stays valid while the cache grows.
//
// Cost: each row's bytes are read once for its whole query group.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/grouped_layout.h"
#include "pith/dtype.h"

namespace pith::cuda {

/// A run of stored rows of one KV head, as the kernels see it. `coded` spans are in the codec's
/// blocks of 32 rows; dense ones are rows of `row_stride` numbers.
struct DeviceSpan {
  const void* keys = nullptr;
  const void* values = nullptr;
  const void* key_side = nullptr;  ///< scales, norms: what the codec keeps beside its key codes
  const void* value_side = nullptr;
  const float* log_weights = nullptr;  // [rows] added to the scores, or null
  float log_weight = 0;                ///< added to all of them
  int32_t rows = 0;
  int32_t row_stride = 0;  ///< dense: numbers between consecutive rows
  int32_t coded = 0;
  /// The `rows` of a head's first span that is another call's: this one writes nothing for it.
  static constexpr int32_t kElsewhere = -1;
  // One more number in each warp's copy would cost the dense kernel registers that it lacks.
  union {
    int32_t position = 0;  ///< coded: of the first row; the others follow it
    /// Dense: the first so many rows were there before the kernel ahead in the stream began (see
    /// DecodeCall::ready).
    int32_t ready_rows;
    uint32_t records_low;  ///< see records()
  };
  union {
    /// Coded: so many blocks keep shares of what all of them use in their key sides; 0: none do.
    int32_t group_blocks = 0;
    uint32_t records_high;
  };

  /// Coded, of rows that name what they share (DeviceCodec::record_bytes) and have neither of the
  /// two above: where that lies.
  PITH_BOTH_SIDES const void* records() const {
    return reinterpret_cast<const void*>(uint64_t{records_high} << 32 | records_low);
  }
  void set_records(const void* records) {
    const auto address = reinterpret_cast<uint64_t>(records);
    records_low = static_cast<uint32_t>(address);
    records_high = static_cast<uint32_t>(address >> 32);
  }
};

/// Queries that one pass over a KV head's rows serves; larger groups take several passes.
inline constexpr int kDecodeQueries = 8;

struct DecodeShape {
  int sequences = 1;
  int query_heads = 0;  // H
  int kv_heads = 0;     // G
  int head_dim = 0;     // D: 64, 128 or, of dense rows, 256
  int spans = 1;        ///< per KV head
  float scale = 0;      ///< of q.k; 0 = 1/sqrt(D)
  float soft_cap = 0;   ///< as AttentionVariant's

  /// Throws kInvalidArgument for a shape that the kernels do not know.
  void check() const;
  int query_blocks() const;  ///< passes over a KV head's rows
  /// Lists of rows that are gone through: KV heads of all sequences times passes.
  int heads() const { return sequences * kv_heads * query_blocks(); }
  /// Numbers of a partial result: values, maximum and sum of the most queries of a list.
  int part_size() const {
    return std::min(kDecodeQueries, query_heads / kv_heads) * (head_dim + 2);
  }
};

/// Where a call's numbers are.
struct DecodePlace {
  const void* q = nullptr;            // [B, H, D] of dtype, after RoPE
  const DeviceSpan* spans = nullptr;  // [B, G, spans], on the device
  float* out = nullptr;               // [B, H, D]
  float* log_sum = nullptr;           // [B, H] natural logarithm of the denominator, or null
  const void* note = nullptr;         ///< what work behind attention reads of the step (mass.h)
  const float* sinks = nullptr;       // [B, H] one logit more in a query's softmax, or null
};

class DecodeGroups;

/// Tiles, of 16 or 32 rows of a KV head, that a block of a call in a batch gets at least.
inline constexpr int kTilesABlock = 32;

/// For calls that share launches with others. How their rows are cut over blocks depends on their
/// own rows alone, and so do the bits of the result.
struct DecodeCompany {
  DecodeGroups* groups = nullptr;  ///< null: not for this call
  /// The call's, on the device; those of the calls beside it lie beside it.
  const DecodePlace* place = nullptr;
  size_t places_apart = 0;  ///< where a layer has several calls: from the place of one to the next
  /// At least as many as the rows need: a block for each kTilesABlock, up to the card's
  /// multiprocessors. Also without groups.
  int blocks = 0;
};

struct DecodeCall : DecodePlace {
  DecodeShape shape;
  DType dtype = DType::kBF16;   ///< of q and of dense rows: kF16 or kBF16
  const void* table = nullptr;  ///< of the codec: QJL's projection
  /// The spans, the coded rows that they name, and of dense ones DeviceSpan::ready_rows, were
  /// there before the kernel ahead in the stream began: they may be read while it runs.
  bool ready = false;
  /// blocks = 0: the rows are cut over all multiprocessors.
  DecodeCompany company = {};

  /// Throws kInvalidArgument for shapes and dtypes that the kernels do not know.
  void check() const;
};

/// Scratch for one decode call at a time, or so many in one launch: partial results and the arrival
/// counters, which every call leaves at zero.
class DecodeScratch {
 public:
  DecodeScratch(MemoryCounter& counter, const DecodeShape& shape, cudaStream_t stream,
                size_t calls = 1);
  float* partials() const { return partials_.data(); }
  int* arrivals() const { return arrivals_.data(); }
  int blocks() const { return blocks_; }

 private:
  int blocks_;
  DeviceArray<float> partials_;  // [calls, part_size() (blocks + heads)]
  DeviceArray<int> arrivals_;    // [calls, heads]
};

/// Attention over dense spans. Throws kInvalidArgument for shapes it does not know.
void decode_dense(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream);

}  // namespace pith::cuda
