#pragma once

#include <fmt/format.h>

#include <string>

#include "kernels/cuda/device.h"

namespace pith::cuda {

/// What of the current card decides a result's last bits: attention is cut by its multiprocessors,
/// kernels are chosen by what it can.
inline std::string bits_of_card() {
  const DeviceInfo& card = device_info();
  return fmt::format("cuda {}.{} with {} multiprocessors", card.major, card.minor,
                     card.multiprocessors);
}

}  // namespace pith::cuda
