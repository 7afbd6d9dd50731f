#include "rows/cuda/block_calls.h"

namespace pith::cuda {

CodeJob BlockCalls::job(const RowTarget& from, bool keys, const BlockRun& blocks) const {
  const auto offset = static_cast<size_t>(from.row) * site_.dim * 2;
  return {static_cast<const std::byte*>(keys ? from.k : from.v) + offset,
          from.head_stride,
          memory_.at(keys ? BlockMemory::kKeyCodes : BlockMemory::kValueCodes, 0, blocks.first),
          memory_.at(keys ? BlockMemory::kKeySide : BlockMemory::kValueSide, 0, blocks.first),
          memory_.capacity(),
          blocks.positions,
          records_.data(),
          records_.stride(),
          static_cast<int>(records_.used())};
}

MoveCodesCall BlockCalls::moves_to(const CodeBlocks& to, size_t count) const {
  MoveCodesCall call{memory_.all(), to};
  call.heads = static_cast<int>(site_.heads);
  call.head_dim = static_cast<int>(site_.dim);
  call.count = static_cast<int>(count);
  return call;
}

UnpackRowsCall BlockCalls::unpack_call(const BlockPiece& piece) const {
  UnpackRowsCall call;
  call.block_stride = memory_.capacity();
  call.heads = static_cast<int>(site_.heads);
  call.blocks = static_cast<int>(piece.blocks);
  call.head_dim = static_cast<int>(site_.dim);
  call.dtype = piece.dtype;
  call.position = first_position_ + static_cast<int64_t>(32 * piece.first);
  call.records = records_.data();
  call.record_stride = records_.stride();
  call.codes = memory_.at(BlockMemory::kKeyCodes, 0, piece.first);
  call.side = memory_.at(BlockMemory::kKeySide, 0, piece.first);
  return call;
}

std::pair<UnpackRowsCall, UnpackRowsCall> BlockCalls::unpack_calls(const RowTarget& to,
                                                                   const BlockPiece& piece) const {
  const size_t skipped = static_cast<size_t>(to.row) * site_.dim * 2;
  UnpackRowsCall keys = unpack_call(piece);
  keys.head_stride = to.head_stride;
  keys.out = static_cast<std::byte*>(to.k) + skipped;
  UnpackRowsCall values = keys;
  values.codes = memory_.at(BlockMemory::kValueCodes, 0, piece.first);
  values.side = memory_.at(BlockMemory::kValueSide, 0, piece.first);
  values.out = static_cast<std::byte*>(to.v) + skipped;
  return {keys, values};
}

void BlockCalls::unpack(const RowTarget& to, const BlockPiece& piece) const {
  const auto [keys, values] = unpack_calls(to, piece);
  codec_.unpack_keys(keys, site_.stream);
  if (to.v) codec_.unpack_values(values, site_.stream);
}

DeviceSpan BlockCalls::span(size_t head, size_t first, size_t rows) const {
  DeviceSpan span;
  span.coded = 1;
  span.rows = static_cast<int32_t>(rows);
  span.position = static_cast<int32_t>(first_position_ + static_cast<int64_t>(first));
  span.group_blocks = codec_.group_blocks();
  if (rows == 0) return span;
  span.keys = memory_.at(BlockMemory::kKeyCodes, head, first / 32);
  span.key_side = memory_.at(BlockMemory::kKeySide, head, first / 32);
  span.values = memory_.at(BlockMemory::kValueCodes, head, first / 32);
  span.value_side = memory_.at(BlockMemory::kValueSide, head, first / 32);
  if (codec_.record_bytes() > 0) span.set_records(records_.of_head(head));
  return span;
}

void BlockCalls::add_keys(MassTarget& target, size_t rows) const {
  target.codes = memory_.at(BlockMemory::kKeyCodes, 0, 0);
  target.code_side = memory_.at(BlockMemory::kKeySide, 0, 0);
  target.block_stride = memory_.capacity();
  target.records = records_.data();
  target.record_stride = records_.stride();
  target.coded = static_cast<int32_t>(rows);
}

}  // namespace pith::cuda
