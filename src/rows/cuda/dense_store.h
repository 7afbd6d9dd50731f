#pragma once
// Dense rows of one layer's KV heads on the GPU, wherever they lie: keys and values of 16 bits, a
// RowTarget says from which row on. And a store of them: growth copies in the stream's order, by an
// eighth, so that slack stays small; captured graphs never hold the addresses. Rows may go in
// front, as out of a window: the others move up once that gives back a sixteenth of what is held,
// so that they always lie in one run.

#include <span>

#include "attend/cuda/causal.h"
#include "attend/cuda/decode.h"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/slab.h"
#include "pith/ledger.h"
#include "rows/cuda/store_room.h"
#include "rows/device_growth.h"

namespace pith::cuda {

/// The first of a buffer's rows [2, G, rows, D].
inline RowTarget rows_in(const DeviceBuffer& buffer, size_t rows, size_t dim) {
  auto* bytes = static_cast<std::byte*>(buffer.data());
  return {bytes, bytes + buffer.size() / 2, rows * dim, 0};
}
inline RowTarget operator+(RowTarget rows, size_t more) {
  rows.row += static_cast<int64_t>(more);
  return rows;
}
/// A head's next `count` rows, for a token's attention.
inline DeviceSpan dense_span(const RowTarget& rows, size_t head, size_t count, size_t dim) {
  DeviceSpan span;
  span.rows = static_cast<int32_t>(count);
  span.row_stride = static_cast<int32_t>(dim);
  if (count == 0) return span;
  const size_t at = (head * rows.head_stride + static_cast<size_t>(rows.row) * dim) * 2;
  span.keys = static_cast<const std::byte*>(rows.k) + at;
  span.values = static_cast<const std::byte*>(rows.v) + at;
  return span;
}
/// All heads' next `count` rows, for a chunk's, whose queries see all of them.
inline CausalSpan causal_span(const RowTarget& rows, size_t count, size_t dim) {
  const size_t at = static_cast<size_t>(rows.row) * dim * 2;
  return {static_cast<const std::byte*>(rows.k) + at, static_cast<const std::byte*>(rows.v) + at,
          rows.head_stride, static_cast<int64_t>(count)};
}
/// The form of rows that are saved with a session.
struct ArchivedRows {
  size_t dim = 0;  // D
  DType dtype = DType::kF16;
  cudaStream_t stream = nullptr;
};
/// `count` rows of all heads; those of `from` and `to` do not overlap.
struct CopyRowsCall {
  RowTarget to, from;
  size_t count = 0;
  size_t heads = 0, dim = 0;  // G, D
};
void copy_rows(const CopyRowsCall& call, cudaStream_t stream);
/// The next of_heads[g] rows of each head g, as state.
void archive_rows(Archive& a, const RowTarget& rows, std::span<const size_t> of_heads,
                  const ArchivedRows& of);
/// `to` gets the size and the bytes of `from`.
void copy_buffer(DeviceBuffer& to, const DeviceBuffer& from, cudaStream_t stream);

struct DenseStoreShape {
  size_t heads = 0, dim = 0;  // G, D
  size_t most = 0;            ///< rows, where growth by eighths ends; 0 = unknown
  size_t least = 0;           ///< room for so many at once, if for any

  DeviceGrowth growth() const { return {device_rows().piece, least, most}; }

  /// Of a window of at most `rows` rows.
  static DenseStoreShape window(size_t heads, size_t dim, size_t rows, bool roomy) {
    const DeviceGrowth growth = device_window(rows, roomy);
    return {heads, dim, growth.most, growth.least};
  }
  friend bool operator==(const DenseStoreShape&, const DenseStoreShape&) = default;
};

/// 16-bit keys and values.
class DenseStore {
 public:
  DenseStore(MemoryCounter& memory, const DenseStoreShape& shape, cudaStream_t stream);
  DenseStore(const DenseStore& other);

  size_t rows() const { return rows_; }
  size_t capacity() const { return slab_.capacity(); }
  size_t head_stride() const { return capacity() * shape_.dim; }  ///< numbers
  std::byte* keys() const { return slab_.at(0, front_); }         // [G, capacity, D]
  std::byte* values() const { return slab_.at(shape_.heads, front_); }
  /// Room for `rows` more.
  void reserve_more(size_t rows);
  /// Room for `rows` in all, and no more.
  void make_room(size_t rows) { move_to(rows, *this); }
  /// The most that it comes to take with up to `rows` rows in all. `fronts`: first rows go.
  StoreRoom room(size_t rows, bool fronts = false) const;
  /// Whether reserve_more(rows), and reshape(shape), would change nothing.
  bool has_room(size_t rows) const { return front_ + rows_ + rows <= capacity(); }
  bool has_shape(const DenseStoreShape& shape) const { return shape == shape_; }
  /// Rows that kernels were told to write.
  void add(size_t rows) { rows_ += rows; }
  /// The last rows go; memory stays.
  void drop(size_t rows) { rows_ -= rows; }
  /// The first rows go; they stay readable until others come.
  void drop_front(size_t rows) {
    rows_ -= rows;
    front_ = rows_ > 0 ? front_ + rows : 0;
  }
  void clear() { rows_ = front_ = 0; }
  /// Gives memory back where the shape needs less of it now.
  void reshape(const DenseStoreShape& shape);
  /// Gives back what is more than growth would leave.
  void shrink();
  /// Where the next row goes.
  RowTarget end() const { return begin() + rows_; }
  /// All of them.
  RowTarget begin() const { return {keys(), values(), head_stride(), 0}; }
  size_t allocated_bytes() const { return slab_.allocated_bytes(); }
  /// `of_heads` [G] rows of each head, of numbers of `dtype`. Loading: into a store without rows,
  /// which then has as many as the head with the most.
  void archive(Archive& a, std::span<const size_t> of_heads, DType dtype);
  /// The same of all rows, `rows` of each head.
  void archive(Archive& a, size_t rows, DType dtype);
  /// Rows of all heads and their bytes.
  void add_to(Ledger& ledger) const;

 private:
  void move_to(size_t capacity, const DenseStore& from);
  /// To the front of the memory.
  void move_up();

  DenseStoreShape shape_;
  cudaStream_t stream_;
  Slab slab_;  // [2, G, capacity, D]
  size_t rows_ = 0;
  size_t front_ = 0;  // before the first row
};

}  // namespace pith::cuda
