#pragma once
// Rows of the run that become codes, and codes that move. Numbers beside rows are in the body's
// order, whether rows are codes or not.

#include "cache/cuda/head_stores.h"
#include "cache/cuda/late_work.h"

namespace pith::cuda {

class RunCodes {
 public:
  explicit RunCodes(HeadStores& stores) : s_(stores) {}

  /// Of the body's rows the first `count` are codes from now on, if they were not; with `late` the
  /// work may be left there, if nothing else of the pass looks at them.
  void pack(size_t count, LateCodes* late = nullptr);
  /// Whole blocks of them, at a pass's end.
  void pack_blocks(LateCodes* late);
  /// Settled rows become codes, and later ones follow up.
  void settle();
  /// The body's tables are those that codes have learnt.
  void share_tables();

  /// `count` of the body's rows from `first` on, none of which is packed unless all are.
  KeepCall rows_of(size_t first, size_t count) const;

  /// Codes first, ...: those that stay, in their new order.
  struct Kept {
    const int32_t* rows;  // [G, stride]
    size_t stride, first, count;
  };
  void keep(const Kept& kept, ChunkSpace& space);

  /// Rows that are selected from, from the body's row `first` on, as the codes give them back.
  void unpack(CandidateRows& rows, size_t first, DType dtype, ChunkSpace& space) const;

 private:
  /// Where rows stand that are coded now.
  RowPositions positions_of(CandidateRows& rows) const;

  HeadStores& s_;
};

inline size_t whole_blocks(size_t rows) {
  return (rows + kBlockRows - 1) / kBlockRows * kBlockRows;
}

}  // namespace pith::cuda
