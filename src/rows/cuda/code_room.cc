#include "rows/cuda/code_room.h"

#include <algorithm>
#include <vector>

namespace pith::cuda {
namespace {

constexpr size_t kAligned = 256;  // bytes

size_t aligned(size_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

/// The largest that any of them needs.
CodeRoom::Shape shape_of(const DeviceCodec& codec, std::span<const MoveCodesCall> kept) {
  CodeRoom::Shape shape{codec.block_bytes(kept.front().head_dim)};
  for (const MoveCodesCall& move : kept) {
    shape.heads = std::max(shape.heads, static_cast<size_t>(move.heads));
    shape.blocks = std::max(shape.blocks, static_cast<size_t>(move.blocks()));
  }
  return shape;
}

}  // namespace

size_t CodeRoom::bytes(const Shape& shape, size_t places) {
  const size_t blocks = places * shape.heads * shape.blocks;
  const auto [key_codes, key_side, value_codes, value_side] = shape.of_block;
  return aligned(blocks * key_codes) + aligned(blocks * key_side) + aligned(blocks * value_codes) +
         blocks * value_side;
}

CodeRoom::CodeRoom(std::byte* memory, const Shape& shape, size_t places) : shape_(shape) {
  const size_t blocks = places * shape.heads * shape.blocks;
  key_codes_ = memory;
  key_side_ = key_codes_ + aligned(blocks * shape.of_block.key_codes);
  value_codes_ = key_side_ + aligned(blocks * shape.of_block.key_side);
  value_side_ = value_codes_ + aligned(blocks * shape.of_block.value_codes);
}

CodeBlocks CodeRoom::at(size_t place) const {
  const size_t first = place * shape_.heads * shape_.blocks;
  const GroupedBytes& bytes = shape_.of_block;
  return {key_codes_ + first * bytes.key_codes, key_side_ + first * bytes.key_side,
          value_codes_ + first * bytes.value_codes, value_side_ + first * bytes.value_side,
          shape_.blocks};
}

size_t keep_bytes(const DeviceCodec& codec, std::span<const MoveCodesCall> kept) {
  return kept.empty() ? 0 : CodeRoom::bytes(shape_of(codec, kept), kept.size());
}

void keep_through(std::byte* memory, const DeviceCodec& codec, std::span<MoveCodesCall> kept,
                  cudaStream_t stream) {
  if (kept.empty()) return;
  const CodeRoom room(memory, shape_of(codec, kept), kept.size());
  std::vector<MoveCodesCall> back(kept.begin(), kept.end());
  for (size_t i = 0; i < kept.size(); ++i) {
    kept[i].to = back[i].from = room.at(i);
    back[i].kept = nullptr;
  }
  codec.move_rows_of(kept, stream);
  codec.move_rows_of(back, stream);
}

CodeRoom::Shape room_of(const CodeWork& any) {
  if (!any.move) return {};
  return {any.codec->block_bytes(any.batch.head_dim), static_cast<size_t>(any.batch.heads),
          static_cast<size_t>(any.batch.rows) / kBlockRows};
}

void code_works(std::span<CodeWork> works, const CodeRoom* room, cudaStream_t stream) {
  std::vector<CodeJob> keys, values;
  std::vector<MoveCodesCall> moves;
  for (size_t i = 0; i < works.size(); ++i) {
    CodeWork& work = works[i];
    if (work.move) {
      const CodeBlocks apart = room->at(i);
      work.keys.codes = apart.key_codes;
      work.keys.side = apart.key_side;
      work.values.codes = apart.value_codes;
      work.values.side = apart.value_side;
      work.keys.block_stride = work.values.block_stride = apart.stride;
      moves.push_back(*work.move);
      moves.back().from = apart;
    }
    keys.push_back(work.keys);
    values.push_back(work.values);
  }
  const CodeWork& any = works.front();
  any.codec->code(any.batch, keys, values, stream);
  if (!moves.empty()) any.codec->move_rows_of(moves, stream);
}

}  // namespace pith::cuda
