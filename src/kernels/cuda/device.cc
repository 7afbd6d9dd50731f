#include "kernels/cuda/device.h"

#include <fmt/format.h>

#include <cstdint>

#include "kernels/cuda/make_room.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

thread_local const std::function<bool()>* room_maker = nullptr;

/// Leaves no failure behind that the next, innocent call would report.
cudaError_t allocate_memory(void** data, size_t bytes, cudaStream_t stream) {
  const cudaError_t status = cudaMallocAsync(data, bytes, stream);
  if (status != cudaSuccess) cudaGetLastError();
  return status;
}

}  // namespace

MakesRoom::MakesRoom(const std::function<bool()>& free_more) : before_(room_maker) {
  room_maker = free_more ? &free_more : nullptr;
}
MakesRoom::~MakesRoom() { room_maker = before_; }

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a sticky error would be reported again by the next, innocent call
  const ErrorCode code =
      status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kInternal;
  throw Error(code, fmt::format("CUDA failed at {}: {}", what, cudaGetErrorString(status)));
}

const DeviceInfo& device_info() {
  static const DeviceInfo info = [] {
    int device = 0, count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      cudaGetLastError();
      throw Error(ErrorCode::kUnsupported,
                  "--device cuda asks for an NVIDIA GPU, but none answers on this machine; check "
                  "nvidia-smi, or use --device cpu");
    }
    check(cudaGetDevice(&device), "device");
    cudaDeviceProp p;
    check(cudaGetDeviceProperties(&p, device), "device properties");
    if (p.major < 8) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{} has compute capability {}.{}; pith needs 8.0 or newer (Ampere, "
                              "Ada, Hopper); use --device cpu",
                              p.name, p.major, p.minor));
    }
    return DeviceInfo{p.multiProcessorCount, p.major, p.minor, static_cast<size_t>(p.l2CacheSize),
                      p.sharedMemPerBlockOptin};
  }();
  return info;
}

namespace {

/// Bytes for cudaMallocAsync: free memory, and blocks of its pool that nobody has.
size_t card_has() {
  size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "free memory");
  int device = 0;
  check(cudaGetDevice(&device), "device");
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device), "the memory pool");
  uint64_t held = 0, used = 0;
  check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &held), "the memory pool");
  check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used), "the memory pool");
  return free + (held - used);
}

}  // namespace

size_t check_card_has(size_t bytes) {
  size_t has = card_has();
  if (has < bytes && room_maker && (*room_maker)()) has = card_has();
  if (has >= bytes) return has;
  throw Error(ErrorCode::kOutOfMemory,
              fmt::format("room for {} MiB is set aside before a pass, and the GPU has {} MiB; use "
                          "a smaller context or a smaller budget, or end another session",
                          bytes >> 20, has >> 20));
}

DeviceBuffer::~DeviceBuffer() { release(); }

void DeviceBuffer::release() noexcept {
  if (data_) {
    cudaFreeAsync(data_, stream_);
    counter_->sub(kind_, size_);
  }
  data_ = nullptr;
  size_ = 0;
}

void DeviceBuffer::allocate(size_t bytes, cudaStream_t stream) {
  release();
  if (bytes == 0) return;
  counter_->add(kind_, bytes);
  cudaError_t status = allocate_memory(&data_, bytes, stream);
  if (status == cudaErrorMemoryAllocation && room_maker && (*room_maker)())
    status = allocate_memory(&data_, bytes, stream);
  if (status != cudaSuccess) {
    data_ = nullptr;
    counter_->sub(kind_, bytes);
    size_t free = 0, all = 0;
    cudaMemGetInfo(&free, &all);
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("the GPU cannot give {} MiB ({} of {} MiB are free; pith holds {} "
                            "MiB); use a smaller context or a smaller budget",
                            bytes >> 20, free >> 20, all >> 20, counter_->total() >> 20));
  }
  size_ = bytes;
  stream_ = stream;
}

void DeviceBuffer::swap(DeviceBuffer& other) noexcept {
  std::swap(counter_, other.counter_);
  std::swap(kind_, other.kind_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(stream_, other.stream_);
}

}  // namespace pith::cuda
