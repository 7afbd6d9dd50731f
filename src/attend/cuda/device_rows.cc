#include "attend/cuda/device_rows.h"

#include <algorithm>
#include <vector>

namespace pith::cuda {
namespace {

constexpr size_t kPiece = 64;  // rows

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
    : DeviceRows(*other.memory_, other.shape_, other.stream_) {
  move_to(other.capacity_, other);
}

void DeviceRows::reserve_more(size_t rows) {
  const size_t needed = rows_ + rows;
  if (needed <= capacity_) return;
  size_t capacity = std::max(needed, capacity_ + capacity_ / 8);
  if (needed <= shape_.most) capacity = std::min(capacity, shape_.most);
  move_to((capacity + kPiece - 1) / kPiece * kPiece, *this);
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
  const size_t row_bytes = shape_.dim * 2;
  if (from.rows_ > 0) {
    check(cudaMemcpy2DAsync(fresh.data(), capacity * row_bytes, from.buffer_.data(),
                            from.capacity_ * row_bytes, from.rows_ * row_bytes, 2 * shape_.heads,
                            cudaMemcpyDeviceToDevice, stream_),
          "the growth of the cache");
  }
  rows_ = from.rows_;
  capacity_ = capacity;
  buffer_ = std::move(fresh);
}

}  // namespace pith::cuda
