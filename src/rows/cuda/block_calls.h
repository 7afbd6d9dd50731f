#pragma once
// The arguments of kernels over blocks of one layer's coded rows: to code rows, to move them, to
// unpack them and to attend to them.

#include <utility>

#include "rows/cuda/block_memory.h"
#include "rows/cuda/record_table.h"

namespace pith::cuda {

/// Blocks of each head, and where their rows stand.
struct BlockRun {
  size_t first = 0, count = 0;
  RowPositions positions;
};

/// Blocks to be unpacked.
struct BlockPiece {
  size_t first = 0, blocks = 0;
  DType dtype = DType::kF16;  ///< of the rows made: kF16 or kBF16
};

class BlockCalls {
 public:
  /// Of blocks in `memory` that name `records`; the first row stands at `first_position`.
  BlockCalls(const BlockMemory& memory, const DeviceCodec& codec, const StoreSite& site,
             const RecordTable& records, int64_t first_position)
      : memory_(memory),
        codec_(codec),
        site_(site),
        records_(records),
        first_position_(first_position) {}

  /// Keys, or values, from.row, ... become those blocks.
  CodeJob job(const RowTarget& from, bool keys, const BlockRun& blocks) const;
  /// `count` rows come to `to`.
  MoveCodesCall moves_to(const CodeBlocks& to, size_t count) const;
  /// The call that makes keys of a piece; its destination is left open.
  UnpackRowsCall unpack_call(const BlockPiece& piece) const;
  /// Of keys and values, to there.
  std::pair<UnpackRowsCall, UnpackRowsCall> unpack_calls(const RowTarget& to,
                                                         const BlockPiece& piece) const;
  /// Keys and, if the target has room for them, values.
  void unpack(const RowTarget& to, const BlockPiece& piece) const;
  /// Rows first, ... of one head; `first` begins a block.
  DeviceSpan span(size_t head, size_t first, size_t rows) const;
  /// Keys and where they are in memory, for their mass.
  void add_keys(MassTarget& target, size_t rows) const;

 private:
  const BlockMemory& memory_;
  const DeviceCodec& codec_;
  const StoreSite& site_;
  const RecordTable& records_;
  int64_t first_position_;
};

}  // namespace pith::cuda
