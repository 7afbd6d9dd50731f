#pragma once
// The sparse part of dense-and-sparse codes (KVQuant, GEAR): each row keeps n of its numbers apart,
// as a channel and an f16 value. The same n for every row, where the papers let a threshold decide:
// bytes per row are then known before the rows are, and dropping rows is a compaction like any
// other. Bytes per row: 3 n.

#include <algorithm>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "kernels/kernels.h"
#include "rows/cpu/compaction.h"

namespace pith {

/// The most numbers of a row apart that the GPU's kernels have room for.
inline constexpr size_t kApartOnGpu = 8;

inline constexpr size_t kMostOutlierDim = 256;  // channels are bytes

class OutlierRows {
 public:
  static constexpr size_t kBuffers = 2;  // channels, numbers

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
  /// The newest row's: `channels` [n], whose values are taken from `row`: the numbers themselves,
  /// which restore puts back, or what the codes miss of them, which add adds.
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
    for_row(t, [&](size_t c, float x) { row[c] = x; });
  }
  /// For numbers that were pushed as differences.
  void add(float* row, size_t t) const {
    for_row(t, [&](size_t c, float x) { row[c] += x; });
  }
  struct Scores {
    float* out;  // [M, ld]
    size_t ld;
    const float* q;  // [M, D]
    size_t queries, dim;
    float scale;
  };
  /// out[m, t] += scale times the query's products with the numbers of rows first + t.
  void add_scores(const Kernels& kernels, const Scores& s, size_t first, size_t count) const;
  /// acc [M, D] += sum_t p[m * ld + t] times the numbers of rows first + t.
  void add_sums(const Kernels& kernels, float* acc, const float* p, size_t ld, size_t queries,
                size_t dim, size_t first, size_t count) const;
  /// f(channel, number) for those of row t.
  template <class F>
  void for_row(size_t t, F&& f) const {
    for (size_t i = t * per_row_; i < (t + 1) * per_row_; ++i)
      f(size_t{channels_[i]}, f16_to_f32(values_[i]));
  }
  /// Those of `rows` rows of D numbers.
  void archive(Archive& a, size_t rows, size_t dim) {
    a.numbers(channels_, rows * per_row_);
    a.halves(values_, rows * per_row_);
    for (size_t i = 0; a.loads() && i < channels_.size(); ++i)
      a.need(channels_[i] < dim, "a number apart in a channel that there is not");
  }
  size_t payload_bytes() const { return values_.size() * sizeof(uint16_t); }
  size_t metadata_bytes() const { return channels_.size(); }
  size_t allocated_bytes() const { return channels_.capacity_bytes() + values_.capacity_bytes(); }

 private:
  /// Calls f(rows, first, n) for runs of rows as the kernels of sparse rows take them: a channel
  /// counts as an atom, 16 bits wide.
  template <class F>
  void for_runs(size_t first, size_t count, F&& f) const {
    constexpr size_t kRun = 128;
    if (per_row_ == 0) return;
    std::vector<uint16_t> wide(kRun * per_row_);
    for (size_t t = first; t < first + count; t += kRun) {
      const size_t n = std::min(kRun, first + count - t);
      std::copy_n(channels_.data() + t * per_row_, n * per_row_, wide.data());
      f(SparseRows{wide.data(), values_.data() + t * per_row_, per_row_, 1}, t - first, n);
    }
  }

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
