#pragma once
// Tokens and chunks of KV heads under one rule: room for their rows, the books behind them. Where
// rows flow (layer_plan.h) those that leave the window go into a body, which carries out its rule's
// steps, or are dropped; elsewhere a StepExecutor carries out the plan's.

#include <vector>

#include "cache/cuda/dense_parts.h"
#include "cache/cuda/late_work.h"

namespace pith::cuda {

/// Its functions are those of LayerRows (layer_rows.h), of one range of heads.
class HeadPasses {
 public:
  explicit HeadPasses(HeadStores& stores) : s_(stores) {}

  RowTarget begin_token(const TokenSlots& slots);
  /// Whether begin_token() takes no memory and changes nothing but what it writes.
  bool begins_freely() const;
  void end_token(ChunkSpace& space, LateWork& late);
  void write_spans(const TokenSlots& slots);
  RowTarget begin_chunk(size_t tokens, ChunkSpace& space);
  void end_chunk(size_t tokens, ChunkSpace& space, LateWork& late);
  void append_chunk(size_t tokens, ChunkSpace& space, LateWork& late);
  /// The prompt is complete.
  void end_prefill(ChunkSpace& space);

 private:
  bool flows() const { return s_.zones().flows(); }
  /// Of the window's `rows` rows from `from` on so many flow into the body now, or are dropped.
  size_t flow(const RowTarget& from, size_t rows, ChunkSpace& space, std::vector<BodyMove>& moves);
  /// Writes the positions of rows that leave, where the body keeps them and some are protected.
  void name_positions(BodyMove& move, ChunkSpace& space) const;
  /// The end of a chunk of rows that were staged behind the window's.
  void end_staged(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves);

  HeadStores& s_;
};

}  // namespace pith::cuda
