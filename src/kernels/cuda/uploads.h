#pragma once
// The host's writes for a step, brought to the device by one kernel: its blocks read page-locked
// memory, all pieces at once. Copied one after the other, each would take about two microseconds.

#include <span>

#include "kernels/cuda/pinned.h"

namespace pith::cuda {

/// Descriptors of equal things, written once: the first one's words, and how much more each next
/// one's first words are, which are addresses.
struct Spread {
  static constexpr size_t kWords = 8, kSteps = 5, kUnit = 4;
  uint64_t first[kWords] = {};
  uint32_t step[kSteps] = {};     ///< units of kUnit bytes
  uint32_t at = 0;                ///< the first one's place, in descriptors
  uint16_t count = 0, apart = 0;  ///< how many; from the place of one to the next one's
};

/// Each is whole numbers of four bytes. May be captured: its memory must then outlive the graph.
void upload_all(std::span<const Upload> uploads, cudaStream_t stream);

}  // namespace pith::cuda
