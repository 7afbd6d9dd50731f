// Sessions on the CPU: the runtime's threads and one forward pass for all of an engine's.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/allocation.h"
#include "core/copy_on_write.h"
#include "model/forward.h"
#include "model/loaders/weights.h"
#include "model/prompt_blocks.h"
#include "model/prompt_pass.h"
#include "runtime/runtime.h"
#include "session/roomy_backend.h"
#include "session/state.h"

namespace pith {
namespace {

/// A cache and where its last token left off, with their account.
class Held {
 public:
  /// The state in which sessions under this policy, context and seed begin.
  Held(CpuRuntime& runtime, MemoryCounter& all, const Model& model, const SessionOptions& o)
      : memory_(all, o.cache_limit),
        hidden_(static_cast<size_t>(model.config().hidden)),
        cache_(std::make_unique<KvCache>(Context{runtime.pool, memory_.own(), runtime.kernels},
                                         cache_shape(model.config(), o), o.policy, o.seed,
                                         model.weights().ropes(o.context), &runtime.tables)),
        state_(memory_.own(), MemoryKind::kScratch),
        logits_(memory_.own(), MemoryKind::kScratch) {}
  Held(const Held& o) : Held(o, o.memory_.limit(), true) { like_ = o.like_; }
  /// Another that has seen nothing, like `empty`, which it keeps alive.
  Held(std::shared_ptr<const Held> empty, const SessionOptions& o)
      : Held(*empty, o.cache_limit, false) {
    like_ = std::move(empty);
    cache_->protect(o.protect);
    if (o.error_probe.rows > 0) cache_->start_error_probe(o.error_probe, o.seed);
  }

  SessionMemory& memory() { return memory_; }
  /// The most bytes that the state and logits come to take beside the cache.
  size_t state_bytes(bool logits, size_t vocabulary) const {
    const size_t kept = logits || !logits_.empty() ? vocabulary : 0;
    return allocated_bytes(hidden_ * sizeof(float)) + allocated_bytes(kept * sizeof(float));
  }

  KvCache& cache() { return *cache_; }
  const KvCache& cache() const { return *cache_; }
  size_t bytes(MemoryKind kind) const { return memory_.own().bytes(kind); }
  /// Where its last token left off (Forward::last_state).
  const float* state() const { return state_.data(); }
  void set_state(std::span<const float> state) {
    if (state_.empty()) state_.reserve(state.size());
    state_.resize(state.size());
    std::ranges::copy(state, state_.begin());
  }
  void archive_state(Archive& a) { a.floats(state_, hidden_); }
  bool has_logits() const { return !logits_.empty(); }
  /// Room for logits [V]; taken when they are asked for, and kept.
  std::span<float> logits(size_t vocabulary) {
    if (logits_.empty()) logits_.reserve(vocabulary);
    logits_.resize(vocabulary);
    return logits_;
  }

 private:
  Held(const Held& o, size_t limit, bool goes_on)
      : memory_(o.memory_.all(), limit), hidden_(o.hidden_) {
    const MemoryCounter::CopiesTo ours(o.memory_.own(), memory_.own(), goes_on);
    cache_ = o.cache_->clone();
    state_ = o.state_;
    logits_ = Array<float>(memory_.own(), MemoryKind::kScratch);
  }

  SessionMemory memory_;
  size_t hidden_;
  std::unique_ptr<KvCache> cache_;
  Array<float> state_;                // [hidden], empty before the first token
  Array<float> logits_;               // [V], empty until they are asked for
  std::shared_ptr<const Held> like_;  // what it began as; null: it is such a one
};

/// Forks have what they hold in common until one of them goes on.
class CpuSession final : public RoomyBackend {
 public:
  CpuSession(std::shared_ptr<const Held> empty, const ModelConfig& config, const SessionOptions& o)
      : config_(config),
        prompt_(o.policy.prompt),
        held_(std::make_unique<Held>(std::move(empty), o)) {}
  /// Room that is set aside is the original's.
  CpuSession(const CpuSession& o)
      : RoomyBackend(o), config_(o.config_), prompt_(o.prompt_), held_(o.held_) {}

  std::unique_ptr<SessionBackend> clone() const override {
    return std::make_unique<CpuSession>(*this);
  }
  void own() override { held_.own(); }
  void end_prompt() override { held_.own().cache().end_prefill(); }
  void protect(std::span<const TokenRange> ranges) override {
    held_.own().cache().protect(ranges);
    forget_bound();
  }
  HeadRows rows(int layer, int head) const override { return held_->cache().rows(layer, head); }
  std::vector<AttentionError> attention_errors() const override {
    return held_->cache().attention_errors();
  }
  Ledger ledger() const override {
    Ledger ledger = held_->cache().ledger();
    ledger.scratch = held_->bytes(MemoryKind::kScratch);
    ledger.staging = held_->bytes(MemoryKind::kStaging);
    ledger.probe = held_->bytes(MemoryKind::kProbe);
    return ledger;
  }
  std::string describe_policy() const override { return held_->cache().describe(); }
  size_t tokens() const override { return held_->cache().tokens(0); }
  void archive(Archive& a) override { for_archive(a).cache().archive(a); }
  void archive_layer(int layer, Archive& a) override {
    for_archive(a).cache().archive_layer(layer, a);
  }
  void archive_last(Archive& a) override { for_archive(a).archive_state(a); }
  std::vector<TokenRange> protected_tokens() const override {
    return held_->cache().protected_tokens();
  }

  Held& writes() { return held_.own(); }
  /// As Held::logits; a bound that was found without them is none any more.
  std::span<float> logits() {
    if (!held_->has_logits()) forget_bound();
    return writes().logits(static_cast<size_t>(config_.vocab));
  }
  const KvCache& cache() const { return held_->cache(); }
  const float* state() const { return held_->state(); }

 private:
  /// An archive that saves only reads, by functions that load too.
  Held& for_archive(const Archive& a) {
    return a.loads() ? held_.own() : const_cast<Held&>(*held_);
  }

  PassRoom find_room(const RoomAsked& asked) const override {
    PassRoom room = held_->cache().room(asked.tokens, asked.at_once, asked.prompt);
    room.cache += held_->state_bytes(asked.logits, static_cast<size_t>(config_.vocab));
    if (asked.prompt) room.beside += prompt_bytes(config_, prompt_, asked.tokens);
    return room;
  }
  SessionMemory& own_memory() override { return held_.own().memory(); }
  SessionMemory* settled_memory() noexcept override {
    return held_.shared() ? nullptr : &held_.own().memory();
  }

  const ModelConfig& config_;
  PromptReading prompt_;
  CopyOnWrite<Held> held_;
};

class CpuPrompt final : public PromptWork {
 public:
  CpuPrompt(Forward& forward, CpuSession& session, PromptPass pass)
      : forward_(forward), session_(session), pass_(std::move(pass)) {}

  size_t units() const override { return pass_.units(); }
  size_t units_done() const override { return pass_.units_done(); }
  void advance() override { pass_.advance(session_.writes().cache()); }
  void finish(const Session::LogitsSink& sink) override {
    const Array<float>& states = pass_.states();
    const size_t hidden = states.size() / pass_.tokens();
    session_.writes().set_state({states.end() - hidden, hidden});
    if (sink) forward_.logits().all({states.data(), states.size()}, sink);
  }

 private:
  Forward& forward_;
  CpuSession& session_;
  PromptPass pass_;
};

class CpuEngine final : public EngineBackend {
 public:
  CpuEngine(std::shared_ptr<const Model> model, const EngineOptions& o, CpuRuntime& runtime)
      : model_(std::move(model)),
        runtime_(runtime),
        memory_(MemoryCounter::Root{}, runtime.memory),
        own_(memory_),
        forward_({runtime.pool, own_, runtime.kernels}, *model_, o.chunk,
                 o.f32_arithmetic ? MatmulPrecision::kF32 : MatmulPrecision::kFast) {}

  std::unique_ptr<SessionBackend> make_session(const SessionOptions& o) override {
    auto made = std::make_unique<CpuSession>(empty_session(o), model_->config(), o);
    const size_t ropes = made->cache().ropes().distinct().size();
    for (size_t most = ropes_; most < ropes && !ropes_.compare_exchange_weak(most, ropes);) {
    }
    return made;
  }

  void run_chunk(SessionBackend& session, std::span<const int32_t> tokens,
                 int64_t first_position) override {
    CpuSession& s = of(session);
    forward_.run(s.writes().cache(), tokens, first_position);
    s.writes().set_state(forward_.last_state(tokens.size() - 1));
  }

  std::unique_ptr<PromptWork> begin_prompt(SessionBackend& session, std::span<const int32_t> tokens,
                                           bool ends) override {
    CpuSession& s = of(session);
    for (const PromptRange& block : prompt_blocks(tokens.size(), forward_.max_chunk()))
      forward_.prepare(block.count, 1, ropes_);
    forward_.logits().prepare(1);
    return std::make_unique<CpuPrompt>(
        forward_, s,
        PromptPass(forward_, {runtime_.pool, s.writes().memory().whole(), runtime_.kernels},
                   *model_, s.cache(), tokens, ends));
  }

  void prepare_chunk(size_t tokens) override { forward_.prepare(tokens, 1, ropes_); }
  void prepare_tokens(size_t sessions) override {
    const size_t most = std::min(sessions, forward_.max_chunk());
    forward_.prepare(most, most, ropes_);
    if (sessions % forward_.max_chunk() == 1) forward_.prepare(1, 1, ropes_);
  }
  void prepare_logits(size_t count) override { forward_.logits().prepare(count); }

  void run_tokens(std::span<TokenWork> works) override {
    for (size_t first = 0; first < works.size(); first += forward_.max_chunk())
      run_pass(works.subspan(first, std::min(forward_.max_chunk(), works.size() - first)));
  }

  void finish(std::span<LogitsWork> works) override {
    const size_t most = forward_.logits().most();
    for (size_t first = 0; first < works.size(); first += most)
      finish_some(works.subspan(first, std::min(most, works.size() - first)));
  }

  std::span<const float> last_logits(SessionBackend& session) override {
    CpuSession& s = of(session);
    const std::span<float> logits = s.logits();
    LogitsWork work{&session, logits.data()};
    finish({&work, 1});
    if (work.failure) std::rethrow_exception(work.failure);
    return logits;
  }

  void all_logits(SessionBackend& /*session*/, const Session::LogitsSink& sink) override {
    forward_.logits().all(forward_.states(), sink);
  }

  Ledger ledger() const override {
    Ledger ledger;
    ledger.scratch = own_.bytes(MemoryKind::kScratch);
    return ledger;
  }
  const MemoryCounter& memory() const override { return memory_; }
  const MemoryCounter& tables() const override { return runtime_.tables.memory(); }
  std::string bits() const override { return runtime_.kernels.isa; }

 private:
  static CpuSession& of(SessionBackend& session) { return static_cast<CpuSession&>(session); }

  /// Codecs and trained dictionaries depend on the policy and the seed alone: they are those of an
  /// empty session, which all that are like it are copies of. It has no rows, and lives as long as
  /// one of them does.
  std::shared_ptr<const Held> empty_session(const SessionOptions& o) {
    const auto key =
        fmt::format("{} {} {} {}", o.context, o.percent_of, o.seed, o.policy.to_string());
    const std::lock_guard turn(making_);
    if (auto there = empties_[key].lock()) return there;
    std::erase_if(empties_, [](const auto& e) { return e.second.expired(); });
    SessionOptions unlimited = o;
    unlimited.cache_limit = 0;
    // A copy has no room for rows that it does not have yet, where the first took some.
    auto made = std::make_shared<const Held>(Held(runtime_, memory_, *model_, unlimited));
    empties_[key] = made;
    return made;
  }

  void run_pass(std::span<TokenWork> works) {
    std::vector<Sequence> sequences;
    sequences.reserve(works.size());
    for (TokenWork& w : works)
      sequences.push_back({&of(*w.session).writes().cache(), {&w.token, 1}, w.position});
    forward_.run(sequences);
    for (size_t i = 0; i < works.size(); ++i) {
      works[i].failure = sequences[i].failure;
      if (!works[i].failure) of(*works[i].session).writes().set_state(forward_.last_state(i));
    }
  }

  void finish_some(std::span<LogitsWork> works) {
    const auto vocabulary = static_cast<size_t>(model_->config().vocab);
    std::vector<const float*> states;
    for (const LogitsWork& w : works) states.push_back(of(*w.session).state());
    const float* made = forward_.logits().after(states);
    for (size_t i = 0; i < works.size(); ++i) {
      LogitsWork& w = works[i];
      const std::span<const float> logits(made + i * vocabulary, vocabulary);
      try {
        forward_.logits().check_finite(logits.data(), 1);
        if (w.logits) std::ranges::copy(logits, w.logits);
        if (w.sampler) w.next = w.sampler->sample(logits, w.history);
      } catch (...) {
        w.failure = std::current_exception();
      }
    }
  }

  std::shared_ptr<const Model> model_;
  CpuRuntime& runtime_;
  MemoryCounter memory_;  // of the engine and its sessions
  MemoryCounter own_;     // of the engine alone
  Forward forward_;
  std::atomic<size_t> ropes_{1};  // the most that a session's layers tell apart
  std::mutex making_;
  std::map<std::string, std::weak_ptr<const Held>> empties_;
};

}  // namespace

std::unique_ptr<EngineBackend> make_cpu_engine(std::shared_ptr<const Model> model,
                                               const EngineOptions& options,
                                               RuntimeBackend& runtime) {
  return std::make_unique<CpuEngine>(std::move(model), options, static_cast<CpuRuntime&>(runtime));
}

}  // namespace pith
