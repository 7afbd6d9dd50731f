#pragma once
// Whose memory something takes, for things that make their memory as they go: a copy of the thing
// is a fork's while the session that it is of is being forked (MemoryCounter::CopiesTo).

#include "core/memory.h"

namespace pith {

class CountedBy {
 public:
  CountedBy() = default;
  // A counter's address is what sites are made with. NOLINTNEXTLINE(google-explicit-constructor)
  CountedBy(MemoryCounter* counter) : counter_(counter) {}
  CountedBy(const CountedBy& o) : counter_(o.counter_ ? &o.counter_->of_copies() : nullptr) {}
  CountedBy& operator=(const CountedBy& o) {
    counter_ = CountedBy(o).counter_;  // NOLINT(bugprone-unhandled-self-assignment): the same
    return *this;
  }
  ~CountedBy() = default;

  MemoryCounter& operator*() const { return *counter_; }
  MemoryCounter* operator->() const { return counter_; }

 private:
  MemoryCounter* counter_ = nullptr;
};

}  // namespace pith
