#pragma once
// A few threads for what neither the I/O thread nor the scheduler's may wait for: JSON, templates,
// tokens, files.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pith::serve {

class Workers {
 public:
  explicit Workers(size_t threads) {
    for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  /// Drops work that was not begun.
  ~Workers() {
    {
      const std::lock_guard guard(lock_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// `f` must not throw.
  void add(std::function<void()> f) {
    {
      const std::lock_guard guard(lock_);
      jobs_.push_back(std::move(f));
    }
    wake_.notify_one();
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock guard(lock_);
        wake_.wait(guard, [&] { return stop_ || !jobs_.empty(); });
        if (stop_) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
    }
  }

  std::mutex lock_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace pith::serve
