#pragma once
// Memory that grows on the device: runs of equal units side by side, as the rows, blocks or numbers
// of each head of a layer, [runs, capacity]. Growth is new memory and a copy in the stream's order;
// captured graphs never hold the addresses.

#include "core/counted_by.h"
#include "kernels/cuda/device_archive.h"

namespace pith::cuda {

class Slab {
 public:
  struct Shape {
    size_t runs = 0, unit = 0;  ///< unit: bytes
    bool cleared = false;       ///< bytes that were not written are 0
  };
  Slab(MemoryCounter& memory, MemoryKind kind, const Shape& shape, cudaStream_t stream)
      : memory_(&memory), kind_(kind), shape_(shape), stream_(stream), bytes_(memory, kind) {}
  /// All of it.
  Slab(const Slab& other) : Slab(other.like()) {
    if (other.capacity_ > 0) renew(other.capacity_, other, {0, other.capacity_});
  }
  Slab(Slab&&) = default;
  /// An empty one for a copy of what it is in.
  Slab like() const { return Slab(*CountedBy(memory_), kind_, shape_, stream_); }

  template <class T = std::byte>
  T* at(size_t run = 0, size_t unit = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(bytes_.data()) +
                                (run * capacity_ + unit) * shape_.unit);
  }
  size_t capacity() const { return capacity_; }  ///< units a run
  size_t unit() const { return shape_.unit; }
  size_t allocated_bytes() const { return bytes_.size(); }
  /// Of memory for `capacity` units a run.
  size_t bytes_of(size_t capacity) const { return shape_.runs * capacity * shape_.unit; }

  /// Units first, ... of each run.
  struct Part {
    size_t first = 0, count = 0;
  };
  /// New memory, in which each run begins with that part of `from`'s.
  void renew(size_t capacity, const Slab& from, const Part& part);
  void renew(size_t capacity, const Part& part) { renew(capacity, *this, part); }
  void renew(size_t capacity) { renew(capacity, *this, {}); }
  /// Becomes what the other is, and the other what this was; both are of one shape.
  void swap(Slab& other) noexcept;
  /// The first `count` units of each run, as state.
  DeviceRuns runs(size_t count) const {
    return {bytes_.data(), count * shape_.unit, capacity_ * shape_.unit, shape_.runs};
  }

 private:
  CountedBy memory_;
  MemoryKind kind_;
  Shape shape_;
  cudaStream_t stream_;
  DeviceBuffer bytes_;
  size_t capacity_ = 0;
};

}  // namespace pith::cuda
