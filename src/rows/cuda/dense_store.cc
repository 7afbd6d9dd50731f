#include "rows/cuda/dense_store.h"

#include <algorithm>
#include <vector>

namespace pith::cuda {
namespace {

constexpr size_t kFrontPart = DeviceGrowth::kFrontPart;

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

DenseStore::DenseStore(MemoryCounter& memory, const DenseStoreShape& shape, cudaStream_t stream)
    : shape_(shape),
      stream_(stream),
      slab_(memory, MemoryKind::kPayload, {2 * shape.heads, 2 * shape.dim}, stream) {}

DenseStore::DenseStore(const DenseStore& other)
    : shape_(other.shape_), stream_(other.stream_), slab_(other.slab_.like()) {
  move_to(other.capacity(), other);
}

void DenseStore::reserve_more(size_t rows) {
  const size_t needed = rows_ + rows;
  if (front_ + needed <= capacity()) return;
  if (needed <= capacity() && kFrontPart * front_ >= needed) return move_up();
  move_to(shape_.growth().from(capacity(), needed), *this);
}

// Memory is new where less than a part of what is held would be given back in front.
StoreRoom DenseStore::room(size_t rows, bool fronts) const {
  const size_t room = fronts ? rows + rows / kFrontPart + 1 : rows;
  if (room <= capacity()) return {0, fronts ? allocated_bytes() : 0};
  const DeviceGrowth growth = shape_.growth();
  return StoreRoom::growth(slab_, fronts ? growth.most_with_front(rows) : growth.most_for(rows));
}

void DenseStore::move_up() {
  if (front_ < rows_) return move_to(capacity(), *this);  // in place they would overlap
  const RowTarget from = begin();
  front_ = 0;
  copy_rows({begin(), from, rows_, shape_.heads, shape_.dim}, stream_);
}

void DenseStore::reshape(const DenseStoreShape& shape) {
  const bool less = shape.least < shape_.least;
  shape_ = shape;
  if (less && capacity() > shape.least) move_to(std::max(shape.least, rows_), *this);
}

void DenseStore::shrink() {
  const size_t room = device_rows().from(rows_, rows_);
  if (room < capacity()) move_to(room, *this);
}

void DenseStore::archive(Archive& a, std::span<const size_t> of_heads, DType dtype) {
  const size_t most = *std::ranges::max_element(of_heads);
  a.check_left(most, shape_.dim);
  if (a.loads()) {
    reserve_more(most);
    add(most);
  }
  archive_rows(a, begin(), of_heads, {shape_.dim, dtype, stream_});
}

void DenseStore::archive(Archive& a, size_t rows, DType dtype) {
  archive(a, std::vector<size_t>(shape_.heads, rows), dtype);
}

void DenseStore::add_to(Ledger& ledger) const {
  const size_t held = 4 * shape_.heads * rows_ * shape_.dim;
  ledger.payload += held;
  ledger.slack += allocated_bytes() - held;
  ledger.rows_kept += rows_ * shape_.heads;
}

void DenseStore::move_to(size_t capacity, const DenseStore& from) {
  if (capacity == 0) return;
  slab_.renew(capacity, from.slab_, {from.front_, from.rows_});
  rows_ = from.rows_;
  front_ = 0;
}

}  // namespace pith::cuda
