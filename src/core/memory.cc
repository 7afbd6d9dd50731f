#include "core/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "core/allocation.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMostKept = size_t{1} << 20;  // that a thread keeps
static_assert(kMapFrom % kPage == 0);

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

bool is_mapped(size_t capacity) { return capacity >= kMapFrom; }

/// The last mapping that a thread gave back, for its next one: scratch of a layer comes and goes
/// with every pass, and new pages cost more than the work in them. Without a destructor: what ends
/// after a thread's other objects may still give memory back.
struct KeptMapping {
  void* pages = nullptr;
  size_t size = 0;
  bool ended = false;  // the thread's: nothing is kept any more
};
thread_local constinit KeptMapping kept;

struct ThreadEnd {
  ~ThreadEnd() {
    if (kept.pages) munmap(kept.pages, kept.size);
    kept = {.ended = true};
  }
};

/// As mmap, which is called if nothing is kept.
void* take_mapping(size_t size) {
  if (void* pages = size <= kMostKept ? std::exchange(kept.pages, nullptr) : nullptr) {
    void* moved = kept.size == size ? pages : mremap(pages, kept.size, size, MREMAP_MAYMOVE);
    if (moved != MAP_FAILED) return moved;
    munmap(pages, kept.size);
  }
  return mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

void keep_mapping(void* pages, size_t size) {
  thread_local ThreadEnd end;
  if (kept.ended || size > kMostKept || (kept.pages && kept.size >= size)) {
    munmap(pages, size);
    return;
  }
  if (kept.pages) munmap(kept.pages, kept.size);
  kept.pages = pages, kept.size = size;
}

std::byte* allocate(size_t capacity) {
  if (!is_mapped(capacity)) return static_cast<std::byte*>(std::aligned_alloc(kAlign, capacity));
  void* p = take_mapping(capacity);
  if (p == MAP_FAILED) return nullptr;
  if (capacity >= 4 * kHugePage) madvise(p, capacity, MADV_HUGEPAGE);
  return static_cast<std::byte*>(p);
}

void release(std::byte* p, size_t capacity) noexcept {
  if (!p) return;
  if (is_mapped(capacity))
    keep_mapping(p, capacity);
  else
    std::free(p);
}

}  // namespace

const char* to_string(MemoryKind kind) {
  constexpr const char* kNames[kMemoryKinds] = {"payload", "metadata", "shared", "staging",
                                                "scratch", "weights",  "probe"};
  return kNames[static_cast<size_t>(kind)];
}

MemoryCounter::~MemoryCounter() {
  if (parent_ && floor_ > charged_) parent_->discharge(floor_ - charged_);
}

void MemoryCounter::refuse(const char* what, size_t more, size_t held) const {
  throw Error(
      ErrorCode::kOutOfMemory,
      fmt::format("{} more bytes of {} asked; {} of the limit of {} bytes are in use or set "
                  "aside. Choose a smaller context or budget, or raise the limit",
                  more, what, held, limit_.load()));
}

void MemoryCounter::charge(MemoryKind kind, size_t bytes) {
  const std::lock_guard turn(holding_);
  const size_t before = held_now(), after = std::max(charged_ + bytes, floor_);
  // Room that was set aside is never refused, even if the limit was lowered since.
  if (limit_ != 0 && after > limit_ && after > before) refuse(to_string(kind), bytes, before);
  if (parent_ && after > before) parent_->charge(kind, after - before);
  charged_ += bytes;
}

void MemoryCounter::discharge(size_t bytes) noexcept {
  const std::lock_guard turn(holding_);
  const size_t before = held_now(), after = std::max(charged_ - bytes, floor_);
  charged_ -= bytes;
  if (parent_ && after < before) parent_->discharge(before - after);
}

void MemoryCounter::set_floor(size_t bytes) {
  const std::lock_guard turn(holding_);
  const size_t before = held_now(), after = std::max(charged_, bytes);
  if (limit_ != 0 && after > limit_ && after > before) refuse("room", after - before, before);
  if (parent_ && after > before) parent_->charge(MemoryKind::kScratch, after - before);
  if (parent_ && after < before) parent_->discharge(before - after);
  floor_ = bytes;
}

void MemoryCounter::move_floor(MemoryCounter& from, MemoryCounter& to, size_t bytes) {
  const std::scoped_lock turn(from.holding_, to.holding_);
  const size_t before = from.held_now() + to.held_now();
  const size_t after = from.charged_ + std::max(to.charged_, bytes);
  if (after > before) to.parent_->charge(MemoryKind::kScratch, after - before);
  if (after < before) to.parent_->discharge(before - after);
  from.floor_ = 0;
  to.floor_ = bytes;
}

void MemoryCounter::add(MemoryKind kind, size_t bytes) {
  charge(kind, bytes);
  for (MemoryCounter* c = this; c; c = c->parent_) {
    c->live_[static_cast<size_t>(kind)] += bytes;
    const size_t now = c->total_.fetch_add(bytes) + bytes;
    size_t seen = c->peak_;
    while (now > seen && !c->peak_.compare_exchange_weak(seen, now)) {
    }
  }
}

void MemoryCounter::sub(MemoryKind kind, size_t bytes) noexcept {
  for (MemoryCounter* c = this; c; c = c->parent_) {
    c->live_[static_cast<size_t>(kind)] -= bytes;
    c->total_ -= bytes;
  }
  discharge(bytes);
}

Buffer::Buffer(const Buffer& other)
    : counter_(other.counter_ ? &other.counter_->of_copies() : nullptr),
      kind_(other.kind_),
      growth_limit_(other.growth_limit_) {
  if (other.size_ == 0) return;
  reserve(other.counter_->copies_with_room() ? other.capacity_ : other.size_);
  std::memcpy(data_, other.data_, other.size_);
  size_ = other.size_;
}

Buffer::~Buffer() {
  if (data_) counter_->sub(kind_, capacity_);
  release(data_, capacity_);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(counter_, other.counter_);
  std::swap(kind_, other.kind_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  std::swap(growth_limit_, other.growth_limit_);
}

size_t allocated_bytes(size_t wanted) {
  return wanted == 0 ? 0 : round_up(wanted, wanted >= kMapFrom ? kPage : kAlign);
}

size_t grown_bytes(size_t bytes, size_t limit) {
  constexpr int kStepBits = 3;  // eight steps to a power of two
  const int bits = static_cast<int>(std::bit_width(bytes));
  const size_t step = bits <= kStepBits + 1 ? 1 : size_t{1} << (bits - kStepBits - 1);
  const size_t grown = round_up(bytes, step);
  return allocated_bytes(limit == 0 ? grown : std::max(bytes, std::min(grown, limit)));
}

size_t most_grown_bytes(size_t bytes, size_t buffers) {
  // A step is at most an eighth of what it is a step to; each buffer is rounded up to whole units.
  return bytes + bytes / 8 + buffers * kAlign;
}

bool gives_back(size_t capacity, size_t bytes) { return capacity > most_kept_bytes(bytes, 1); }

size_t most_kept_bytes(size_t bytes, size_t buffers) { return bytes + bytes / 8 + buffers * kPage; }

void Buffer::reallocate(size_t wanted) {
  const size_t capacity = allocated_bytes(wanted);
  if (capacity == capacity_) return;
  // The old bytes are given back before the new ones are asked for only where the kernel moves the
  // pages itself; a copy needs both at once, and the counter says so.
  const bool remap = is_mapped(capacity) && data_ && is_mapped(capacity_);
  if (remap && capacity < capacity_) {
    mremap(data_, capacity_, capacity, 0);  // shrinking in place cannot fail
    counter_->sub(kind_, capacity_ - capacity);
    capacity_ = capacity;
    return;
  }
  counter_->add(kind_, remap ? capacity - capacity_ : capacity);
  std::byte* p = nullptr;
  if (capacity != 0) {
    if (remap) {
      void* moved = mremap(data_, capacity_, capacity, MREMAP_MAYMOVE);
      p = moved == MAP_FAILED ? nullptr : static_cast<std::byte*>(moved);
    } else {
      p = allocate(capacity);
    }
    if (!p) {
      counter_->sub(kind_, remap ? capacity - capacity_ : capacity);
      throw Error(ErrorCode::kOutOfMemory,
                  fmt::format("the system refused {} bytes of {}; choose a smaller context or "
                              "budget",
                              capacity, to_string(kind_)));
    }
  }
  if (!remap && data_) {
    if (p) std::memcpy(p, data_, std::min(size_, capacity));
    counter_->sub(kind_, capacity_);
    release(data_, capacity_);
  }
  if (counter_->poison() && capacity > size_) std::memset(p + size_, 0xFF, capacity - size_);
  data_ = p;
  capacity_ = capacity;
}

void Buffer::reserve(size_t bytes) {
  if (bytes > capacity_) reallocate(bytes);
}

void Buffer::resize(size_t bytes) {
  if (bytes > capacity_) reallocate(grown_bytes(bytes, growth_limit_));
  if (bytes < size_ && counter_->poison()) std::memset(data_ + bytes, 0xFF, size_ - bytes);
  size_ = bytes;
}

void Buffer::shrink_to_fit() { reallocate(size_); }

}  // namespace pith
