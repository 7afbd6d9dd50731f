#pragma once
// Something that may be there, and is copied with what owns it.

#include <memory>
#include <type_traits>
#include <utility>

namespace pith {

template <class T>
class Copied {
 public:
  Copied() = default;
  // As a pointer is returned. NOLINTNEXTLINE(google-explicit-constructor)
  Copied(std::unique_ptr<T> there) : there_(std::move(there)) {}
  Copied(const Copied& o) : there_(o.there_ ? copy(*o.there_) : nullptr) {}
  Copied(Copied&&) noexcept = default;
  Copied& operator=(Copied o) noexcept {
    there_.swap(o.there_);
    return *this;
  }
  ~Copied() = default;

  T* get() const { return there_.get(); }
  T* operator->() const { return there_.get(); }
  T& operator*() const { return *there_; }
  explicit operator bool() const { return there_ != nullptr; }

 private:
  static std::unique_ptr<T> copy(const T& of) {
    if constexpr (std::is_abstract_v<T>)
      return of.clone();
    else
      return std::make_unique<T>(of);
  }

  std::unique_ptr<T> there_;
};

}  // namespace pith
