#include "attend/cuda/device_rows.h"

#include <algorithm>
#include <vector>

namespace pith::cuda {
namespace {

constexpr size_t kPiece = 64;      // rows
constexpr size_t kFrontPart = 16;  // of what is held is given back in front before rows move up

}  // namespace

void copy_rows(const CopyRowsCall& call, cudaStream_t stream) {
  if (call.count == 0) return;
  const size_t row_bytes = call.dim * 2;
  const auto side = [&](void* to, const void* from) {
    check(cudaMemcpy2DAsync(
              static_cast<std::byte*>(to) + static_cast<size_t>(call.to.row) * row_bytes,
              call.to.head_stride * 2,
              static_cast<const std::byte*>(from) + static_cast<size_t>(call.from.row) * row_bytes,
              call.from.head_stride * 2, call.count * row_bytes, call.heads,
              cudaMemcpyDeviceToDevice, stream),
          "moving rows of the cache");
  };
  side(call.to.k, call.from.k);
  side(call.to.v, call.from.v);
}

void copy_buffer(DeviceBuffer& to, const DeviceBuffer& from, cudaStream_t stream) {
  to.allocate(from.size(), stream);
  if (from.size() == 0) return;
  check(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDeviceToDevice, stream),
        "a copy of the cache");
}

void archive_rows(Archive& a, const RowTarget& rows, std::span<const size_t> of_heads,
                  const ArchivedRows& of) {
  for (void* side : {rows.k, rows.v}) {
    for (size_t head = 0; head < of_heads.size(); ++head) {
      const size_t at = head * rows.head_stride + static_cast<size_t>(rows.row) * of.dim;
      const DeviceRuns run{static_cast<std::byte*>(side) + 2 * at, 2 * of_heads[head] * of.dim};
      archive_finite(a, run, of.dtype, of.stream);
    }
  }
}

DeviceRows::DeviceRows(MemoryCounter& memory, const DeviceRowsShape& shape, cudaStream_t stream)
    : memory_(&memory), shape_(shape), stream_(stream), buffer_(memory, MemoryKind::kPayload) {}

DeviceRows::DeviceRows(const DeviceRows& other)
    : DeviceRows(*CountedBy(other.memory_), other.shape_, other.stream_) {
  move_to(other.capacity_, other);
}

void DeviceRows::reserve_more(size_t rows) {
  const size_t needed = rows_ + rows;
  if (front_ + needed <= capacity_) return;
  if (needed <= capacity_ && kFrontPart * front_ >= needed) return move_up();
  size_t capacity = std::max({needed, capacity_ + capacity_ / 8, shape_.least});
  if (needed <= shape_.most) capacity = std::min(capacity, shape_.most);
  move_to((capacity + kPiece - 1) / kPiece * kPiece, *this);
}

void DeviceRows::move_up() {
  if (front_ < rows_) return move_to(capacity_, *this);  // in place they would overlap
  const RowTarget from = begin();
  front_ = 0;
  copy_rows({begin(), from, rows_, shape_.heads, shape_.dim}, stream_);
}

void DeviceRows::reshape(const DeviceRowsShape& shape) {
  const bool less = shape.least < shape_.least;
  shape_ = shape;
  if (less && capacity_ > shape.least) move_to(std::max(shape.least, rows_), *this);
}

void DeviceRows::shrink() {
  const size_t capacity = (rows_ + rows_ / 8 + kPiece - 1) / kPiece * kPiece;
  if (capacity < capacity_) move_to(capacity, *this);
}

void DeviceRows::archive(Archive& a, std::span<const size_t> of_heads, DType dtype) {
  const size_t most = *std::ranges::max_element(of_heads);
  a.check_left(most, shape_.dim);
  if (a.loads()) {
    reserve_more(most);
    add(most);
  }
  archive_rows(a, begin(), of_heads, {shape_.dim, dtype, stream_});
}

void DeviceRows::archive(Archive& a, size_t rows, DType dtype) {
  archive(a, std::vector<size_t>(shape_.heads, rows), dtype);
}

void DeviceRows::add_to(Ledger& ledger) const {
  const size_t held = 2 * bytes_of(rows_);
  ledger.payload += held;
  ledger.slack += buffer_.size() - held;
  ledger.rows_kept += rows_ * shape_.heads;
}

void DeviceRows::move_to(size_t capacity, const DeviceRows& from) {
  if (capacity == 0) return;
  DeviceBuffer fresh(*memory_, MemoryKind::kPayload);
  fresh.allocate(2 * bytes_of(capacity), stream_);
  if (from.rows_ > 0) {
    check(cudaMemcpy2DAsync(fresh.data(), capacity * row_bytes(), from.keys(),
                            from.capacity_ * row_bytes(), from.rows_ * row_bytes(),
                            2 * shape_.heads, cudaMemcpyDeviceToDevice, stream_),
          "the growth of the cache");
  }
  rows_ = from.rows_;
  front_ = 0;
  capacity_ = capacity;
  buffer_ = std::move(fresh);
}

}  // namespace pith::cuda
