#pragma once
// The arguments of all coders of rows: rows in, blocks of 32 rows out.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/grouped_layout.h"
#include "pith/dtype.h"

namespace pith::cuda {

/// Bytes of one block of 32 rows.
struct GroupedBytes {
  size_t key_codes, key_side, value_codes, value_side;
  double per_row() const {
    return static_cast<double>(key_codes + key_side + value_codes + value_side) / 32;
  }
};
/// Where rows stand, for codecs that rotate keys: they follow the first one, or each of `rows` rows
/// has a position of its own.
struct RowPositions {
  int64_t first = 0;
  const int32_t* each = nullptr;  // [heads, stride], or null
  size_t stride = 0;              ///< 0: the same for all heads
  int rows = 0;

  PITH_BOTH_SIDES constexpr RowPositions(int64_t first_position = 0) : first(first_position) {}
  RowPositions(const int32_t* positions, size_t between_heads, size_t count)
      : each(positions), stride(between_heads), rows(static_cast<int>(count)) {}
  PITH_BOTH_SIDES int64_t of(int head, int row) const {
    if (!each) return first + row;
    return row < rows ? each[static_cast<size_t>(head) * stride + static_cast<size_t>(row)] : 0;
  }
};
/// One of several places whose rows are coded by one launch.
struct CodeJob {
  const void* x = nullptr;                 // [heads, rows, D]
  size_t head_stride = 0;                  ///< numbers between heads of x
  void *codes = nullptr, *side = nullptr;  // [heads, block_stride] blocks
  size_t block_stride = 0;                 ///< blocks between heads
  RowPositions positions;
  void* records = nullptr;   // [heads, record_stride] see DeviceCodec::record_bytes
  size_t record_stride = 0;  ///< records between heads
  int first_record = 0;      ///< of the first rows; others follow
};
/// Common to the places of a launch.
struct CodeBatch {
  DType dtype = DType::kF16;              ///< kF16 or kBF16
  int heads = 0, rows = 0, head_dim = 0;  ///< rows: a multiple of 32

  /// One place whose heads lie side by side, rows and blocks.
  CodeJob whole(const void* x, void* codes, void* side) const {
    const auto n = static_cast<size_t>(rows);
    return {x, n * static_cast<size_t>(head_dim), codes, side, n / 32, {}};
  }
};

/// Coded blocks of several heads back to rows.
struct UnpackRowsCall {
  const void *codes = nullptr, *side = nullptr;  // [heads, block_stride] blocks
  size_t block_stride = 0;                       ///< blocks between heads
  int heads = 0, blocks = 0, head_dim = 0;
  DType dtype = DType::kF16;      ///< kF16 or kBF16
  void* out = nullptr;            // [heads, 32 blocks, D]
  size_t head_stride = 0;         ///< numbers between heads
  int64_t position = 0;           ///< of the first row, for codecs that rotate keys
  const void* records = nullptr;  // [heads, record_stride] see DeviceCodec::record_bytes
  size_t record_stride = 0;       ///< records between heads
};

/// The coded rows of all KV heads.
struct CodeBlocks {
  void *key_codes = nullptr, *key_side = nullptr;      // [heads, stride] blocks
  void *value_codes = nullptr, *value_side = nullptr;  // [heads, stride] blocks
  size_t stride = 0;                                   ///< blocks between heads
};
/// Row first + i of `to` becomes row kept[i] of `from`, which lies apart; i itself if `kept` is
/// null. Rows before `first` stay, and rows behind are zeros up to the end of their block.
struct MoveCodesCall {
  CodeBlocks from, to;
  const int32_t* kept = nullptr;  // [heads, kept_stride]
  size_t kept_stride = 0;
  int heads = 0, head_dim = 0;
  int first = 0, count = 0;

  static constexpr int kStays = -1, kZero = -2;
  /// Where row `row` of `to` comes from: a row of `from`, kStays or kZero.
  PITH_BOTH_SIDES int source(int head, int row) const {
    const int i = row - first;
    if (i < 0) return kStays;
    if (i >= count) return kZero;
    return kept ? kept[static_cast<size_t>(head) * kept_stride + static_cast<size_t>(i)] : i;
  }
  /// The blocks of `to` that change: the first one, and how many.
  PITH_BOTH_SIDES int first_block() const { return first / kBlockRows; }
  PITH_BOTH_SIDES int blocks() const {
    return (first % kBlockRows + count + kBlockRows - 1) / kBlockRows;
  }
};
/// Which records the rows of all KV heads name. Named rows get new numbers, one after the
/// other in their old order, by which the rows name them from then on.
struct FindRecordsCall {
  CodeBlocks rows;
  int heads = 0, head_dim = 0, count = 0;  ///< rows of a head
  int records = 0;                         ///< of a head: numbers are below
  int32_t* numbers = nullptr;              // [heads, records] <- the new ones, or -1
  int32_t* named = nullptr;                // [heads] <- how many are named
};
}  // namespace pith::cuda
