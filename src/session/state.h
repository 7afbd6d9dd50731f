#pragma once
// The members of Session and Engine.

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "core/copy_on_write.h"
#include "core/moved.h"
#include "pith/error.h"
#include "policy/resolved.h"
#include "session/backend.h"

namespace pith {

struct Engine::State {
  State(std::shared_ptr<const Model> m, const EngineOptions& o);

  std::shared_ptr<const Model> model;
  EngineOptions options;
  std::shared_ptr<Runtime> runtime;
  std::mutex& turn;  // of whoever runs a pass of the runtime's
  std::unique_ptr<EngineBackend> backend;
  /// Held by each session that memory is set aside for.
  std::shared_ptr<const char> rooms = std::make_shared<const char>();
};

/// A prompt that is read exactly, by a copy of its session: until it is read through the session is
/// as it was. Only what cannot be broken off is read by the session itself.
struct Reading {
  std::vector<int32_t> ids;
  Append how = Append::kWhole;
  std::unique_ptr<SessionBackend> copy;  // null: the session's own
  std::unique_ptr<PromptWork> work;
};

/// Who looks on while tokens run.
struct RunWatch {
  Progress progress = {};         ///< false: no more
  Session::LogitsSink sink = {};  ///< gets the logits of all of them
  size_t slice = 0;               ///< as Work::slice
  bool logits = false;            ///< last_logits() is asked for afterwards
};

struct Session::State {
  State(std::shared_ptr<Engine> e, const SessionOptions& o, bool its_own);
  State(const State& o);

  std::shared_ptr<Engine> engine;
  bool own_engine;  ///< whose scratch is this session's and its forks'
  SessionOptions options;
  std::unique_ptr<SessionBackend> backend;
  CopyOnWrite<std::vector<int32_t>> seen;  ///< the tokens' ids
  std::string failure;                     ///< why the layers disagree, if they do
  bool in_prompt = true;                   ///< all of it is of a prompt that goes on
  /// After how many tokens the pieces of that prompt ended. Where a piece was cut into chunks
  /// follows from where it ends.
  std::vector<size_t> cuts;
  std::unique_ptr<Reading> reading;  ///< a prompt that is not read through yet; forks have none
  std::shared_ptr<const char> room;  ///< Engine::State::rooms, while memory is set aside for it

  /// Gives back what was asked for, when it goes.
  class Settles {
   public:
    explicit Settles(State& state) : state_(state) {}
    ~Settles() { state_.backend->settle(); }
    Settles(const Settles&) = delete;
    Settles& operator=(const Settles&) = delete;

   private:
    State& state_;
  };

  Engine::State& shared() const { return *engine->state_; }
  EngineBackend& device() const { return *shared().backend; }
  /// Throws for tokens that cannot be appended.
  void check(std::span<const int32_t> ids, Append how) const;
  void check_usable() const;
  /// Throws for room that cannot be asked for.
  void check_room(size_t tokens) const;
  /// Whether tokens that come so are of a prompt that is read exactly.
  bool reads_exactly(Append how, size_t tokens) const {
    return options.policy.prompt != PromptReading::kChunks && (tokens > 1 || how != Append::kWhole);
  }
  /// Asks for the memory of all of them, which the caller gives back (Settles); then runs checked
  /// tokens, chunk by chunk or a layer at a time, until it is stopped. How many it
  /// ran. Notes how they came, and ends the prompt if it does.
  size_t run(std::span<const int32_t> ids, Append how, const RunWatch& watch = {});
  size_t run_chunks(std::span<const int32_t> ids, const RunWatch& watch);
  /// None or all of the tokens.
  size_t run_exactly(std::span<const int32_t> ids, Append how, const RunWatch& watch);
  /// Runs tokens at once, in a turn of its own.
  void run_chunk(std::span<const int32_t> ids, const Session::LogitsSink& sink);
  void end_prompt();
  /// A prompt that was begun is dropped.
  void drop(std::unique_ptr<Reading>& begun) noexcept;
  /// The most of `tokens` tokens that go through a layer together.
  size_t at_once(size_t tokens) const;
  /// Notes how the newest tokens came; what ends a prompt or is of an answer ends in_prompt.
  void came(Append how);
  /// Notes why the layers disagree.
  void fail(const std::exception_ptr& why);
};

/// A session's inside.
template <class T>
T& there(const std::unique_ptr<T>& state) {
  return there(state, "a session");
}

inline bool ends_prompt(Append how, size_t tokens) {
  return how == Append::kPromptEnds || (how == Append::kWhole && tokens > 1);
}

/// The shape of a session's cache.
inline CacheShape cache_shape(const ModelConfig& c, const SessionOptions& o) {
  return {c.layers,  c.query_heads, c.kv_heads,   c.head_dim,          c.sliding_window,
          o.context, c.fingerprint, o.percent_of, c.attention_soft_cap};
}

}  // namespace pith
