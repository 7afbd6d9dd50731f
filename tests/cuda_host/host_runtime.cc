// CUDA's memory and streams: everything happens at once, in order. Fresh memory is NaN.

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "host_device.h"

namespace pith::cuda {
namespace {

/// What is the device's memory, and what streams did. The library's threads allocate too.
struct Seen {
  std::mutex turn;
  std::map<const char*, size_t> allocated;  // first byte, bytes
  std::vector<StreamOrderNote> order;
  size_t copies = 0;
  DeviceWork work;
};
Seen& seen() {
  static Seen all;
  return all;
}
void note(bool records, cudaStream_t stream) {
  const std::lock_guard turn(seen().turn);
  seen().order.push_back({records, stream, seen().copies});
}

void count(size_t DeviceWork::*what) {
  const std::lock_guard turn(seen().turn);
  ++(seen().work.*what);
}

}  // namespace

std::vector<StreamOrderNote> stream_order() {
  const std::lock_guard turn(seen().turn);
  return seen().order;
}
void forget_stream_order() {
  const std::lock_guard turn(seen().turn);
  seen().order.clear();
  seen().copies = 0;
}
DeviceWork device_work() {
  const std::lock_guard turn(seen().turn);
  return seen().work;
}
void note_strided_copy() {
  const std::lock_guard turn(seen().turn);
  ++seen().copies;
}

}  // namespace pith::cuda

using pith::cuda::count;
using pith::cuda::DeviceWork;
using pith::cuda::note;
using pith::cuda::seen;

extern "C" {

cudaError_t cudaMallocAsync(void** to, size_t bytes, cudaStream_t) {
  *to = std::malloc(bytes);
  std::memset(*to, 0xff, bytes);
  const std::lock_guard turn(seen().turn);
  seen().allocated[static_cast<const char*>(*to)] = bytes;
  ++seen().work.allocations;
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t) {
  {
    const std::lock_guard turn(seen().turn);
    seen().allocated.erase(static_cast<const char*>(memory));
  }
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* of, const void* memory) {
  *of = {};
  const auto* at = static_cast<const char*>(memory);
  const std::lock_guard turn(seen().turn);
  auto after = seen().allocated.upper_bound(at);
  const bool ours =
      after != seen().allocated.begin() && at < std::prev(after)->first + std::prev(after)->second;
  of->type = ours ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream == pith::cuda::kCapturedStream ? cudaStreamCaptureStatusActive
                                                  : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t) {
  count(&DeviceWork::clears);
  for (size_t i = 0; i < height; ++i) std::memset(static_cast<char*>(to) + i * pitch, value, width);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** to, size_t bytes) {
  *to = std::calloc(bytes, 1);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  count(&DeviceWork::copies);
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t) {
  count(&DeviceWork::copies);
  for (size_t i = 0; i < height; ++i)
    std::memcpy(static_cast<char*>(to) + i * to_pitch,
                static_cast<const char*>(from) + i * from_pitch, width);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  count(&DeviceWork::clears);
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  *free = *all = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error that nothing here gives"; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int) {
  *of = {};
  of->major = 9;
  of->multiProcessorCount = 8;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  count(&DeviceWork::waits);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t, unsigned) {
  note(false, stream);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t stream) {
  note(true, stream);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  count(&DeviceWork::waits);
  return cudaSuccess;
}

}  // extern "C"
