#pragma once
// What coders of rows are handed, whatever the codec: rows in, blocks of 32 rows out.

#include <cstddef>
#include <cstdint>

#include "pith/dtype.h"

namespace pith::cuda {

/// Bytes of one block of 32 rows.
struct GroupedBytes {
  size_t key_codes, key_side, value_codes, value_side;
  double per_row() const {
    return static_cast<double>(key_codes + key_side + value_codes + value_side) / 32;
  }
};
/// Rows of several heads to be coded: x [heads, rows, D], `rows` a multiple of 32.
struct CodeRowsCall {
  DType dtype = DType::kBF16;  ///< kF16 or kBF16
  const void* x = nullptr;
  size_t head_stride = 0, row_stride = 0;  ///< numbers between heads and between rows
  int heads = 0, rows = 0, head_dim = 0;
  void* codes = nullptr;  // [heads, rows / 32] blocks
  void* side = nullptr;   // [heads, rows / 32] blocks
  int64_t position = 0;   ///< of the first row, for codecs that turn keys

  /// Throws kInvalidArgument for what the coders do not know.
  void check() const;

  /// The call for rows that lie side by side.
  static CodeRowsCall packed(DType dtype, const void* x, int heads, int rows, int head_dim) {
    const auto d = static_cast<size_t>(head_dim);
    return {dtype, x, static_cast<size_t>(rows) * d, d, heads, rows, head_dim};
  }
  CodeRowsCall& into(void* where, void* beside) {
    codes = where;
    side = beside;
    return *this;
  }
};

/// One of several places whose rows are coded by one launch.
struct CodeJob {
  const void* x = nullptr;                 // [heads, rows, D]
  size_t head_stride = 0;                  ///< numbers between heads of x
  void *codes = nullptr, *side = nullptr;  // [heads, block_stride] blocks
  size_t block_stride = 0;                 ///< blocks between heads
  int64_t position = 0;                    ///< of the first row, for codecs that turn keys
};
/// What the places of a launch have in common.
struct CodeBatch {
  DType dtype = DType::kF16;  ///< kF16 or kBF16
  int heads = 0, rows = 0, head_dim = 0;
};

/// Coded blocks of several heads back to rows.
struct UnpackRowsCall {
  const void *codes = nullptr, *side = nullptr;  // [heads, block_stride] blocks
  size_t block_stride = 0;                       ///< blocks between heads
  int heads = 0, blocks = 0, head_dim = 0;
  DType dtype = DType::kF16;  ///< kF16 or kBF16
  void* out = nullptr;        // [heads, 32 blocks, D]
  size_t head_stride = 0;     ///< numbers between heads
  int64_t position = 0;       ///< of the first row, for codecs that turn keys
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
};
}  // namespace pith::cuda
