#pragma once
// A value that copies share until one of them writes. Copies may be made of one by several threads
// at once; who writes has it alone, and sees all that was done to it before.

#include <atomic>
#include <memory>
#include <utility>

namespace pith {

template <class T>
class CopyOnWrite {
 public:
  CopyOnWrite() : CopyOnWrite(std::make_unique<T>()) {}
  explicit CopyOnWrite(std::unique_ptr<T> value) : node_(new Node{{1}, std::move(value)}) {}
  CopyOnWrite(const CopyOnWrite& o) noexcept : node_(o.node_) {
    node_->users.fetch_add(1, std::memory_order_relaxed);
  }
  CopyOnWrite(CopyOnWrite&& o) noexcept : node_(std::exchange(o.node_, nullptr)) {}
  CopyOnWrite& operator=(CopyOnWrite o) noexcept {
    std::swap(node_, o.node_);
    return *this;
  }
  ~CopyOnWrite() {
    if (node_ && node_->users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete node_;
  }

  const T& operator*() const { return *node_->value; }
  const T* operator->() const { return node_->value.get(); }
  /// Whether another has it too.
  bool shared() const { return node_->users.load(std::memory_order_acquire) > 1; }
  /// The value for writing: a copy of its own, if it was shared. An exception from copying changes
  /// nothing.
  T& own() {
    if (shared()) *this = CopyOnWrite(std::make_unique<T>(*node_->value));
    return *node_->value;
  }

 private:
  struct Node {
    std::atomic<size_t> users;
    std::unique_ptr<T> value;
  };
  Node* node_;
};

}  // namespace pith
