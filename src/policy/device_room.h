#pragma once
// Bytes that the stores of a head take on the GPU beside its rows. How each grows is said once
// (rows/device_growth.h), for the stores too; which of them there are follows from the selector's
// needs, as cache/cuda/layer_plan.cc places rows.

#include "policy/host_room.h"

namespace pith {

/// Rows of one head on the GPU.
struct DeviceRows {
  HeldRows rows;
  double coded = 0;  ///< bytes of the body's codes, if it has any
};

/// Of one head.
struct BesideRows {
  size_t free = 0;    ///< at most, however the rows came
  size_t tables = 0;  ///< there before the rows from which they are made, whose codes count them
};
BesideRows beside_rows_on_gpu(const CohortPolicy& policy, const DeviceRows& held);

}  // namespace pith
