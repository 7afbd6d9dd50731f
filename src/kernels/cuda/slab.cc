#include "kernels/cuda/slab.h"

namespace pith::cuda {

void Slab::renew(size_t capacity, const Slab& from, const Part& part) {
  const size_t unit = shape_.unit, pitch = capacity * unit, width = part.count * unit;
  DeviceBuffer fresh(*memory_, kind_);
  fresh.allocate(shape_.runs * pitch, stream_);
  if (shape_.cleared && pitch > width) {
    check(cudaMemset2DAsync(static_cast<std::byte*>(fresh.data()) + width, pitch, 0, pitch - width,
                            shape_.runs, stream_),
          "room in the cache");
  }
  if (width > 0) {
    check(cudaMemcpy2DAsync(fresh.data(), pitch, from.at(0, part.first), from.capacity_ * unit,
                            width, shape_.runs, cudaMemcpyDeviceToDevice, stream_),
          "the growth of the cache");
  }
  bytes_ = std::move(fresh);
  capacity_ = capacity;
}

void Slab::swap(Slab& other) noexcept {
  bytes_.swap(other.bytes_);
  std::swap(capacity_, other.capacity_);
}

}  // namespace pith::cuda
