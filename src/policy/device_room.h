#pragma once
// Bytes that the stores of a head keep free on the GPU beside its rows. How each grows is said once
// (rows/device_growth.h), for the stores too; which of them there are follows from the selector's
// needs, as cache/cuda/layer_plan.cc places rows.

#include "policy/host_room.h"

namespace pith {

/// Rows of one head on the GPU.
struct DeviceRows {
  HeldRows rows;
  double coded = 0;  ///< bytes of the body's codes, if it has any
};

/// The most that is free beside such rows of one head, however they came.
size_t most_free_on_gpu(const CohortPolicy& policy, const DeviceRows& held);

}  // namespace pith
