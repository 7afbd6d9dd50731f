#pragma once
// Express's offline form for prefill on the GPU (seed 004, App. H): which rows are picked, which
// runs are halved and which rows a chunk of queries sees follow from the number of tokens alone, so
// that the host plans them once for all heads and layers. Lists of rows lie in one pool a head; a
// snapshot of the coreset is a few runs of it.

#include <cstdint>
#include <vector>

#include "attend/cuda/prefill.h"
#include "methods/express/express_cuda.h"

namespace pith::cuda {

struct ExpressPrefillShape {
  int tokens = 0;   ///< n
  int sink = 0;     ///< first tokens, seen by all exactly
  int window = 0;   ///< tokens before a chunk that are seen exactly
  int chunk = 384;  ///< queries that share a snapshot: 8 tiles of 192 for 4 heads a KV head

  /// Throws kInvalidArgument for negative sizes and empty chunks.
  void check() const;
};

/// pool[to + i] <- the row of [first + i stratum, first + i stratum + size) that its stratum keeps.
struct PickJob {
  int32_t to = 0, first = 0, stratum = 1, size = 1, count = 0;
};
/// Halves `groups` runs of `size` rows from pool[from ..] to pool[to ..].
struct HalvingStep {
  int32_t from = 0, to = 0, size = 0, groups = 0;
  uint32_t tag = 0;
};
/// What one weight of the coreset (tau) needs, and the chunks that need no more.
struct ExpressPhase {
  std::vector<PickJob> picks;
  std::vector<HalvingStep> halvings;
  int first_chunk = 0, chunks = 0;
};

struct ExpressPlan {
  std::vector<ExpressPhase> phases;
  std::vector<PickJob> partial;  ///< picks of unfinished strata, one row each
  std::vector<PrefillChunk> chunks;
  std::vector<PrefillSegment> segments;
  int pool = 0;       ///< rows of the pool, for each head
  int most_rows = 0;  ///< that a query sees
  int most_queries = 0;
  int most_segments = 0;
  /// The stream after the prompt: tokens before the last `window` and after the sink.
  ExpressState state;
  int first_final = 0, finals = 0;  ///< its segments, in the order of a store
};

/// Row numbers are token numbers. The first token of the stream is `sink`.
ExpressPlan plan_express(const ExpressRule& rule, const ExpressPrefillShape& shape);

}  // namespace pith::cuda
