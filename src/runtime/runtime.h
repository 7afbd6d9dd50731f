#pragma once
// The inside of a Runtime, on either device.

#include <sys/types.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "cache/host_tables.h"
#include "core/memory.h"
#include "core/thread_pool.h"
#include "kernels/kernels.h"
#include "pith/runtime.h"

namespace pith {

/// Of one device. Engines and layers of that device know which of the two it is.
struct RuntimeBackend {
  explicit RuntimeBackend(size_t memory_limit) : memory(memory_limit) {}
  virtual ~RuntimeBackend() = default;
  RuntimeBackend(const RuntimeBackend&) = delete;
  RuntimeBackend& operator=(const RuntimeBackend&) = delete;
  virtual int threads() const = 0;
  virtual const char* isa() const = 0;

  MemoryCounter memory;  // of all engines, sessions and layers
  std::mutex turn;       // of whoever runs an engine's pass
};

struct CpuRuntime final : RuntimeBackend {
  explicit CpuRuntime(const RuntimeOptions& o)
      : RuntimeBackend(o.memory_limit),
        pool(o.threads),
        kernels(kernels_for(o.isa)),
        tables(pool, memory, kernels) {}
  int threads() const override { return pool.size(); }
  const char* isa() const override { return kernels.isa; }

  ThreadPool pool;
  const Kernels& kernels;
  HostTables tables;
};

struct Runtime::State {
  explicit State(const RuntimeOptions& o);
  /// Other threads of a process do not survive fork(): whoever waits for them waits for ever.
  /// Throws kUnsupported in a child of the process that it was made in.
  void check_process() const;

  RuntimeOptions options;
  pid_t process;
  std::unique_ptr<RuntimeBackend> backend;
};

/// Bytes that count for limits beside those in use.
inline size_t set_aside(const MemoryCounter& memory) {
  const size_t live = memory.total();
  return std::max(memory.held(), live) - live;
}

/// `options` are checked. Throws kUnsupported in a build without CUDA and on a machine without a
/// GPU.
std::unique_ptr<RuntimeBackend> make_cuda_runtime(const RuntimeOptions& options);

/// Throws kInvalidArgument for a number of threads that makes no sense.
void check_threads(int threads);

/// A build without CUDA: throws kUnsupported with how to build one that has it.
[[noreturn]] void refuse_cuda();

}  // namespace pith
