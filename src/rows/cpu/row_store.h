#pragma once
// Rows of one KV head in coded form with what must travel with them: true positions, log-weights,
// attention mass. A body is one or more of these.

#include "kernels/rope.h"
#include "pith/ledger.h"
#include "rows/cpu/span.h"

namespace pith {

/// How the rows of one body are coded and what is tracked beside them.
struct RowFormat {
  const Codec* keys = nullptr;
  const Codec* values = nullptr;
  const Rope* rope = nullptr;  ///< needed if keys->pre_rope()
  size_t dim = 0;              // D
  uint32_t head = 0;
  size_t max_rows = 0;  ///< 0 = unbounded
  bool mass = false;    ///< carry attention mass
  uint64_t seed = 0;
  uint32_t layer = 0;
  uint64_t model = 0;  ///< ModelConfig::fingerprint
  size_t group = 1;    ///< query heads per KV head
  size_t sink = 0;     ///< rows before the body's first
};

/// Rows to append, oldest first, at consecutive positions unless `positions` says otherwise.
struct NewRows {
  const float* k = nullptr;  // [count, D], after RoPE
  const float* v = nullptr;  // [count, D]
  size_t stride = 0;         ///< numbers between consecutive rows, of both
  size_t count = 0;
  int64_t first_position = 0;          ///< of row 0
  const float* mass = nullptr;         // [count], if tracked
  const int64_t* positions = nullptr;  // [count]; null: consecutive

  int64_t position(size_t row) const {
    return positions ? positions[row] : first_position + static_cast<int64_t>(row);
  }
  /// Rows [first, first + n) of these.
  NewRows slice(size_t first, size_t n) const {
    return {k + first * stride,
            v + first * stride,
            stride,
            n,
            first < count ? position(first) : 0,
            mass ? mass + first : nullptr,
            positions ? positions + first : nullptr};
  }
  /// Whether the rows have consecutive positions.
  bool consecutive() const;
};

class RowStore {
 public:
  /// Positions, log-weights, attention mass: a buffer and four bytes of each row.
  static constexpr size_t kSides = 3;
  /// Buffers that grow with a store's rows.
  static size_t buffers(const Codec& keys, const Codec& values) {
    return keys.buffers() + values.buffers() + kSides;
  }

  RowStore(const Context& context, const RowFormat& format, Role role = Role::kBoth);
  RowStore(const RowStore& other);
  RowStore(RowStore&&) = default;
  RowStore& operator=(RowStore&&) = default;

  size_t rows() const { return keys_->rows(); }
  Role role() const { return role_; }
  /// `log_weight` is the weight of each of the new rows.
  void append(const NewRows& rows, float log_weight = 0);
  /// As CodedRows says, to the keys.
  void show_queries(std::span<const float> energy) { keys_->show_queries(energy); }
  /// Drops the rows that are not named (ascending, no repeats).
  void keep(std::span<const uint32_t> kept);
  /// The same for rows from `first` on; older ones stay. Costs nothing for those.
  void keep_after(size_t first, std::span<const uint32_t> kept);
  void clear() { keep({}); }

  int64_t position(size_t row) const;
  float log_weight(size_t row) const {
    return span_log_weight_ + (log_weights_.empty() ? 0.0f : log_weights_[row]);
  }
  /// A log-weight added to every row's own.
  void set_span_log_weight(float w) { span_log_weight_ = w; }
  void set_log_weight(size_t row, float w);
  /// [rows] attention mass so far; empty if not tracked.
  std::span<float> mass() { return mass_; }
  /// out [count, D] <- keys of rows [first, first + count) after RoPE, however they are stored.
  void decode_keys(float* out, size_t first, size_t count) const;
  /// k, v f32 [count, D] <- rows [first, first + count), keys after RoPE whatever the codec stores.
  void read(float* k, float* v, size_t first, size_t count) const;
  const CodedRows& keys() const { return *keys_; }
  const CodedRows& values() const { return *values_; }

  /// Rows with all that travels with them, positions below `tokens`; loading: into a new store.
  void archive(Archive& a, size_t tokens);
  /// The whole store as one span of attention, which adds to its mass.
  Span span();
  void add_to(Ledger& ledger) const;

 private:
  void materialise_positions();

  RowFormat format_;
  const Kernels* kernels_;
  MemoryCounter* memory_;
  Role role_;
  std::unique_ptr<CodedRows> keys_, values_;
  // While positions are contiguous only the first is stored.
  bool contiguous_ = true;
  int64_t first_position_ = 0;
  Array<uint32_t> positions_;  // [rows], empty while contiguous
  Array<float> log_weights_;   // [rows], empty while all are 0
  Array<float> mass_;          // [rows], if tracked
  float span_log_weight_ = 0;
};

}  // namespace pith
