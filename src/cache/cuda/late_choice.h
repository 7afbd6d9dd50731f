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
#include "rows/cuda/code_room.h"
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

/// Sorted by kind; each kind in few launches.
void choose_late(std::span<ChoiceWork> works, ChunkSpace& space, cudaStream_t stream);

}  // namespace pith::cuda
