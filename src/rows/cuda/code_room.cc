#include "rows/cuda/code_room.h"

#include <vector>

namespace pith::cuda {
namespace {

constexpr size_t kAligned = 256;  // bytes

size_t aligned(size_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

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

void keep_through(const CodeRoom& room, const DeviceCodec& codec, std::span<MoveCodesCall> kept,
                  cudaStream_t stream) {
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
