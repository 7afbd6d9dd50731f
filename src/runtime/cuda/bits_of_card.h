#pragma once

#include <fmt/format.h>

#include <string>

#include "kernels/cuda/device.h"

namespace pith::cuda {

/// How codes lie in memory, and so in saved sessions; one more with each change.
inline constexpr int kCodeLayout = 2;

/// The properties of the current card that decide a result's last bits: attention is cut by its
/// multiprocessors, kernels are chosen by its instructions.
inline std::string bits_of_card() {
  const DeviceInfo& card = device_info();
  return fmt::format("cuda {}.{} with {} multiprocessors, code layout {}", card.major, card.minor,
                     card.multiprocessors, kCodeLayout);
}

}  // namespace pith::cuda
