#pragma once
// A fixed team of threads for loops. Results must not depend on who runs which index: callers
// split work by its shape, never by the number of threads.

#include <cstddef>
#include <memory>
#include <type_traits>

namespace pith {

/// Non-owning reference to a callable void(size_t index, int worker).
class TaskRef {
 public:
  template <class F>
  TaskRef(F& f)  // NOLINT(google-explicit-constructor)
      : object_(&f), call_([](void* o, size_t i, int w) { (*static_cast<F*>(o))(i, w); }) {}
  void operator()(size_t index, int worker) const { call_(object_, index, worker); }

 private:
  void* object_;
  void (*call_)(void*, size_t, int);
};

/// The calling thread is worker 0 and takes part. A loop that another thread starts meanwhile, or
/// that starts within a loop, runs on its thread alone, as worker 0.
class ThreadPool {
 public:
  /// 0 = one per core that this process may use. Throws kOutOfMemory if the system gives fewer.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;
  /// That this process may use.
  static int cores();

  /// Calls f(index, worker) for each index in [0, n), each once, in any order; returns when all are
  /// done. The first exception thrown is rethrown here after the loop has drained.
  template <class F>
  void parallel_for(size_t n, F&& f) {
    run(n, TaskRef(f));
  }

 private:
  void run(size_t n, TaskRef task);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pith
