#pragma once
// Bytes on the device as state (core/archive.h): they come to the host a piece at a time and go
// back in the same way, in the stream's order, and the host waits for each.

#include <functional>
#include <span>

#include "core/archive.h"
#include "kernels/cuda/device.h"

namespace pith::cuda {

/// `count` runs of `width` bytes, `pitch` bytes from one to the next.
struct DeviceRuns {
  void* data = nullptr;
  size_t width = 0, pitch = 0, count = 1;
};

/// Looks at bytes as they are loaded, one run or several whole ones, before the device has them.
using LoadedCheck = std::function<void(std::span<const std::byte>)>;

void archive_runs(Archive& a, const DeviceRuns& runs, cudaStream_t stream,
                  const LoadedCheck& check_loaded = {});
/// Finite numbers.
void archive_finite(Archive& a, const DeviceRuns& runs, DType dtype, cudaStream_t stream);
/// The first n of an array; each is looked at when it is loaded.
template <class T>
void archive_numbers(Archive& a, const DeviceRuns& runs, T least, T most, cudaStream_t stream) {
  archive_runs(a, runs, stream, [&](std::span<const std::byte> bytes) {
    const auto* numbers = reinterpret_cast<const T*>(bytes.data());
    for (size_t i = 0; i < bytes.size() / sizeof(T); ++i)
      a.need(numbers[i] >= least && numbers[i] <= most, "a number is too large");
  });
}

}  // namespace pith::cuda
