#pragma once
// Shared on the GPU by engines and layers' caches of one runtime: the stream, the turn of whoever
// gives it work, and space for layers of one shape.

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "cache/cuda/device_cache.h"
#include "kernels/cuda/make_room.h"
#include "kernels/cuda/streams.h"
#include "kernels/cuda/upload_ring.h"
#include "runtime/runtime.h"

namespace pith::cuda {

/// Space for layers of one shape, which use it in turn.
struct ShapeSpace {
  ShapeSpace(MemoryCounter& counter, const DecodeShape& one, cudaStream_t work,
             std::shared_ptr<DeviceTables> tables)
      : memory(counter),
        shape(one),
        stream(work),
        common(std::make_shared<DeviceCommon>(memory, std::move(tables))),
        queries(memory, MemoryKind::kScratch),
        answers(memory, MemoryKind::kScratch),
        places(memory, MemoryKind::kScratch) {
    scratch();
  }
  /// For so many tokens' attention in one launch.
  const DecodeScratch& scratch(size_t tokens = 1) {
    if (!scratch_ || tokens_ < tokens) {
      scratch_.emplace(memory, shape, stream, tokens);
      tokens_ = tokens;
    }
    return *scratch_;
  }
  /// To places.
  Upload upload_of(const std::vector<DecodePlace>& all) {
    if (places.size() < all.size()) places.allocate(all.size(), stream);
    return {places.data(), all.data(), all.size() * sizeof(DecodePlace)};
  }
  /// Gives back what a prompt needed.
  void clear() {
    common->clear_space();
    queries.allocate(0, nullptr);
    answers.allocate(0, nullptr);
  }
  MemoryCounter& memory;
  const DecodeShape shape;  // of a token's attention
  const cudaStream_t stream;
  std::shared_ptr<DeviceCommon> common;
  DeviceBuffer queries;             // [T, H, D] of 16 bits
  DeviceArray<float> answers;       // [T, H, D]
  DeviceArray<DecodePlace> places;  // of tokens that share launches

 private:
  std::optional<DecodeScratch> scratch_;
  size_t tokens_ = 0;
};

int current_device();

struct CudaRuntime final : RuntimeBackend {
  explicit CudaRuntime(const RuntimeOptions& o);
  int threads() const override { return 1; }
  const char* isa() const override { return "cuda"; }
  /// Of layers of H query heads, G KV heads of D numbers. The turn is the caller's.
  ShapeSpace& space(int query_heads, int kv_heads, int head_dim);

  /// Throws kOutOfMemory where the card has less than is set aside. It is asked if it must be, or
  /// `anew` where it was not asked just now. The turn is the caller's.
  void check_card(bool anew);

  /// Of the host, for work that is each session's own. The turn is the caller's.
  ThreadPool& host();

  int host_threads;  ///< 0 = one per core
  std::function<bool()> make_room;
  UploadRing uploads;  // of layers; outlives what the stream does
  OwnStream stream;
  /// Of whoever gives the stream work or uses shared space: while a pass is captured, work of
  /// another thread, be it the release of a session's memory, would become part of the graph. An
  /// engine's pass has RuntimeBackend::turn before it.
  std::recursive_mutex stream_turn;
  int device;
  StreamOrder order;
  std::shared_ptr<DeviceTables> tables = std::make_shared<DeviceTables>(memory);
  std::map<std::tuple<int, int, int>, std::unique_ptr<ShapeSpace>> spaces;

 private:
  size_t card_had_ = 0, live_then_ = 0;  // bytes when the card was last asked
  std::chrono::steady_clock::time_point card_asked_;
  std::optional<ThreadPool> host_;
};

/// Has the stream's turn; the runtime's GPU is current meanwhile.
class Turn {
 public:
  explicit Turn(CudaRuntime& runtime);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::lock_guard<std::recursive_mutex> turn_;
  int before_, ours_;
  MakesRoom room_;
};

}  // namespace pith::cuda
