// The CUDA runtime of the emulated card. Work waits in its stream until something waits for it, so
// that what relies on work being done early, or late, shows; fresh memory is NaN, and what is
// written beside an allocation ends the process.

#include "emulated/runtime.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "emulated/asked.h"
#include "emulated/block.h"

using Work = std::function<void()>;

struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st {
  std::vector<Work> work;
};
struct CUstream_st {
  std::deque<Work> waiting;
  uint64_t done = 0;  // work that has run
  std::unique_ptr<CUgraph_st> captured;

  uint64_t end() const { return done + waiting.size(); }
};
struct CUevent_st {
  cudaStream_t stream = nullptr;
  uint64_t end = 0;  // of the stream's work that it stands for
};

namespace emulated {
namespace {

constexpr size_t kGuard = 256;
constexpr unsigned char kFresh = 0xff, kGuardByte = 0xa5;
constexpr size_t kAllMemory = size_t{16} << 30;
constexpr size_t kMostShared = size_t{227} << 10;
constexpr int kDevices = 2;  // names of the one card
thread_local int current_device = 0;

struct Card {
  std::recursive_mutex turn;
  CUstream_st first;  // the default stream
  std::vector<cudaStream_t> streams{&first};
  std::map<const std::byte*, size_t> device, pinned;  // first byte, bytes
  size_t used = 0, others = 0;  // bytes of the device, the latter another process's
  size_t refusals = 0;          // to come
  Asked asked;
};
Card& card() {
  static Card& all = *new Card;  // what is freed at the program's end still has it
  return all;
}

using Turn = std::lock_guard<std::recursive_mutex>;

CUstream_st& stream_of(cudaStream_t stream) { return stream ? *stream : card().first; }

void count(size_t Asked::*what) {
  const Turn turn(card().turn);
  ++(card().asked.*what);
}

void run_until(CUstream_st& stream, uint64_t end) {
  while (stream.done < end && !stream.waiting.empty()) {
    const Work next = std::move(stream.waiting.front());
    stream.waiting.pop_front();
    ++stream.done;
    next();
  }
}
void finish(CUstream_st& stream) {
  if (stream.captured) fail("the host waits for a stream that is being captured");
  run_until(stream, stream.end());
}

bool is_in(const std::map<const std::byte*, size_t>& all, const void* p) {
  const auto* at = static_cast<const std::byte*>(p);
  const auto after = all.upper_bound(at);
  return after != all.begin() && at < std::prev(after)->first + std::prev(after)->second;
}

std::byte* allocate(size_t bytes) {
  const size_t whole = (bytes + kGuard - 1) / kGuard * kGuard + 2 * kGuard;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kGuard, whole));
  if (!memory) return nullptr;
  std::memset(memory, kGuardByte, whole);
  std::memset(memory + kGuard, kFresh, bytes);
  return memory + kGuard;
}
void release(std::byte* memory, size_t bytes) {
  const auto intact = [](const std::byte* from, size_t n) {
    return std::all_of(from, from + n, [](std::byte b) { return b == std::byte{kGuardByte}; });
  };
  const size_t behind = (bytes + kGuard - 1) / kGuard * kGuard - bytes + kGuard;
  if (!intact(memory - kGuard, kGuard) || !intact(memory + bytes, behind))
    fail("memory beside an allocation of the device was written");
  std::memset(memory, kFresh, bytes);
  std::free(memory - kGuard);
}

void copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
               size_t height) {
  for (size_t i = 0; i < height; ++i) {
    std::memcpy(static_cast<std::byte*>(to) + i * to_pitch,
                static_cast<const std::byte*>(from) + i * from_pitch, width);
  }
}

}  // namespace

Asked asked() {
  const Turn turn(card().turn);
  return card().asked;
}
void refuse_memory(size_t times) {
  const Turn turn(card().turn);
  card().refusals = times;
}

void leave_memory(std::optional<size_t> bytes) {
  const Turn turn(card().turn);
  card().others = bytes ? kAllMemory - card().used - *bytes : 0;
}

void enqueue(cudaStream_t stream, Work work) {
  const Turn turn(card().turn);
  CUstream_st& to = stream_of(stream);
  to.captured ? to.captured->work.push_back(std::move(work))
              : to.waiting.push_back(std::move(work));
}

cudaError_t launch(const cudaLaunchConfig_t& shape, Work body) {
  const dim3 &g = shape.gridDim, &b = shape.blockDim;
  const size_t threads = size_t{b.x} * b.y * b.z, blocks = size_t{g.x} * g.y * g.z;
  if (threads == 0 || threads > 1024 || blocks == 0 || g.y > 65535 || g.z > 65535 ||
      shape.dynamicSmemBytes > kMostShared)
    return cudaErrorInvalidConfiguration;
  count(&Asked::launches);
  enqueue(shape.stream, [=, body = std::move(body)] { run_grid(shape, body); });
  return cudaSuccess;
}

cudaError_t allow(cudaFuncAttribute, int value) {
  return static_cast<size_t>(value) <= kMostShared ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace emulated

using emulated::card;
using emulated::enqueue;
using emulated::stream_of;
using emulated::Turn;

extern "C" {

cudaError_t cudaMallocAsync(void** to, size_t bytes, cudaStream_t) {
  const Turn turn(card().turn);
  *to = nullptr;
  if (card().refusals > 0) {
    --card().refusals;
    return cudaErrorMemoryAllocation;
  }
  if (bytes > emulated::kAllMemory - card().used - card().others) return cudaErrorMemoryAllocation;
  std::byte* memory = emulated::allocate(bytes);
  if (!memory) return cudaErrorMemoryAllocation;
  emulated::count(&emulated::Asked::allocations);
  card().used += bytes;
  card().device[memory] = bytes;
  *to = memory;
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  enqueue(stream, [memory] {
    const auto found = card().device.find(static_cast<std::byte*>(memory));
    if (found == card().device.end()) emulated::fail("memory is freed that nobody has");
    card().used -= found->second;
    emulated::release(static_cast<std::byte*>(memory), found->second);
    card().device.erase(found);
  });
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** to, size_t bytes) {
  const Turn turn(card().turn);
  std::byte* memory = emulated::allocate(bytes);
  card().pinned[memory] = bytes;
  *to = memory;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  const Turn turn(card().turn);
  for (const cudaStream_t stream : card().streams) emulated::run_until(*stream, stream->end());
  const auto found = card().pinned.find(static_cast<std::byte*>(memory));
  if (found == card().pinned.end()) return cudaErrorInvalidValue;
  emulated::release(static_cast<std::byte*>(memory), found->second);
  card().pinned.erase(found);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  const Turn turn(card().turn);
  *all = emulated::kAllMemory;
  *free = *all - card().used - card().others;
  return cudaSuccess;
}
// Its pool keeps nothing.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  *static_cast<uint64_t*>(value) = 0;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* of, const void* memory) {
  const Turn turn(card().turn);
  *of = {};
  of->type = emulated::is_in(card().device, memory)   ? cudaMemoryTypeDevice
             : emulated::is_in(card().pinned, memory) ? cudaMemoryTypeHost
                                                      : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  const Turn turn(card().turn);
  emulated::count(&emulated::Asked::copies);
  const void* host = kind == cudaMemcpyHostToDevice   ? from
                     : kind == cudaMemcpyDeviceToHost ? to
                                                      : nullptr;
  const bool waits = host && !emulated::is_in(card().pinned, host);
  if (waits) emulated::finish(stream_of(stream));  // memory that the card cannot reach by itself
  if (waits) {
    emulated::copy_rows(to, to_pitch, from, from_pitch, width, height);
  } else {
    enqueue(stream, [=] { emulated::copy_rows(to, to_pitch, from, from_pitch, width, height); });
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  const Turn turn(card().turn);
  for (const cudaStream_t stream : card().streams) emulated::run_until(*stream, stream->end());
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  emulated::count(&emulated::Asked::clears);
  enqueue(stream, [=] {
    for (size_t i = 0; i < height; ++i)
      std::memset(static_cast<std::byte*>(to) + i * pitch, value, width);
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return cudaMemset2DAsync(to, bytes, value, bytes, 1, stream);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const Turn turn(card().turn);
  *stream = new CUstream_st;
  card().streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Turn turn(card().turn);
  emulated::finish(*stream);
  std::erase(card().streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Turn turn(card().turn);
  emulated::count(&emulated::Asked::waits);
  emulated::finish(stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Turn turn(card().turn);
  emulated::count(&emulated::Asked::waits);
  for (const cudaStream_t stream : card().streams) emulated::run_until(*stream, stream->end());
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t run, void* with) {
  enqueue(stream, [=] { run(with); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Turn turn(card().turn);
  CUstream_st& of = stream_of(stream);
  if (of.captured) return cudaErrorStreamCaptureUnsupported;
  *event = {&of, of.end()};
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Turn turn(card().turn);
  emulated::count(&emulated::Asked::waits);
  const auto& all = card().streams;
  if (std::find(all.begin(), all.end(), event->stream) != all.end())
    emulated::run_until(*event->stream, event->end);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 1;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  enqueue(stream, [at = *event] {
    const auto& all = card().streams;
    if (std::find(all.begin(), all.end(), at.stream) != all.end())
      emulated::run_until(*at.stream, at.end);
  });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Turn turn(card().turn);
  if (stream_of(stream).captured) return cudaErrorIllegalState;
  stream_of(stream).captured = std::make_unique<CUgraph_st>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Turn turn(card().turn);
  *graph = stream_of(stream).captured.release();
  return *graph ? cudaSuccess : cudaErrorIllegalState;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Turn turn(card().turn);
  *status =
      stream_of(stream).captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  emulated::count(&emulated::Asked::graphs);
  *exec = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes) return cudaErrorNotSupported;
  *count = graph->work.size();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Work& work : exec->work) enqueue(stream, work);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "a launch of more than a card can run";
    case cudaErrorStreamCaptureUnsupported: return "not allowed while a stream is captured";
    default: return "an error of the emulated card";
  }
}
cudaError_t cudaGetDevice(int* device) {
  *device = emulated::current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= emulated::kDevices) return cudaErrorInvalidDevice;
  emulated::current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int) {
  *of = {};
  std::strcpy(of->name, "a card emulated on the CPU");
  // No instruction of one architecture alone, unless it is asked for.
  const char* major = std::getenv("PITH_EMULATED_MAJOR");
  of->major = major ? std::atoi(major) : 8;
  of->multiProcessorCount = 8;
  of->l2CacheSize = 32 << 20;
  of->sharedMemPerBlockOptin = emulated::kMostShared;
  return cudaSuccess;
}

}  // extern "C"
