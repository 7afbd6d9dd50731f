#pragma once
// For tests of room: caches that are counted as sessions' are.

#include <memory>
#include <optional>
#include <string>
#include <vector>

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

/// A cache with counters of its own: a fork, or one that was restored.
struct Moved {
  Moved(MemoryCounter& from, MemoryCounter& all, const KvCache& of, bool with_room)
      : whole(std::make_shared<MemoryCounter>(MemoryCounter::Whole{}, all)),
        own(std::make_unique<MemoryCounter>(*whole)) {
    const MemoryCounter::CopiesTo ours(from, *own, with_room);
    cache = of.clone();
  }
  std::vector<std::byte> save(int layers) {
    std::vector<std::byte> bytes;
    Archive a([&](auto more) { bytes.insert(bytes.end(), more.begin(), more.end()); });
    archive(a, layers);
    return bytes;
  }
  void load(std::span<const std::byte> bytes, int layers) {
    Archive a(bytes, "a test");
    archive(a, layers);
    a.end();
  }

  std::shared_ptr<MemoryCounter> whole;  // tables that forks share outlive it
  std::unique_ptr<MemoryCounter> own;
  std::unique_ptr<KvCache> cache;

 private:
  void archive(Archive& a, int layers) {
    cache->archive(a);
    for (int l = 0; l < layers; ++l) cache->archive_layer(l, a);
  }
};

}  // namespace pith::test
