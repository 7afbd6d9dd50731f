#pragma once
// Protected rows of one layer on the GPU (plan/protected_rows.h): exact rows of their own, behind
// the sink, that no schedule moves. All other rows are numbered without them ("ordinals").

#include <memory>
#include <span>
#include <vector>

#include "plan/protected_rows.h"
#include "plan/step.h"
#include "rows/cuda/dense_store.h"
#include "select/cuda/candidate_rows.h"

namespace pith::cuda {

/// Ordinals from `first` on, up to the next run's, are positions from `position` on.
struct OrdinalRun {
  int64_t first = 0, position = 0;
};

class ProtectedStore {
 public:
  ProtectedStore(MemoryCounter& memory, const DenseStoreShape& shape, DType dtype,
                 cudaStream_t stream)
      : memory_(&memory),
        shape_(shape),
        dtype_(dtype),
        stream_(stream),
        rows_(memory, shape, stream) {}

  /// Replaces the rows to protect, behind a sink of `sink`. Waits.
  void protect(const ProtectedRows& rows, size_t sink);
  /// Whether any are to be; and how many have come.
  bool any() const { return !ranges_.ranges().empty(); }
  size_t rows() const { return rows_.rows(); }
  bool covers(size_t position) const {
    return any() && ranges_.run_at(static_cast<int64_t>(position), 1).is_protected;
  }
  /// The position of the `ordinal`-th row of the others.
  int64_t position_of(int64_t ordinal) const { return ranges_.position_of(ordinal); }
  /// The same on the device, while any are protected, for some of the others.
  struct PositionsCall {
    int32_t* positions = nullptr;  // [heads, stride]
    size_t stride = 0;
    int heads = 0, rows = 0;
    int64_t first = 0;  ///< ordinal
  };
  void write_positions(const PositionsCall& call) const;
  /// Stores positions of the rows that have none yet, while any are protected.
  void name(CandidateRows& rows) const;

  /// The most that it takes until `position`.
  StoreRoom room(size_t position) const {
    return any() ? rows_.room(static_cast<size_t>(ranges_.before(static_cast<int64_t>(position))))
                 : StoreRoom();
  }
  /// Whether begin_token() takes no memory.
  bool has_room() const { return rows_.has_room(1); }
  /// A token's row, with room for it; add_token counts it.
  RowTarget begin_token();
  void add_token() { rows_.add(1); }
  /// The first `count` rows of a head.
  DeviceSpan span(size_t head, size_t count) const {
    return dense_span(rows_.begin(), head, count, shape_.dim);
  }
  /// A chunk's attention to them all.
  void attend_chunk(ChunkAttention& attention) const;

  /// A chunk's rows, which are the last of their run.
  struct Chunk {
    RowTarget from;
    float* mass = nullptr;  // [G, mass_stride] from row from.row on, or null
    size_t mass_stride = 0;
  };
  /// The protected ones come here, as the pass's steps say, and those behind them follow up, with
  /// their mass. Returns how many came.
  size_t take(const Chunk& chunk, std::span<const Step> steps);

  /// `positions` from `first` on are ordinals: they become positions, and rows held are added.
  void finish(HeadRows& rows, size_t first) const;
  /// `rows` have come.
  void archive(Archive& a, size_t rows) {
    if (any()) rows_.archive(a, rows, dtype_);
  }
  void add_to(Ledger& ledger) const { rows_.add_to(ledger); }

 private:
  CountedBy memory_;
  DenseStoreShape shape_;
  DType dtype_;
  cudaStream_t stream_;
  ProtectedRows ranges_;
  std::shared_ptr<const DeviceArray<OrdinalRun>> runs_;  // [ranges + 1]
  DenseStore rows_;
};

}  // namespace pith::cuda
