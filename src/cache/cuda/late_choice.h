#pragma once
// Selections of rows in codes by their keys alone that come with a token: those of many layers and
// sessions are made as one layer's of many heads. Keys are given back side by side in scratch
// memory and selected there; what stays goes through scratch memory too and back to where it
// was.
//
// Cost for R rows per head: the selection's own, R keys made and read, and what stays read and
// written twice as codes.

#include <span>

#include "cache/cuda/chunk_space.h"
#include "rows/cuda/device_codec.h"
#include "select/cuda/device_chooser.h"

namespace pith::cuda {

/// One layer's.
struct ChoiceWork {
  const DeviceCodec* codec = nullptr;
  const DeviceChooser* chooser = nullptr;  ///< that says by_keys_alone()
  Step step;
  UnpackRowsCall keys;  ///< nothing says where to
  MoveCodesCall codes;  ///< of what stays; nothing says which rows, nor through where
  KeepCall sides;       ///< likewise
};

/// Scratch memory for codes of equally many blocks of each head at several places.
class CodeRoom {
 public:
  struct Shape {
    GroupedBytes of_block;
    size_t heads = 0, blocks = 0;
  };
  CodeRoom(ChunkSpace& space, const Shape& shape, size_t places);
  CodeBlocks at(size_t place) const;

 private:
  Shape shape_;
  std::byte *key_codes_, *key_side_, *value_codes_, *value_side_;  // [places, heads, blocks]
};

/// Codes that stay at the room's places, `kept` saying which: they go through it and back to where
/// they were. Nothing else says from where or where to.
void keep_through(const CodeRoom& room, const DeviceCodec& codec, std::span<MoveCodesCall> kept,
                  cudaStream_t stream);

/// Sorted by kind; each kind in few launches.
void choose_late(std::span<ChoiceWork> works, ChunkSpace& space, cudaStream_t stream);

}  // namespace pith::cuda
