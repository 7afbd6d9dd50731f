#pragma once
// Tables of a runtime on the CPU: projections and random signs of codecs, which depend on the
// codec, the layer and the seed alone, and RoPE's. Its engines and layers have equal ones once, and
// they go with their last user. Any thread may call.

#include <mutex>

#include "core/made_once.h"
#include "kernels/context.h"
#include "kernels/rope.h"
#include "policy/resolved.h"

namespace pith {

class HostTables {
 public:
  /// Codecs' tables count as `of_runtime`'s own; like all here it must outlive their users.
  HostTables(ThreadPool& pool, MemoryCounter& of_runtime, const Kernels& kernels)
      : pool_(pool), kernels_(kernels), memory_(MemoryCounter::Root{}, of_runtime) {}

  /// The codec of a side, with its tables if it draws any.
  std::shared_ptr<const Codec> codec(const CohortPolicy& policy, Side side);
  /// One that turns as `rope` does, perhaps `rope` itself; null for null.
  std::shared_ptr<const Rope> rope(std::shared_ptr<const Rope> rope);
  const MemoryCounter& memory() const { return memory_; }

 private:
  ThreadPool& pool_;
  const Kernels& kernels_;
  MemoryCounter memory_;
  std::mutex turn_;
  MadeOnce<Codec> codecs_;
  MadeOnce<Rope> ropes_;
};

/// The same of `tables`, or made for the caller alone if that is null.
std::shared_ptr<const Codec> codec_of(HostTables* tables, const CohortPolicy& policy, Side side);

}  // namespace pith
