#pragma once
// The device's memory and errors. Every allocation is counted, as on the CPU, so that the ledger
// can be checked; every failure of CUDA becomes a pith::Error. Work is ordered by the caller's
// stream alone: nothing here synchronises behind the caller's back, except where it says so.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "core/memory.h"

namespace pith::cuda {

/// Throws Error(kOutOfMemory or kInternal) that names `what` if `status` is a failure.
void check(cudaError_t status, const char* what);

struct DeviceInfo {
  int multiprocessors = 0;
  int major = 0, minor = 0;  ///< compute capability
  size_t l2_bytes = 0;
  size_t shared_per_block = 0;  ///< bytes that a block may ask for

  bool wgmma() const { return major == 9; }  ///< Hopper's products of warpgroups
};

/// The current device. Throws kUnsupported if there is none or it is older than sm_80.
const DeviceInfo& device_info();

/// A counted run of device bytes. Growth copies on `stream`; the old run is freed in stream order.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(MemoryCounter& counter, MemoryKind kind) : counter_(&counter), kind_(kind) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer other) noexcept {
    swap(other);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  ~DeviceBuffer();

  /// Makes room for `bytes`, contents lost. Throws kOutOfMemory with what was asked and what is
  /// free; then the buffer is empty.
  void allocate(size_t bytes, cudaStream_t stream);
  void* data() const { return data_; }
  size_t size() const { return size_; }
  void swap(DeviceBuffer& other) noexcept;

 private:
  void release() noexcept;

  MemoryCounter* counter_ = nullptr;
  MemoryKind kind_ = MemoryKind::kScratch;
  void* data_ = nullptr;
  size_t size_ = 0;
  cudaStream_t stream_ = nullptr;
};

/// A DeviceBuffer of T.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(MemoryCounter& counter, MemoryKind kind) : bytes_(counter, kind) {}
  DeviceArray(MemoryCounter& counter, MemoryKind kind, size_t n, cudaStream_t stream)
      : bytes_(counter, kind) {
    allocate(n, stream);
  }
  // T may be a pointer: its own size. NOLINTNEXTLINE(bugprone-sizeof-expression)
  void allocate(size_t n, cudaStream_t stream) { bytes_.allocate(n * sizeof(T), stream); }
  T* data() const { return static_cast<T*>(bytes_.data()); }
  size_t size() const { return bytes_.size() / sizeof(T); }
  /// Copies n numbers from or to the host, in stream order. Pageable host memory makes it wait.
  void upload(const T* host, size_t n, cudaStream_t stream) {
    check(cudaMemcpyAsync(data(), host, n * sizeof(T), cudaMemcpyHostToDevice, stream), "upload");
  }
  void download(T* host, size_t n, cudaStream_t stream) const {
    check(cudaMemcpyAsync(host, data(), n * sizeof(T), cudaMemcpyDeviceToHost, stream), "download");
  }

 private:
  DeviceBuffer bytes_;
};

}  // namespace pith::cuda
