#pragma once
// The memory of KV heads under one rule that a pass may take, asked before its first row: what
// their stores come to hold, and what is asked of the scratch memory that layers share. It follows
// from counts, the rule and how stores grow; nothing is allocated for it, and nobody is waited for.

#include "cache/cuda/head_stores.h"

namespace pith::cuda {

class HeadRoom {
 public:
  HeadRoom(const HeadStores& stores, const ComingTokens& coming);

  /// Of the stores.
  StoreRoom stores() const;
  /// Of scratch memory; `places`: the most selections, or layers' codes, that go together.
  SpaceAsked space(const ChunkSpace& space, size_t places) const;

 private:
  bool flows() const { return s_.zones().flows(); }
  StoreRoom run_where_rows_flow() const;
  StoreRoom run() const;
  void add_selections(SpaceAsked& asked, const ChunkSpace& space, size_t places) const;
  /// Bytes of codes of at most `rows` rows at each of so many places, and of at most `fit` rows in
  /// all unless one place has more, that go through scratch memory.
  size_t codes_moved(size_t rows, size_t places, size_t fit) const;

  const HeadStores& s_;
  ComingTokens coming_;
  size_t body_ = 0;     // the most rows that the rule leaves
  size_t heavy_ = 0;    // the most heavy rows before them
  size_t between_ = 0;  // rows between sink and window
  size_t slack_ = 0;    // rows that wait for others, a pass's among them
};

}  // namespace pith::cuda
