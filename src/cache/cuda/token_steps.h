#pragma once
// A cache's steps on the GPU of one token each, and of one query that brings no row.

#include <vector>

#include "cache/cuda/cache_parts.h"
#include "cache/cuda/token_numbers.h"

namespace pith::cuda {

/// One token. begin_token makes room and writes what the step's kernels read on the host's side:
/// the uploads of the step before must be over. Then the stream gets token_uploads' work and
/// attend_token's of each layer, always the same, so that a graph of it can be replayed.
/// end_token brings the books up to date and hands the rows that leave the windows to the bodies;
/// what may be done together with other caches' work is left in `late`, to be run before anything
/// else happens to the cache.
class TokenSteps {
 public:
  /// Of that cache, whose numbers count in `memory`.
  TokenSteps(CacheParts& cache, MemoryCounter& memory);
  /// The layers' numbers of spans may have changed; graphs of steps are no longer valid.
  void renew();

  void begin_token();
  /// begin_token() of the next token, if it takes no memory and changes nothing but what kernels
  /// read: it is then over when that comes. If something else comes first, it counts for nothing.
  void begin_ahead();
  std::vector<Upload> token_uploads() const { return numbers_.uploads(); }
  /// Where the token's row goes.
  const RowTarget& token_target(int layer) const { return targets_[cache_.layers.index(layer)]; }
  /// out f32 [H, D] <- attention of q [H, D], both in rows of their own.
  DecodePlace token_place(int layer, float* out, const void* q) const;
  /// The calls of a layer's step, and the place of each one in a batch.
  size_t token_calls(int layer) const { return cache_.layers.at(layer).calls(); }
  DecodePlace place_of_call(int layer, size_t call, const DecodePlace& whole) const;
  /// Blocks that the token's rows need in a batch (DecodeCompany::blocks), in any layer.
  int token_blocks() const { return blocks_; }
  void attend_token(int layer, const DecodePlace& place, const DecodeScratch& scratch,
                    const DecodeCompany& company = {}) const;
  /// The shape of decode calls of any layer.
  DecodeShape token_shape() const;
  /// Whether the error probe measures this step: then compare_token follows each attend_token,
  /// with the same numbers, and the step is no graph.
  bool comparing() const { return cache_.probe && cache_.probe->comparing(); }
  /// The next token's kernels are not those of later ones: they are compared, or a codec sees their
  /// queries.
  bool steps_apart() const;
  void compare_token(int layer, const float* out, const void* q);
  void end_token(LateWork& late);
  /// The work that end_token() left there, of any caches of this one's engine.
  void run(LateWork& late) { late.run(cache_.space, cache_.stream); }
  void end_token() {
    LateWork late;
    end_token(late);
    run(late);
  }

  /// A query over the rows held that brings none, of a cache of one layer: as begin_token, and
  /// then attend_only in the place of attend_token.
  void begin_query();
  void attend_only(int layer, const DecodePlace& place, const DecodeScratch& scratch) const;

 private:
  TokenStep token_step(int layer, const DecodePlace& place, const DecodeScratch& scratch) const;

  CacheParts& cache_;
  MemoryCounter& memory_;
  TokenNumbers numbers_;
  std::vector<RowTarget> targets_;  // [L]
  DeviceArray<float> log_sum_;      // [H]
  int blocks_ = 1;                  // see token_blocks()
};

}  // namespace pith::cuda
