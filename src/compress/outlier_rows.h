#pragma once
// The sparse part of dense-and-sparse codes (KVQuant, GEAR): each row keeps n of its numbers apart,
// as a channel and an f16 value. The same n for every row, where the papers let a threshold decide:
// bytes a row are then known before the rows are, and dropping rows is a compaction like any other.
// Bytes a row: 3 n.

#include <algorithm>
#include <span>

#include "compress/compaction.h"
#include "core/dtype.h"

namespace pith {

inline constexpr size_t kMostOutlierDim = 256;  // channels are bytes

class OutlierRows {
 public:
  OutlierRows(MemoryCounter& memory, size_t per_row, size_t max_rows)
      : per_row_(per_row),
        channels_(memory, MemoryKind::kMetadata),
        values_(memory, MemoryKind::kPayload) {
    channels_.set_growth_limit(max_rows * per_row);
    values_.set_growth_limit(max_rows * per_row);
  }

  /// Bytes of `n` numbers apart in a row.
  static constexpr size_t row_bytes(size_t n) { return 3 * n; }
  size_t per_row() const { return per_row_; }
  /// The newest row's: `channels` [n], whose values are taken from `row`.
  void push(const float* row, const uint16_t* channels) {
    for (size_t i = 0; i < per_row_; ++i) {
      channels_.push_back(static_cast<uint8_t>(channels[i]));
      values_.push_back(f32_to_f16(row[channels[i]]));
    }
  }
  void keep(std::span<const uint32_t> kept) {
    keep_records(channels_, per_row_, kept);
    keep_records(values_, per_row_, kept);
  }
  /// Puts the numbers of row t where they belong in `row` [D].
  void restore(float* row, size_t t) const {
    for (size_t i = t * per_row_; i < (t + 1) * per_row_; ++i)
      row[channels_[i]] = f16_to_f32(values_[i]);
  }
  size_t payload_bytes() const { return values_.size() * sizeof(uint16_t); }
  size_t metadata_bytes() const { return channels_.size(); }
  size_t allocated_bytes() const { return channels_.capacity_bytes() + values_.capacity_bytes(); }

 private:
  size_t per_row_;           // n
  Array<uint8_t> channels_;  // [rows, n]
  Array<uint16_t> values_;   // [rows, n] f16
};

/// The `count` channels of the largest distance, in order of channel; ties to the lower one.
/// `distance` is [dim], `order` room for as many.
inline void farthest(uint16_t* order, const float* distance, size_t dim, size_t count) {
  for (size_t c = 0; c < dim; ++c) order[c] = static_cast<uint16_t>(c);
  std::partial_sort(order, order + count, order + dim, [&](uint16_t a, uint16_t b) {
    return distance[a] != distance[b] ? distance[a] > distance[b] : a < b;
  });
  std::sort(order, order + count);
}

}  // namespace pith
