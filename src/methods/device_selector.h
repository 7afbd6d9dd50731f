#pragma once
// The half of a selector on the GPU beside its rule. Its row in methods/registry_cuda.cc makes it.

#include <memory>
#include <optional>

#include "methods/heavy.h"
#include "rows/cuda/body_store.h"
#include "select/cuda/device_chooser.h"

namespace pith::cuda {

/// One of the first two.
struct SelectorOnGpu {
  BodyMaker body;                                ///< rows that leave the window go into such bodies
  std::shared_ptr<const DeviceChooser> chooser;  ///< rows stay where they lie, and some are kept
  std::optional<HeavySizes> heavy = {};          ///< rows come through a heavy store
  bool shared = false;                           ///< heads share their budgets
};

}  // namespace pith::cuda
