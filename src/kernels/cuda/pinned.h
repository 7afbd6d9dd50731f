#pragma once
// Host memory that the GPU copies from and to without a detour: such copies return at once.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cuda/device.h"

namespace pith::cuda {

/// n page-locked T. Whoever writes it must know that no copy from it is under way.
template <class T>
class PinnedArray {
 public:
  PinnedArray() = default;
  explicit PinnedArray(size_t n) : size_(n) {
    // T may be a pointer: its own size. NOLINTNEXTLINE(bugprone-sizeof-expression)
    if (n > 0) check(cudaMallocHost(&data_, n * sizeof(T)), "page-locked host memory");
  }
  PinnedArray(PinnedArray&& other) noexcept { swap(other); }
  PinnedArray& operator=(PinnedArray other) noexcept {
    swap(other);
    return *this;
  }
  PinnedArray(const PinnedArray&) = delete;
  ~PinnedArray() {
    if (data_) cudaFreeHost(data_);
  }

  T* data() { return static_cast<T*>(data_); }
  const T* data() const { return static_cast<const T*>(data_); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data()[i]; }

 private:
  void swap(PinnedArray& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

/// Bytes that go from page-locked memory to the device.
struct Upload {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  bool spreads = false;  ///< they are Spreads (uploads.h), which are written out there
};

/// n T on the device with an image on the host: write host(), then upload(). Addresses never
/// change, so a captured graph may hold the copy.
template <class T>
class MirroredArray {
 public:
  MirroredArray() = default;
  MirroredArray(MemoryCounter& counter, MemoryKind kind, size_t n, cudaStream_t stream)
      : host_(n), device_(counter, kind, n, stream) {}

  T* host() { return host_.data(); }
  const T* host() const { return host_.data(); }
  const T* device() const { return device_.data(); }
  size_t size() const { return host_.size(); }
  /// Of the first n.
  Upload upload_of(size_t n) const {
    // T may be a pointer: its own size. NOLINTNEXTLINE(bugprone-sizeof-expression)
    return {device_.data(), host_.data(), n * sizeof(T)};
  }
  void upload(size_t n, cudaStream_t stream) const {
    const Upload u = upload_of(n);
    check(cudaMemcpyAsync(u.to, u.from, u.bytes, cudaMemcpyHostToDevice, stream), "upload");
  }

 private:
  PinnedArray<T> host_;
  DeviceArray<T> device_;
};

/// A point in a stream that the host can wait for.
class StreamMark {
 public:
  StreamMark() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event"); }
  ~StreamMark() { cudaEventDestroy(event_); }
  StreamMark(const StreamMark&) = delete;
  StreamMark& operator=(const StreamMark&) = delete;
  void set(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "an event"); }
  /// Returns at once if nothing was marked.
  void wait() { check(cudaEventSynchronize(event_), "the wait for an upload"); }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Numbers that the device finds and the host needs later, not at once (docs/decisions/0191).
class ToldNumbers {
 public:
  explicit ToldNumbers(size_t n) : on_their_way_(n), numbers_(n, 0) {}
  /// Waits for those that are on their way.
  ToldNumbers(const ToldNumbers& o) : on_their_way_(o.numbers_.size()), numbers_(o.get()) {}
  /// They are what `from` [n] on the device is at this point of the stream.
  void tell(const int32_t* from, cudaStream_t stream) {
    check(cudaMemcpyAsync(on_their_way_.data(), from, numbers_.size() * sizeof(int32_t),
                          cudaMemcpyDeviceToHost, stream),
          "numbers that the device found");
    mark_.set(stream);
    due_ = true;
  }
  void set(std::vector<size_t> numbers) { numbers_ = std::move(numbers); }
  /// Waits for the numbers copied last. 0 before the first.
  const std::vector<size_t>& get() const {
    if (!std::exchange(due_, false)) return numbers_;
    mark_.wait();
    std::copy_n(on_their_way_.data(), numbers_.size(), numbers_.begin());
    return numbers_;
  }

 private:
  PinnedArray<int32_t> on_their_way_;
  mutable StreamMark mark_;
  mutable std::vector<size_t> numbers_;
  mutable bool due_ = false;
};

}  // namespace pith::cuda
