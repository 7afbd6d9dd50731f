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
  // As Buffer's: copies may throw.
  Copied& operator=(const Copied& o) {
    if (this != &o) there_ = o.there_ ? copy(*o.there_) : nullptr;
    return *this;
  }
  Copied& operator=(Copied&&) noexcept = default;
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
