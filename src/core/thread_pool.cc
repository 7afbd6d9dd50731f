#include "core/thread_pool.h"

#include <fmt/format.h>
#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "pith/error.h"

namespace pith {
namespace {

// A decode step is about a hundred short loops; waking a sleeping thread costs as much as one of
// them. So workers spin for a while (about 50 us) before they sleep.
constexpr int kSpins = 4000;

// State::inside: how many workers are in the loop, and whether it takes more.
constexpr uint32_t kClosed = 1u << 31;

}  // namespace

int ThreadPool::cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

struct ThreadPool::State {
  std::vector<std::thread> threads;
  std::atomic<uint32_t> generation{0};
  std::atomic<uint32_t> inside{kClosed};
  std::atomic<size_t> next{0};
  size_t count = 0;
  const TaskRef* task = nullptr;
  std::atomic<bool> stop{false};
  std::atomic_flag at_work;  // while a loop has the team
  std::mutex error_mutex;
  std::exception_ptr error;

  void drain(int worker) {
    for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      try {
        (*task)(i, worker);
      } catch (...) {
        std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        next = count;
      }
    }
  }

  void end() {
    stop = true;
    generation.fetch_add(1);
    generation.notify_all();
    for (auto& t : threads) t.join();
  }

  void work(int worker) {
    uint32_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && generation.load(std::memory_order_acquire) == seen;
           ++spin)
        _mm_pause();
      generation.wait(seen);
      seen = generation.load(std::memory_order_acquire);
      if (stop) return;
      if (!enter()) continue;
      drain(worker);
      if (inside.fetch_sub(1) == kClosed + 1) inside.notify_one();
    }
  }

  // Into the loop that is open now, which may be a later one than the worker woke for.
  bool enter() {
    uint32_t now = inside.load(std::memory_order_acquire);
    while ((now & kClosed) == 0)
      if (inside.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) return true;
    return false;
  }

  // Waits for the workers inside. One that the system has not woken yet finds the loop closed:
  // on busy cores a short loop does not wait for it.
  void close() {
    for (uint32_t now = inside.fetch_or(kClosed) | kClosed; now != kClosed; now = inside) {
      for (int spin = 0; spin < kSpins && inside.load(std::memory_order_acquire) == now; ++spin)
        _mm_pause();
      inside.wait(now);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  if (threads <= 0) threads = cores();
  try {
    for (int w = 1; w < threads; ++w) state_->threads.emplace_back([this, w] { state_->work(w); });
  } catch (const std::system_error& error) {
    const size_t started = state_->threads.size() + 1;
    state_->end();
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("{} threads were asked for, and the system refused after {}: {}; use "
                            "fewer (-t)",
                            threads, started, error.code().message()));
  }
}

ThreadPool::~ThreadPool() { state_->end(); }

int ThreadPool::size() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::run(size_t n, TaskRef task) {
  State& s = *state_;
  if (n == 0) return;
  // While another loop has the team, this one goes on alone: sessions that share a pool and took
  // turns here ran slower than one thread would have (decision 0160).
  if (n == 1 || s.threads.empty() || s.at_work.test_and_set(std::memory_order_acquire)) {
    for (size_t i = 0; i < n; ++i) task(i, 0);
    return;
  }
  s.task = &task;
  s.count = n;
  s.next = 0;
  s.inside.store(0, std::memory_order_release);
  s.generation.fetch_add(1, std::memory_order_release);
  s.generation.notify_all();
  s.drain(0);
  s.close();
  const std::exception_ptr error = std::exchange(s.error, nullptr);
  s.at_work.clear(std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

}  // namespace pith
