#pragma once
// Where a head's queries are large: their mean square in each pair of channels that RoPE rotates
// together, which is the same before and after RoPE. A codec uses it to keep its error of keys out
// of those pairs. It is of the first queries behind the sink, which come before any row is coded,
// however a stream is cut. State: D / 2 floats; D multiply-adds for each of those
// queries.

#include <vector>

#include "core/archive.h"
#include "core/memory.h"

namespace pith {

/// The queries of one step that share a KV head.
struct HeadQueries {
  const float* q = nullptr;    ///< of the first of them; theirs lie side by side: [T, ., group, D]
  size_t stride = 0;           ///< numbers from one token's to the next's
  size_t tokens = 0;           // T
  size_t group = 1;            ///< query heads per KV head
  int64_t first_position = 0;  ///< of the first token's
};

class QueryEnergy {
 public:
  /// Of the queries at positions [first, last).
  QueryEnergy(MemoryCounter& memory, size_t dim, int64_t first, int64_t last);

  /// Each position counts once; returns whether any was new.
  bool add(const HeadQueries& queries);
  /// [D/2], or nothing before the first.
  std::vector<float> mean() const;
  void archive(Archive& a);
  size_t bytes() const { return sums_.size() * sizeof(float); }
  size_t allocated_bytes() const { return sums_.capacity_bytes(); }

 private:
  int64_t next_, last_;  // the first position that may still come, the end
  size_t counted_ = 0;   // positions in the sums
  Array<float> sums_;    // [D/2] of squares
};

}  // namespace pith
