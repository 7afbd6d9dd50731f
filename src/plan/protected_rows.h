#pragma once
// Rows that must stay: ranges of positions that go to an exact store of their own as they come, and
// never to window or body. All other rows are numbered without them ("ordinals"), so that sink,
// window and blocks move as if protected rows did not exist.
//
// Cost: one binary search a run of rows; 16 bytes a range.

#include <cstddef>
#include <span>
#include <vector>

#include "pith/rows.h"

namespace pith {

class ProtectedRows {
 public:
  /// Adds ranges. Throws kInvalidArgument, with nothing added, for a range that is empty, reversed
  /// or negative, begins before `seen` (those rows are compressed already), ends after `limit`
  /// (0 = none), or meets another.
  void add(std::span<const TokenRange> ranges, int64_t seen, int64_t limit);

  const std::vector<TokenRange>& ranges() const { return ranges_; }
  /// Protected positions below `position`.
  int64_t before(int64_t position) const;
  /// The protected ranges without positions below `first`, which are kept anyway.
  ProtectedRows from(int64_t first) const;

  /// A run of rows that are all protected or all not.
  struct Run {
    int64_t count = 0;
    bool is_protected = false;
  };
  /// The run that `position` begins, at most `most` long.
  Run run_at(int64_t position, int64_t most) const;
  /// The position of the `ordinal`-th row that is not protected.
  int64_t position_of(int64_t ordinal) const;

 private:
  std::vector<TokenRange> ranges_;  // ascending, apart
};

}  // namespace pith
