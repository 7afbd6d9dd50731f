#pragma once
// The window of one KV head: the newest rows, exact, in a ring. Rows enter at the back and leave at
// the front in order; the ring grows row by row to its capacity and then reuses its memory.

#include <vector>

#include "rows/cpu/dense.h"
#include "rows/cpu/row_store.h"

namespace pith {

struct WindowFormat {
  DType key_dtype = DType::kF16, value_dtype = DType::kF16;
  size_t dim = 0;       // D
  size_t capacity = 0;  ///< rows
  bool mass = false;
};

class WindowRing {
 public:
  WindowRing(const Context& context, const WindowFormat& format);

  size_t rows() const { return count_; }
  size_t capacity() const { return format_.capacity; }
  int64_t first_position() const { return first_position_; }
  /// Appends rows; there must be room.
  void push(const NewRows& rows);
  /// Moves the oldest `count` rows out to k, v [count, D] and mass [count] (if tracked).
  void pop(float* k, float* v, float* mass, size_t count);
  /// The ring after `came` rows, of which `left` have left; the first had ordinal `from`.
  void archive(Archive& a, size_t came, size_t left, int64_t from);
  void clear_mass();
  /// The ring as at most two spans, oldest first.
  void add_spans(std::vector<Span>& spans);
  void add_to(Ledger& ledger) const;

 private:
  /// Calls f(ring index, offset, length) for each contiguous piece of `count` rows from the
  /// `from`-th oldest on.
  template <class F>
  void for_pieces(size_t from, size_t count, F&& f) const;

  WindowFormat format_;
  DenseRowsStore keys_, values_;
  Array<float> mass_;  // [rows], if tracked
  size_t front_ = 0, count_ = 0;
  int64_t first_position_ = 0;
};

}  // namespace pith
