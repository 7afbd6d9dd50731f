#pragma once
// The host's writes for a step, brought to the device by one kernel: its blocks read page-locked
// memory, all pieces at once. Copied one after the other, each would take about two microseconds.

#include <span>

#include "kernels/cuda/pinned.h"

namespace pith::cuda {

/// Each is whole numbers of four bytes. May be captured: its memory must then outlive the graph.
void upload_all(std::span<const Upload> uploads, cudaStream_t stream);

}  // namespace pith::cuda
