#pragma once
// Independent jobs over a pool of threads, counted and cancelled. Results must not depend on who
// runs which.

#include <atomic>
#include <memory>
#include <vector>

#include "kernels/context.h"
#include "pith/model.h"

namespace pith {

/// Jobs throws it where `progress` asked to stop.
struct Cancelled {};

/// Runs jobs and counts them. With enough of them each runs on one thread, as selectors do much on
/// one thread anyway; else one after the other on all threads. Results are the same.
class Jobs {
 public:
  Jobs(const Context& context, const Progress& progress, size_t done, size_t total)
      : context_(context), progress_(progress), done_(done), total_(total) {
    for (int i = 0; i < context.pool.size(); ++i) alone_.push_back(std::make_unique<ThreadPool>(1));
  }

  /// work(context, i) for i in [0, n). Throws Cancelled if `progress` asked to stop.
  template <class F>
  void run(size_t n, F&& work) {
    if (n < alone_.size()) {
      for (size_t i = 0; i < n; ++i) {
        work(context_, i);
        finished(/*worker=*/0);
      }
      return;
    }
    context_.pool.parallel_for(n, [&](size_t i, int worker) {
      if (stop_) throw Cancelled{};
      work(Context{*alone_[static_cast<size_t>(worker)], context_.memory, context_.kernels}, i);
      finished(worker);
    });
  }

 private:
  void finished(int worker) {
    const size_t done = ++done_;
    // Worker 0 is the calling thread: `progress` need not be safe on others.
    if (worker == 0 && progress_ && !progress_(done, total_)) stop_ = true;
    if (stop_) throw Cancelled{};
  }

  Context context_;
  const Progress& progress_;
  std::vector<std::unique_ptr<ThreadPool>> alone_;  // [workers]
  std::atomic<size_t> done_;
  size_t total_;
  std::atomic<bool> stop_{false};
};

}  // namespace pith
