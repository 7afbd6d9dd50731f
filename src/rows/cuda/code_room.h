#pragma once
// Codes of many places that go through scratch memory, in few launches.

#include <span>

#include "rows/cuda/coded_blocks.h"

namespace pith::cuda {

/// Scratch memory for codes of equally many blocks of each head at several places.
class CodeRoom {
 public:
  struct Shape {
    GroupedBytes of_block;
    size_t heads = 0, blocks = 0;
  };
  static size_t bytes(const Shape& shape, size_t places);
  /// `memory`: so many bytes.
  CodeRoom(std::byte* memory, const Shape& shape, size_t places);
  CodeBlocks at(size_t place) const;

 private:
  Shape shape_;
  std::byte *key_codes_, *key_side_, *value_codes_, *value_side_;  // [places, heads, blocks]
};

/// Codes that stay where they lie, `kept` saying which: they go through `memory` of so many bytes
/// and back.
size_t keep_bytes(const DeviceCodec& codec, std::span<const MoveCodesCall> kept);
void keep_through(std::byte* memory, const DeviceCodec& codec, std::span<MoveCodesCall> kept,
                  cudaStream_t stream);

/// The room that works of one batch need: none where they code in place.
CodeRoom::Shape room_of(const CodeWork& any);
/// Codes works of one codec and batch, in place or through `room`.
void code_works(std::span<CodeWork> works, const CodeRoom* room, cudaStream_t stream);

}  // namespace pith::cuda
