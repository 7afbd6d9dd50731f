#pragma once
// What the CPU's sessions, and estimates of any, are made of.

#include "cache/kv_cache.h"
#include "session/backend.h"

namespace pith {

/// What forks share: threads, counted memory and kernels.
struct CpuEngine {
  explicit CpuEngine(const SessionOptions& o)
      : pool(o.threads), memory(o.memory_limit), context{pool, memory, kernels_for(o.isa)} {}
  ThreadPool pool;
  MemoryCounter memory;
  Context context;
};

inline CacheShape cache_shape(const ModelConfig& c, const SessionOptions& o) {
  return {c.layers,         c.query_heads, c.kv_heads,    c.head_dim,
          c.sliding_window, o.context,     c.fingerprint, o.percent_of};
}

}  // namespace pith
