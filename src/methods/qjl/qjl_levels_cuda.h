#pragma once
// qjl's rows in levels on the GPU: tight rows, whose keys are turned after random signs.

#include <memory>

#include "attend/cuda/device_codec.h"
#include "methods/qjl/qjl.h"

namespace pith::cuda {

/// With a coarse code and no sketch of what it leaves.
std::shared_ptr<const DeviceCodec> make_qjl_levels(const QjlOptions& options);

}  // namespace pith::cuda
