#pragma once
// The resources of every computation: threads, counted memory and kernels. No globals.

#include "core/memory.h"
#include "core/thread_pool.h"
#include "kernels/kernels.h"

namespace pith {

struct Context {
  Context(ThreadPool& team, MemoryCounter& counter, const Kernels& table)
      : pool(team), memory(counter), kernels(table) {}
  /// Of a session that is forked, the fork's (MemoryCounter::CopiesTo).
  Context(const Context& o) : Context(o.pool, o.memory.of_copies(), o.kernels) {}

  ThreadPool& pool;
  MemoryCounter& memory;
  const Kernels& kernels;
};

}  // namespace pith
