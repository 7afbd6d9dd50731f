#pragma once
// State as bytes and back. A class lists its state once, in `archive(Archive&)`: the same lines
// count its bytes, save them and load them, so that nothing can be written and not read.
//
// Loaded bytes are not trusted: a number is checked against the most that it can be before it is
// used, an array against the bytes that are left before memory is taken for it, and floating-point
// numbers must be finite. need() checks other conditions between fields, both ways.

#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "core/memory.h"
#include "pith/dtype.h"

namespace pith {

class Archive {
 public:
  /// Takes the next bytes of what is saved.
  using Sink = std::function<void(std::span<const std::byte>)>;

  /// Counts bytes.
  Archive() = default;
  /// Saves.
  explicit Archive(Sink sink) : way_(Way::kSave), sink_(std::move(sink)) {}
  /// Loads; `name` is for messages. Throws kCorrupt, here and below, for bytes that cannot be.
  Archive(std::span<const std::byte> bytes, std::string name)
      : way_(Way::kLoad), name_(std::move(name)), left_(bytes) {}

  bool loads() const { return way_ == Way::kLoad; }
  bool counts() const { return way_ == Way::kCount; }
  /// Bytes so far.
  size_t bytes() const { return done_; }
  /// Loading: nothing may be left.
  void end();
  /// Where errors are from now on: "layer 3".
  void at(std::string place) { place_ = std::move(place); }
  /// `fact` must hold, or "`what`" is wrong.
  void need(bool fact, const char* what) const {
    if (!fact) refuse(what);
  }

  /// A whole number of at most `most`; signed ones count by their size.
  template <class T>
  void number(T& x, T most, const char* what = "a number is too large") {
    static_assert(std::is_integral_v<T> && !std::is_same_v<T, bool>);
    raw(&x, sizeof(T));
    need(x <= most, what);
    if constexpr (std::is_signed_v<T>) need(x >= -most, what);
  }
  void flag(bool& x);
  /// A finite number.
  void number(float& x);
  void number(double& x);

  /// `n` numbers of any value. `readable` more may be read past them and are not state.
  template <class T>
  void numbers(Array<T>& x, size_t n, size_t readable = 0) {
    need(loads() || x.size() >= n, "an array is shorter than its rows");
    if (loads()) {
      check_left(n, sizeof(T));
      x.reserve(n > 0 ? n + readable : 0);
      x.resize(n > 0 ? n + readable : 0);
    }
    raw(x.data(), n * sizeof(T));
  }
  /// `n` finite numbers.
  void floats(Array<float>& x, size_t n);
  void halves(Array<uint16_t>& x, size_t n, size_t readable = 0);
  /// `n` whole numbers, each larger than the one before, from 0 on if `from_0`, and below `limit`.
  void ascending(Array<uint32_t>& x, size_t n, size_t limit, bool from_0 = false);
  /// Bytes that are there already, or are to be; counting looks at none.
  void raw(void* x, size_t bytes);
  /// The same for finite numbers of `dtype`.
  void raw_finite(void* x, size_t count, DType dtype);
  /// Loading: throws unless `count` records of `size` bytes can still come.
  void check_left(size_t count, size_t size) const;

 private:
  enum class Way : uint8_t { kCount, kSave, kLoad };
  [[noreturn]] void refuse(const char* what) const;

  Way way_ = Way::kCount;
  Sink sink_;
  std::string name_, place_;
  std::span<const std::byte> left_;
  size_t done_ = 0;
};

}  // namespace pith
