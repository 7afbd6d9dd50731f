#pragma once
// The host's writes for a step are copied aside before they go to the device, so that the host
// may write the next step's at once.

#include <array>
#include <span>

#include "kernels/cuda/pinned.h"

namespace pith::cuda {

class UploadRing {
 public:
  UploadRing();
  /// Copies what the uploads are from and lets it go to the device in stream order. Waits if as
  /// many calls as there are places are under way.
  void send(std::span<const Upload> uploads, cudaStream_t stream);

 private:
  struct Place {
    PinnedArray<std::byte> bytes;
    StreamMark gone;
  };
  std::array<Place, 64> places_;
  size_t next_ = 0;
};

}  // namespace pith::cuda
