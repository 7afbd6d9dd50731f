#pragma once
// Rows of one KV head that wait in f16 until a codec has as many as it needs at once: a group that
// shares scales, or the first rows of a stream, from which tables are made. Waiting makes the codes
// independent of how rows arrive. Bytes per row: 2 D.

#include <span>
#include <vector>

#include "core/archive.h"
#include "kernels/kernels.h"

namespace pith {

/// Throws kNonFinite if f16 cannot hold one of the numbers of `row` [dim].
void require_f16(const float* row, size_t dim);

/// mean [dim] <- of each channel of rows [count, dim].
void take_means(float* mean, const float* rows, size_t count, size_t dim);

/// Codecs whose rows wait take them in multiples of this: selectors drop rows between appends, and
/// which rows then wait together must not depend on how a stream is cut.
inline constexpr size_t kWaitingBlock = 32;

class WaitingRows {
 public:
  WaitingRows(MemoryCounter& memory, const Kernels& kernels, size_t dim, size_t most)
      : kernels_(&kernels), dim_(dim), rows_(memory, MemoryKind::kPayload) {
    rows_.set_growth_limit(most * dim);
  }

  size_t count() const { return rows_.size() / dim_; }
  /// One row more, if f16 can hold it.
  void push(const float* row);
  /// Rows named stay, in their order; numbers count from `first` on.
  void keep(std::span<const uint32_t> kept, size_t first);
  /// out [n, D] <- rows [first, first + n).
  void decode(float* out, size_t first, size_t n) const {
    kernels_->to_f32(out, rows_.data() + first * dim_, DType::kF16, n * dim_);
  }
  /// None is left and their memory goes back.
  void clear() {
    rows_.resize(0);
    rows_.shrink_to_fit();
  }
  /// All rows [count, D], of which none waits any more, and `mean` [D] <- theirs in f16.
  std::vector<float> take_all(Array<uint16_t>& mean);
  /// At most `most` of them.
  void archive(Archive& a, size_t most) {
    size_t rows = count();
    a.number(rows, most, "more rows wait than may");
    a.halves(rows_, rows * dim_);
  }
  DenseRows dense(size_t first) const { return {rows_.data() + first * dim_, DType::kF16, dim_}; }
  size_t bytes() const { return rows_.size() * sizeof(uint16_t); }
  size_t allocated_bytes() const { return rows_.capacity_bytes(); }

 private:
  const Kernels* kernels_;
  size_t dim_;            // D
  Array<uint16_t> rows_;  // [count, D] f16
};

}  // namespace pith
