#include "kernels/cuda/upload_ring.h"

#include <bit>
#include <cstring>
#include <vector>

#include "kernels/cuda/uploads.h"

namespace pith::cuda {
namespace {

constexpr size_t kAligned = 16, kLeastBytes = 4096;

size_t padded(size_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

}  // namespace

// Page-locked memory is not made while a step waits for it, but for the largest of steps.
UploadRing::UploadRing() {
  for (Place& place : places_) place.bytes = PinnedArray<std::byte>(kLeastBytes);
}

void UploadRing::send(std::span<const Upload> uploads, cudaStream_t stream) {
  Place& place = places_[next_];
  next_ = (next_ + 1) % places_.size();
  place.gone.wait();
  size_t bytes = 0;
  for (const Upload& u : uploads) bytes += padded(u.bytes);
  if (place.bytes.size() < bytes) place.bytes = PinnedArray<std::byte>(std::bit_ceil(bytes));
  std::vector<Upload> aside;
  std::byte* at = place.bytes.data();
  for (const Upload& u : uploads) {
    std::memcpy(at, u.from, u.bytes);
    aside.push_back({u.to, at, u.bytes, u.spreads});
    at += padded(u.bytes);
  }
  upload_all(aside, stream);
  place.gone.set(stream);
}

}  // namespace pith::cuda
