#pragma once
// Functions that other threads give to the scheduler's thread, which runs them between two steps.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <utility>

#include "serve/refusal.h"

namespace pith::serve {

class Mailbox {
 public:
  using Functions = std::deque<std::function<void()>>;

  /// Any thread. `f` must not throw.
  void post(std::function<void()> f) {
    {
      const std::lock_guard guard(lock_);
      functions_.push_back(std::move(f));
    }
    wake_.notify_one();
  }

  /// Any thread but the scheduler's: waits until `f` has run there. Throws what it throws, and
  /// Refusal (503) after stop().
  void call(const std::function<void()>& f) {
    std::promise<void> done;
    {
      const std::lock_guard guard(lock_);
      if (stop_) throw Refusal(503, "draining", "the server is about to end");
      functions_.push_back([&] {
        try {
          f();
          done.set_value();
        } catch (...) {
          done.set_exception(std::current_exception());
        }
      });
    }
    wake_.notify_one();
    done.get_future().get();
  }

  /// Any thread: the scheduler's is to end when it has run what was posted.
  void stop() {
    {
      const std::lock_guard guard(lock_);
      stop_ = true;
    }
    wake_.notify_all();
  }

  /// The scheduler's thread: what was posted since. Waits for something unless `busy`, and for no
  /// longer than `limit`, if there is one. Null: it is to end.
  std::optional<Functions> take(bool busy, std::optional<std::chrono::milliseconds> limit) {
    std::unique_lock guard(lock_);
    const auto ready = [&] { return stop_ || busy || !functions_.empty(); };
    if (limit)
      wake_.wait_for(guard, *limit, ready);
    else
      wake_.wait(guard, ready);
    if (stop_ && functions_.empty()) return std::nullopt;
    return std::exchange(functions_, {});
  }

 private:
  std::mutex lock_;
  std::condition_variable wake_;
  Functions functions_;
  bool stop_ = false;
};

}  // namespace pith::serve
