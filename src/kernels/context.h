#pragma once
// What every computation is handed: threads, counted memory and kernels. No globals.

#include "core/memory.h"
#include "core/thread_pool.h"
#include "kernels/kernels.h"

namespace pith {

struct Context {
  ThreadPool& pool;
  MemoryCounter& memory;
  const Kernels& kernels;
};

}  // namespace pith
