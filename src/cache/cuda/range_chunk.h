#pragma once
// A chunk of a layer whose heads have several rules: rows, queries and results of all heads, side
// by side in scratch memory or where the caller has them, and one range's of them. A launch for
// each side of the rows, the queries and the result of a range.

#include "cache/cuda/chunk_space.h"
#include "cache/cuda/head_forms.h"

namespace pith::cuda {

class RangeChunk {
 public:
  RangeChunk(const LayerSite& site, size_t tokens, ChunkSpace& space);

  /// Of scratch memory.
  static size_t bytes(const LayerSite& site, size_t tokens) {
    return 4 * site.heads * tokens * site.dim + 6 * tokens * site.query_heads * site.dim;
  }
  /// Where rows of all heads come.
  const RowTarget& rows() const { return rows_; }
  /// A range's rows from there.
  void copy_rows(const RowTarget& to, const HeadRun& run) const;
  /// A range's part of a call, its queries copied side by side.
  CausalCall call_of(const HeadRun& run, const CausalCall& all) const;
  /// A range's results, of numbers of so many bytes, to their place among those of all heads.
  void put(void* all, const void* of_range, const HeadRun& run, size_t number) const;
  void put_zeros(float* all, const HeadRun& run) const;
  /// Room for the results of all heads, where the caller has none, or for a range's.
  std::byte* result() const { return result_; }  // [T, H, D]

 private:
  size_t first_query(const HeadRun& run) const;

  const LayerSite& site_;
  size_t tokens_;
  RowTarget rows_;
  std::byte *queries_, *result_;  // [T, H, D]
};

}  // namespace pith::cuda
