#include "session/cuda/cuda_session.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/device_archive.h"
#include "model/cuda/device_prompt.h"
#include "model/prompt_blocks.h"
#include "session/state.h"

namespace pith {
namespace {

cuda::ComingTokens coming(const RoomAsked& asked) {
  return {asked.tokens, asked.at_once, asked.prompt};
}

}  // namespace

CudaShared::CudaShared(const std::shared_ptr<const Model>& model, const EngineOptions& o,
                       cuda::CudaRuntime& r)
    : runtime(r),
      weights(cuda::DeviceWeights::of(model)),
      memory(MemoryCounter::Root{}, r.memory),
      own(memory),
      common(std::make_shared<cuda::DeviceCommon>(own, r.tables)),
      forward(weights, own, r.stream.stream,
              {o.chunk, o.parallel, o.f32_arithmetic ? DType::kF32 : weights->dtype()}) {}

void CudaShared::note_calls(const cuda::DeviceCache& cache) {
  for (int l = 0; l < weights->config().layers; ++l)
    most_calls = std::max(most_calls, cache.steps().token_calls(l));
}

void CudaShared::hold_space(const cuda::ChunkSpace& space, const cuda::SpaceAsked& asked,
                            bool begins) {
  if (holders_ == 0 || !asked_.covers(asked)) {
    cuda::SpaceAsked all = asked_;
    all.join(asked);
    own.set_floor(own.total() + space.more_for(all));
    asked_ = all;
  }
  holders_ += begins ? 1 : 0;
}

size_t CudaShared::space_room(const cuda::ChunkSpace& space, const cuda::SpaceAsked& asked) const {
  if (holders_ > 0 && asked_.covers(asked)) return 0;
  cuda::SpaceAsked all = asked_;
  all.join(asked);
  const size_t most = own.total() + space.more_for(all);
  return most - std::min(most, own.held());
}

void CudaShared::let_space_go() noexcept {
  if (--holders_ > 0) return;
  asked_ = {};
  own.set_floor(0);
}

CudaHeld::CudaHeld(CudaShared& shared, const SessionOptions& o)
    : shared_(shared),
      memory_(shared.memory, o.cache_limit),
      cache_(std::make_unique<cuda::DeviceCache>(
          memory_.own(), cache_shape(shared.weights->config(), o), o.policy, o.seed,
          shared.runtime.stream.stream, shared.weights->ropes(o.context), shared.common)),
      state_(memory_.own(), MemoryKind::kScratch, width(), shared.runtime.stream.stream) {
  cache_->protect(o.protect);
  if (o.error_probe.rows > 0)
    cache_->start_error_probe(o.error_probe, o.seed, shared.runtime.host_threads);
  shared.note_calls(*cache_);
}

CudaHeld::CudaHeld(const CudaHeld& o)
    : shared_(o.shared_),
      memory_(shared_.memory, o.memory_.limit()),
      state_(memory_.own(), MemoryKind::kScratch, width(), shared_.runtime.stream.stream) {
  const MemoryCounter::CopiesTo ours(o.memory_.own(), memory_.own());
  cache_ = o.cache_->clone();
  cuda::check(cudaMemcpyAsync(state_.data(), o.state_.data(), width() * sizeof(float),
                              cudaMemcpyDeviceToDevice, shared_.runtime.stream.stream),
              "the copy of where a session left off");
}

CudaHeld::~CudaHeld() {
  const cuda::Turn turn(shared_.runtime);
  shared_.forward.forget(*cache_);
  cache_.reset();
  state_ = {};
}

CudaSession::CudaSession(CudaShared& shared, const SessionOptions& o)
    : shared_(shared), held_(std::make_unique<CudaHeld>(shared, o)) {}
CudaSession::CudaSession(const CudaSession& o)
    : RoomyBackend(o), shared_(o.shared_), held_(o.held_) {}
CudaSession::~CudaSession() {
  const cuda::Turn turn(shared_.runtime);
  let_go();
  std::ranges::replace(shared_.rows, this, nullptr);
}

void CudaSession::own() {
  const cuda::Turn turn(shared_.runtime);
  held_.own();
}

void CudaSession::ask(const RoomAsked& asked) {
  const cuda::Turn turn(shared_.runtime);
  RoomyBackend::ask(asked);
}
void CudaSession::settle() noexcept {
  const cuda::Turn turn(shared_.runtime);
  RoomyBackend::settle();
}
void CudaSession::reserve(const RoomAsked& asked) {
  const cuda::Turn turn(shared_.runtime);
  RoomyBackend::reserve(asked);
}
size_t CudaSession::room(const RoomAsked& asked) const {
  const cuda::Turn turn(shared_.runtime);
  return find_room(asked).total() + shared_.space_room(held_->cache().space(), find_space(asked));
}
void CudaSession::take_room(SessionBackend& other) {
  const cuda::Turn turn(shared_.runtime);
  auto& from = static_cast<CudaSession&>(other);
  if (!from.has_room()) return;
  RoomyBackend::take_room(from);
  take_space(from);
}

void CudaSession::take_room_of(std::unique_ptr<SessionBackend> dropped) noexcept {
  const cuda::Turn turn(shared_.runtime);
  auto& from = static_cast<CudaSession&>(*dropped);
  if (from.has_room()) take_space(from);
  RoomyBackend::take_room_of(std::move(dropped));
}

void CudaSession::take_space(CudaSession& from) noexcept {
  if (!holds_) std::swap(holds_, from.holds_);
  space_.join(from.space_);
}

// A prompt that is read exactly has its rows in the cache and its queries beside it.
PassRoom CudaSession::find_room(const RoomAsked& asked) const {
  const cuda::DeviceCache& cache = held_->cache();
  const cuda::ComingTokens tokens = coming(asked);
  PassRoom room{cache.room(tokens), 0};
  if (tokens.prompt && cache.prompt() != PromptReading::kChunks)
    room.beside =
        prompt_activations_on_gpu(shared_.weights->config(), cache.ropes().size(), asked.tokens);
  return room;
}

// As many sessions may come to join it as a pass takes.
cuda::SpaceAsked CudaSession::find_space(const RoomAsked& asked) const {
  return held_->cache().space_asked(coming(asked), shared_.forward.max_tokens());
}

void CudaSession::found(const RoomAsked& asked) {
  space_ = find_space(asked);
  bound_anew_ = true;
}

void CudaSession::hold(SessionMemory& memory, const PassRoom& room) {
  const size_t before = memory.room();
  const bool begins = !holds_;
  shared_.hold_space(held_->cache().space(), space_, begins);
  holds_ = true;
  try {
    memory.set_room(room);
    shared_.runtime.check_card(std::exchange(bound_anew_, false));
  } catch (...) {
    memory.lower_room(before);
    if (begins) let_go();
    throw;
  }
}

void CudaSession::let_go() noexcept {
  if (std::exchange(holds_, false)) shared_.let_space_go();
}

void CudaSession::end_prompt() {
  const cuda::Turn turn(shared_.runtime);
  writes().cache().chunks().end_prefill();
}

void CudaSession::protect(std::span<const TokenRange> ranges) {
  const cuda::Turn turn(shared_.runtime);
  shared_.forward.forget(writes().cache());
  writes().cache().protect(ranges);
  shared_.note_calls(held_->cache());
  forget_bound();
}

size_t CudaSession::tokens() const {
  const cuda::Turn turn(shared_.runtime);
  return held_->cache().tokens();
}

void CudaSession::archive(Archive& a) {
  const cuda::Turn turn(shared_.runtime);
  for_archive(a).cache().archive(a);
  forget_bound();
}
void CudaSession::archive_layer(int layer, Archive& a) {
  const cuda::Turn turn(shared_.runtime);
  for_archive(a).cache().archive_layer(layer, a);
}
void CudaSession::archive_last(Archive& a) {
  const cuda::Turn turn(shared_.runtime);
  const CudaHeld& held = for_archive(a);
  cuda::archive_finite(a, {held.state(), held.width() * sizeof(float)}, DType::kF32,
                       shared_.runtime.stream.stream);
}

HeadRows CudaSession::rows(int layer, int head) const {
  const cuda::Turn turn(shared_.runtime);
  return held_->cache().rows(layer, head);
}
std::vector<AttentionError> CudaSession::attention_errors() const {
  const cuda::Turn turn(shared_.runtime);
  return held_->cache().attention_errors();
}

Ledger CudaSession::ledger() const {
  const cuda::Turn turn(shared_.runtime);
  Ledger ledger = held_->cache().ledger();
  ledger.scratch = held_->bytes(MemoryKind::kScratch);
  ledger.staging = held_->bytes(MemoryKind::kStaging);
  ledger.probe = held_->bytes(MemoryKind::kProbe);
  return ledger;
}

}  // namespace pith
