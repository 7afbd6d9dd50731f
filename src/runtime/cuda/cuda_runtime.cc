#include "runtime/cuda/cuda_runtime.h"

#include <algorithm>

namespace pith {
namespace cuda {

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "the current device");
  return device;
}

CudaRuntime::CudaRuntime(const RuntimeOptions& o)
    : RuntimeBackend(o.memory_limit),
      host_threads(o.threads),
      make_room(o.make_room),
      device(current_device()) {}

ShapeSpace& CudaRuntime::space(int query_heads, int kv_heads, int head_dim) {
  auto& space = spaces[{query_heads, kv_heads, head_dim}];
  if (!space) {
    const DecodeShape shape{1, query_heads, kv_heads, head_dim, 1, 0};
    space = std::make_unique<ShapeSpace>(memory, shape, stream.stream, tables);
  }
  return *space;
}

// More threads than these take longer to wake than they save.
ThreadPool& CudaRuntime::host() {
  constexpr int kMost = 8;
  if (!host_) host_.emplace(std::min(kMost, host_threads > 0 ? host_threads : ThreadPool::cores()));
  return *host_;
}

void CudaRuntime::check_card(bool anew) {
  // Soon enough to see memory that another program takes; the question is slow.
  constexpr std::chrono::milliseconds kOften{100};
  const auto now = std::chrono::steady_clock::now();
  anew = anew && now - card_asked_ >= kOften;
  const size_t live = memory.total(), aside = set_aside(memory);
  const size_t taken = live - std::min(live, live_then_);
  if (!anew && aside + taken <= card_had_) return;
  card_had_ = check_card_has(aside);
  card_asked_ = now;
  live_then_ = live;
}

Turn::Turn(CudaRuntime& runtime)
    : turn_(runtime.stream_turn),
      before_(current_device()),
      ours_(runtime.device),
      room_(runtime.make_room) {
  if (before_ != ours_) check(cudaSetDevice(ours_), "the runtime's device");
}

Turn::~Turn() {
  if (before_ != ours_) cudaSetDevice(before_);
}

}  // namespace cuda

std::unique_ptr<RuntimeBackend> make_cuda_runtime(const RuntimeOptions& options) {
  cuda::device_info();  // refuses a machine without a GPU that we know
  return std::make_unique<cuda::CudaRuntime>(options);
}

}  // namespace pith
