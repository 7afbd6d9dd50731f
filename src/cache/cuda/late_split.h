#pragma once
// Selections of heavy rows in codes whose lightest leave for a body: those of many layers and
// sessions are made together. Rows are given back side by side in scratch memory and selected
// there; those that leave are gathered from it, and the codes of the others close up.
//
// Cost for R rows per head of which L leave: the selection's own (select/cuda/heavy.h), R rows made
// and read, L written, and R - L read and written twice as codes.

#include <span>

#include "cache/cuda/chunk_space.h"
#include "select/cuda/heavy.h"

namespace pith::cuda {

class DeviceCodec;
struct HeadStores;
struct LateWork;

/// One layer's, or a range of its heads'.
struct SplitWork {
  const DeviceCodec* codec = nullptr;
  HeavyWork heavy;  ///< nothing says where rows are made
  HeadStores* stores = nullptr;
  LateWork* later = nullptr;  ///< takes rows that become codes afterwards; null: they do at once
};

/// Gives the device those of each codec in few launches.
void split_codes(std::span<SplitWork> works, ChunkSpace& space, cudaStream_t stream);

}  // namespace pith::cuda
