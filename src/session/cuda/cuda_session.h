#pragma once
// A session on the GPU, and what those of an engine have in common. All take the runtime's turn.

#include <memory>
#include <string>
#include <vector>

#include "cache/cuda/device_cache.h"
#include "core/copy_on_write.h"
#include "model/cuda/device_forward.h"
#include "model/cuda/device_weights.h"
#include "runtime/cuda/cuda_runtime.h"
#include "session/roomy_backend.h"

namespace pith {

class CudaSession;

/// The parts that all sessions of an engine share.
struct CudaShared {
  /// The turn is the caller's, as everywhere here.
  CudaShared(const std::shared_ptr<const Model>& model, const EngineOptions& o,
             cuda::CudaRuntime& r);

  /// Notes how many calls a layer's step is.
  void note_calls(const cuda::DeviceCache& cache);
  /// Memory is set aside for scratch that so much is asked of, for one holder more if `begins`.
  /// Throws kOutOfMemory with nothing changed.
  void hold_space(const cuda::ChunkSpace& space, const cuda::SpaceAsked& asked, bool begins);
  /// The bytes that this would set aside beside what is held.
  size_t space_room(const cuda::ChunkSpace& space, const cuda::SpaceAsked& asked) const;
  /// One holder less: with the last all is given back that nobody has taken.
  void let_space_go() noexcept;

  cuda::CudaRuntime& runtime;
  std::shared_ptr<const cuda::DeviceWeights> weights;
  MemoryCounter memory;  // of the engine and its sessions
  MemoryCounter own;     // of the engine alone
  std::shared_ptr<cuda::DeviceCommon> common;
  cuda::DeviceForward forward;
  std::vector<const CudaSession*> rows;  // whose logits forward has, row by row
  size_t most_calls = 1;                 // of a layer in a step of one session

 private:
  size_t holders_ = 0;
  cuda::SpaceAsked asked_;  // by all holders since there were none
};

/// A session's memory: its cache and where its last token left off.
class CudaHeld {
 public:
  CudaHeld(CudaShared& shared, const SessionOptions& o);
  CudaHeld(const CudaHeld& o);
  ~CudaHeld();

  cuda::DeviceCache& cache() const { return *cache_; }
  SessionMemory& memory() { return memory_; }
  /// On the device (DeviceForward's state).
  float* state() const { return state_.data(); }
  size_t width() const { return static_cast<size_t>(shared_.weights->config().hidden); }
  size_t bytes(MemoryKind kind) const { return memory_.own().bytes(kind); }

 private:
  CudaShared& shared_;
  SessionMemory memory_;
  std::unique_ptr<cuda::DeviceCache> cache_;
  cuda::DeviceArray<float> state_;  // [hidden]
};

/// Forks have what they hold in common until one of them goes on.
class CudaSession final : public RoomyBackend {
 public:
  CudaSession(CudaShared& shared, const SessionOptions& o);
  CudaSession(const CudaSession& o);
  ~CudaSession() override;

  std::unique_ptr<SessionBackend> clone() const override {
    return std::make_unique<CudaSession>(*this);
  }
  void own() override;

  void ask(const RoomAsked& asked) override;
  void settle() noexcept override;
  void reserve(const RoomAsked& asked) override;
  size_t room(const RoomAsked& asked) const override;
  void take_room(SessionBackend& other) override;
  void take_room_of(std::unique_ptr<SessionBackend> dropped) noexcept override;

  void end_prompt() override;
  void protect(std::span<const TokenRange> ranges) override;
  size_t tokens() const override;
  void archive(Archive& a) override;
  void archive_layer(int layer, Archive& a) override;
  void archive_last(Archive& a) override;
  std::vector<TokenRange> protected_tokens() const override {
    return held_->cache().protected_tokens();
  }
  HeadRows rows(int layer, int head) const override;
  std::vector<AttentionError> attention_errors() const override;
  Ledger ledger() const override;
  std::string describe_policy() const override { return held_->cache().describe(); }

  CudaHeld& writes() { return held_.own(); }
  cuda::DeviceCache& cache() { return writes().cache(); }
  float* state() const { return held_->state(); }
  /// Room for logits [V]; taken when they are asked for, and kept.
  std::vector<float>& logits() { return logits_; }

 private:
  PassRoom find_room(const RoomAsked& asked) const override;
  /// The scratch that is held for another's room.
  void take_space(CudaSession& from) noexcept;
  cuda::SpaceAsked find_space(const RoomAsked& asked) const;
  SessionMemory& own_memory() override { return writes().memory(); }
  SessionMemory* settled_memory() noexcept override {
    return held_.shared() ? nullptr : &held_.own().memory();
  }
  void found(const RoomAsked& asked) override;
  void hold(SessionMemory& memory, const PassRoom& room) override;
  void let_go() noexcept override;
  /// An archive that saves only reads, by functions that load too.
  CudaHeld& for_archive(const Archive& a) {
    return a.loads() ? writes() : const_cast<CudaHeld&>(*held_);
  }

  CudaShared& shared_;
  CopyOnWrite<CudaHeld> held_;
  std::vector<float> logits_;
  cuda::SpaceAsked space_;   // of the last bound
  bool bound_anew_ = false;  // the card has not been asked since it was found
  bool holds_ = false;       // scratch memory
};

}  // namespace pith
