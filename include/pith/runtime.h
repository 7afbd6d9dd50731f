#pragma once
// A runtime is a device, its threads or stream, kernels and one account of memory: all that engines
// (pith/engine.h) and layers' caches (pith/layer_cache.h) of one program share. They keep it alive.
//
// Threads: any thread may call. Passes of all engines of a runtime run one after another, each on
// all threads. During a pass a LayerCache computes on its caller's thread; on the GPU it waits.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "pith/device.h"

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

struct RuntimeOptions {
  /// The device of tensors, caches and passes, without fallback. kCuda: the CUDA device that is
  /// current in the thread that constructs it, whichever is current where it is called.
  Device device = Device::kCpu;
  int threads = 0;  ///< 0 = all cores; on the GPU the error probe's, and up to 8 of many sessions
  /// Most bytes of all engines, sessions and layers together, without weights; 0 = no limit.
  size_t memory_limit = 0;
  /// CPU: "scalar", "avx2", "avx512" or "avx512_vnni"; "" = that of PITH_ISA, or the best.
  std::string isa = {};
  /// GPU: called where the card refuses memory, in the thread of the call, to free unused memory of
  /// other parts of the process. Returns true to try again. It must not call objects of this
  /// runtime.
  std::function<bool()> make_room = {};
};

struct LayerStep;  // pith/layer_cache.h

class Runtime {
 public:
  /// Throws kInvalidArgument, and kUnsupported for a missing GPU.
  explicit Runtime(const RuntimeOptions& options = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// The steps of many caches of this runtime, such as one layer's of all sequences of a batch. The
  /// results are those of LayerCache::step one after the other, bit for bit. On the CPU each
  /// step runs on one thread if there are at least as many steps as threads. On the GPU steps of
  /// one token share launches, if layers are of one shape and on one stream. All arguments are
  /// checked first, so that kInvalidArgument and kContextFull change nothing. After kNonFinite and
  /// kOutOfMemory drop all these caches.
  void step(std::span<const LayerStep> steps);

  /// Bytes of all that was made with it, without weights: now, and at most so far.
  size_t bytes_in_use() const;
  size_t peak_bytes() const;
  size_t bytes_reserved() const;          ///< as Engine's, of all engines
  void set_memory_limit(size_t bytes);    ///< as Engine's
  const RuntimeOptions& options() const;  ///< as they were given
  Device device() const;
  int threads() const;      ///< 1 on the GPU
  const char* isa() const;  ///< "cuda" on the GPU

 private:
  friend class Engine;
  friend class LayerCache;
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

}  // namespace pith

#pragma GCC visibility pop
