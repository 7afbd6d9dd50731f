#pragma once
// Dense rows of one layer's KV heads on the GPU. Growth copies in the stream's order, by an eighth,
// so that slack stays small; captured graphs never hold the addresses.

#include "kernels/cuda/device.h"
#include "kernels/cuda/layer.h"

namespace pith::cuda {

struct DeviceRowsShape {
  size_t heads = 0, dim = 0;  // G, D
  size_t most = 0;            ///< rows, where growth by eighths ends; 0 = unknown
};

/// 16-bit keys and values.
class DeviceRows {
 public:
  DeviceRows(MemoryCounter& memory, const DeviceRowsShape& shape, cudaStream_t stream);
  DeviceRows(const DeviceRows& other);
  DeviceRows(DeviceRows&&) = default;

  size_t rows() const { return rows_; }
  size_t capacity() const { return capacity_; }
  size_t head_stride() const { return capacity_ * shape_.dim; }  ///< numbers
  std::byte* keys() const { return bytes(); }                    // [G, capacity, D]
  std::byte* values() const { return bytes() + bytes_of(capacity_); }
  /// Room for `rows` more.
  void reserve_more(size_t rows);
  /// Rows that kernels were told to write.
  void add(size_t rows) { rows_ += rows; }
  /// The last rows go; memory stays.
  void drop(size_t rows) { rows_ -= rows; }
  /// Gives back what is more than growth would leave.
  void shrink();
  /// Where the next row goes.
  RowTarget end() const { return {keys(), values(), head_stride(), static_cast<int64_t>(rows_)}; }
  size_t held_bytes() const { return 2 * bytes_of(rows_); }
  size_t allocated_bytes() const { return buffer_.size(); }

 private:
  std::byte* bytes() const { return static_cast<std::byte*>(buffer_.data()); }
  size_t bytes_of(size_t rows) const { return shape_.heads * rows * shape_.dim * 2; }
  void move_to(size_t capacity, const DeviceRows& from);

  MemoryCounter* memory_;
  DeviceRowsShape shape_;
  cudaStream_t stream_;
  DeviceBuffer buffer_;  // [2, G, capacity, D]
  size_t rows_ = 0, capacity_ = 0;
};

}  // namespace pith::cuda
