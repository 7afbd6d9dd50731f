#pragma once
// For tests of room: a cache that is counted as a session's is.

#include <memory>
#include <optional>
#include <string>

#include "cache_harness.h"

namespace pith::test {

/// A copy of an empty cache: its rows are counted by `own`, with what lasts a step by `whole`.
struct Counted {
  Counted(const std::string& form, const Shape& shape, int threads)
      : pool(threads), rope(static_cast<size_t>(shape.head_dim), 10000.0) {
    const CacheShape cs{shape.layers, shape.query_heads(), shape.kv_heads, shape.head_dim,
                        {},           shape.context};
    empty.emplace(Context{pool, all, kernels_for("")}, cs, Policy::parse(form), 1, &rope);
    const MemoryCounter::CopiesTo ours(all, own);
    cache = empty->clone();
  }

  MemoryCounter all;
  MemoryCounter whole{MemoryCounter::Whole{}, all};
  MemoryCounter own{whole};
  ThreadPool pool;
  Rope rope;
  std::optional<KvCache> empty;
  std::unique_ptr<KvCache> cache;
};

}  // namespace pith::test
