#pragma once
// Counted memory. Every buffer that grows with the context is a Buffer and reports to a
// MemoryCounter, so that the ledger can be checked against what was really allocated.
// Large buffers are mappings of their own: shrinking one returns its pages to the system.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <type_traits>
#include <utility>

namespace pith {

/// The purpose of a byte; the ledger's columns.
enum class MemoryKind : uint8_t {
  kPayload,   ///< coded keys and values
  kMetadata,  ///< norms, scales, indices, positions, weights, attention mass
  kShared,    ///< dictionaries, projections: one copy for many rows
  kStaging,   ///< rows on their way into a coded form
  kScratch,   ///< temporary results of one step
  kWeights,   ///< model weights held in memory of our own (not the mapped file)
  kProbe,     ///< exact rows that the error probe keeps aside
};
inline constexpr size_t kMemoryKinds = 7;

const char* to_string(MemoryKind kind);

/// Live bytes by kind, their peak, and a limit. Thread-safe. Bytes counted here count with the
/// parent too: a session's bytes are its engine's.
class MemoryCounter : public std::enable_shared_from_this<MemoryCounter> {
 public:
  /// `limit` in bytes, 0 = none. `poison` fills fresh memory with 0xFF bytes (NaN in every float
  /// type, huge as an index), so that tests notice reads of rows that were not written.
  explicit MemoryCounter(size_t limit = 0, bool poison = false) : limit_(limit), poison_(poison) {}
  /// A part of `parent`, which must outlive it; each has a limit of its own.
  // It is no copy. NOLINTNEXTLINE(bugprone-copy-constructor-init)
  explicit MemoryCounter(MemoryCounter& parent, size_t limit = 0)
      : std::enable_shared_from_this<MemoryCounter>(),
        parent_(&parent),
        limit_(limit),
        poison_(parent.poison_) {}
  /// A part that is a root itself: an engine's bytes are its runtime's too.
  struct Root {};
  MemoryCounter(Root /*tag*/, MemoryCounter& parent) : MemoryCounter(parent) { is_root_ = true; }
  /// A part for all that one session takes.
  struct Whole {};
  MemoryCounter(Whole /*tag*/, MemoryCounter& parent) : MemoryCounter(parent) { is_whole_ = true; }
  MemoryCounter(const MemoryCounter&) = delete;
  MemoryCounter& operator=(const MemoryCounter&) = delete;

  ~MemoryCounter();

  /// Throws Error(kOutOfMemory) and counts nothing if a limit would be passed, its own or that of
  /// one above it.
  void add(MemoryKind kind, size_t bytes);
  void sub(MemoryKind kind, size_t bytes) noexcept;
  /// Room set aside: to the limits this part takes at least so many bytes, however few are live.
  /// Throws kOutOfMemory with nothing changed if one would be passed; a lower floor never does.
  void set_floor(size_t bytes);
  /// Moves the room of `from` to `to`, which then has `bytes`; both are parts of one counter.
  /// Throws as set_floor does.
  static void move_floor(MemoryCounter& from, MemoryCounter& to, size_t bytes);
  /// The nearest root, or the topmost counter: what several sessions share is counted there.
  MemoryCounter& root() { return parent_ && !is_root_ ? parent_->root() : *this; }
  /// Counts what a session has beside its own rows: scratch of a step, tables that its forks share.
  /// The nearest counter of a whole session, or root().
  MemoryCounter& beside() { return is_whole_ || is_root_ || !parent_ ? *this : parent_->beside(); }
  /// For those who must outlive the session that is counted here; null unless a shared_ptr holds
  /// the counter.
  std::shared_ptr<MemoryCounter> shared() { return weak_from_this().lock(); }

  /// While it lives, copies of what is counted by `from` (buffers, contexts) are counted by `to`:
  /// how a fork's memory becomes its own. One at a time for each `from`; others wait.
  class CopiesTo {
   public:
    /// `with_room`: buffers that are copied keep the room that they have beyond their bytes, for
    /// copies that go on at once.
    CopiesTo(MemoryCounter& from, MemoryCounter& to, bool with_room = false)
        : from_(from), turn_(from.copying_) {
      from_.copies_with_room_ = with_room;
      from_.copies_ = &to;
    }
    ~CopiesTo() {
      from_.copies_ = nullptr;
      from_.copies_with_room_ = false;
    }
    CopiesTo(const CopiesTo&) = delete;
    CopiesTo& operator=(const CopiesTo&) = delete;

   private:
    MemoryCounter& from_;
    std::lock_guard<std::mutex> turn_;
  };
  /// The counter of a copy of something that is counted here.
  MemoryCounter& of_copies() { return copies_ ? *copies_.load() : *this; }
  bool copies_with_room() const { return copies_with_room_; }

  size_t bytes(MemoryKind kind) const { return live_[static_cast<size_t>(kind)]; }
  size_t total() const { return total_; }
  /// Bytes that limits are compared with: live ones, and room set aside beyond them.
  size_t held() const {
    const std::lock_guard turn(holding_);
    return held_now();
  }
  size_t peak() const { return peak_; }
  void reset_peak() { peak_ = total_.load(); }
  size_t limit() const { return limit_; }
  void set_limit(size_t bytes) { limit_ = bytes; }
  bool poison() const { return poison_; }

 private:
  size_t held_now() const { return std::max(charged_, floor_); }
  void charge(MemoryKind kind, size_t bytes);
  void discharge(size_t bytes) noexcept;
  [[noreturn]] void refuse(const char* what, size_t more, size_t held) const;

  MemoryCounter* parent_ = nullptr;
  bool is_root_ = false;
  bool is_whole_ = false;
  mutable std::mutex holding_;  // of the next two; one above is locked after those below it
  size_t charged_ = 0;          // its own live bytes and what its parts hold
  size_t floor_ = 0;
  std::array<std::atomic<size_t>, kMemoryKinds> live_{};
  std::atomic<size_t> total_{0}, peak_{0}, limit_;
  bool poison_;
  std::mutex copying_;
  std::atomic<MemoryCounter*> copies_{nullptr};
  std::atomic<bool> copies_with_room_{false};
};

/// A growable run of bytes, 64-byte aligned. Capacity grows by an eighth, so slack stays small.
/// The counter must outlive the buffer. Copying is deep.
class Buffer {
 public:
  Buffer() = default;
  Buffer(MemoryCounter& counter, MemoryKind kind) : counter_(&counter), kind_(kind) {}
  Buffer(const Buffer& other);
  Buffer(Buffer&& other) noexcept { swap(other); }
  // Two, for one that takes a value would be noexcept, and with it the implicit assignment of all
  // that hold Buffers, though the copy of the value throws: then no destructor runs on its way out.
  Buffer& operator=(const Buffer& other) {
    Buffer copy(other);
    swap(copy);
    return *this;
  }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~Buffer();

  /// Keeps the first min(old, new) bytes. New bytes are unspecified. Shrinking keeps the capacity.
  void resize(size_t bytes);
  /// Grows capacity to at least `bytes` exactly, without the eighth.
  void reserve(size_t bytes);
  /// Returns memory past size() to the system.
  void shrink_to_fit();
  /// Growth by eighths stops at `bytes`: for buffers whose final size is known. 0 = unknown.
  void set_growth_limit(size_t bytes) { growth_limit_ = bytes; }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  size_t capacity() const { return capacity_; }
  void swap(Buffer& other) noexcept;

 private:
  void reallocate(size_t capacity);

  MemoryCounter* counter_ = nullptr;
  MemoryKind kind_ = MemoryKind::kScratch;
  std::byte* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0, growth_limit_ = 0;
};

/// A Buffer of trivially copyable T.
template <class T>
class Array {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Array() = default;
  Array(MemoryCounter& counter, MemoryKind kind) : bytes_(counter, kind) {}

  void resize(size_t n) { bytes_.resize(n * sizeof(T)); }
  void reserve(size_t n) { bytes_.reserve(n * sizeof(T)); }
  void shrink_to_fit() { bytes_.shrink_to_fit(); }
  void set_growth_limit(size_t n) { bytes_.set_growth_limit(n * sizeof(T)); }
  void push_back(T value) {
    resize(size() + 1);
    (*this)[size() - 1] = value;
  }
  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data()); }
  size_t size() const { return bytes_.size() / sizeof(T); }
  bool empty() const { return bytes_.size() == 0; }
  size_t capacity_bytes() const { return bytes_.capacity(); }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  operator std::span<T>() { return {data(), size()}; }
  operator std::span<const T>() const { return {data(), size()}; }

 private:
  Buffer bytes_;
};

}  // namespace pith
