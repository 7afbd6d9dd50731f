#pragma once
// The half of engines and sessions that a device computes: an EngineBackend has the parts that all
// sessions share, a SessionBackend has one session's cache. Engine and Session check arguments,
// count tokens and take turns; everything else is here.

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/memory.h"
#include "pith/generate.h"
#include "pith/session.h"
#include "session/session_file.h"

namespace pith {

struct RuntimeBackend;  // runtime/runtime.h

/// Tokens that are to come.
struct RoomAsked {
  size_t tokens = 0;
  size_t at_once = 0;   ///< the most of them in a pass
  bool logits = false;  ///< last_logits() after them
  bool prompt = false;  ///< they may be read exactly (Session::State::reads_exactly), even one
};

/// The cache of a session and where its last token left off.
class SessionBackend {
 public:
  virtual ~SessionBackend() = default;
  virtual std::unique_ptr<SessionBackend> clone() const = 0;
  /// Copies the parts that it shares with its clones: from then on it may be written. Throws
  /// kOutOfMemory with nothing changed.
  virtual void own() = 0;

  /// Sets aside what is asked for until settle(). Throws kOutOfMemory with nothing changed.
  virtual void ask(const RoomAsked& asked) = 0;
  virtual void settle() noexcept = 0;
  /// The same until so many tokens have come; none: no longer.
  virtual void reserve(const RoomAsked& asked) = 0;
  virtual bool has_room() const = 0;
  /// The bytes that reserve() sets aside.
  virtual size_t room(const RoomAsked& asked) const = 0;
  /// Takes the room that was set aside for `other`, which is this one's original or copy.
  virtual void take_room(SessionBackend& other) = 0;
  /// The same from a copy that is dropped: its rows go before its room comes here. Where forks
  /// share this one's rows and there is no memory to copy them the room goes too.
  virtual void take_room_of(std::unique_ptr<SessionBackend> dropped) noexcept = 0;

  virtual void end_prompt() = 0;
  virtual void protect(std::span<const TokenRange> ranges) = 0;

  virtual HeadRows rows(int layer, int head) const = 0;
  /// The error probe's; empty without one.
  virtual std::vector<AttentionError> attention_errors() const = 0;
  /// Of its own memory alone.
  virtual Ledger ledger() const = 0;
  virtual std::string describe_policy() const = 0;
  /// Tokens that its cache has seen.
  virtual size_t tokens() const = 0;
  /// Its parts in this order, to be saved, or loaded into one that has seen nothing: the state that
  /// all layers share; each layer; and the last token's hidden state, if there is one.
  virtual void archive(Archive& a) = 0;
  virtual void archive_layer(int layer, Archive& a) = 0;
  virtual void archive_last(Archive& a) = 0;
  /// The ranges that were asked for so far; they are archived too.
  virtual std::vector<TokenRange> protected_tokens() const = 0;
};

/// One token of a session in a pass of many, which may be written.
struct TokenWork {
  SessionBackend* session = nullptr;
  int32_t token = 0;
  int64_t position = 0;
  std::exception_ptr failure = nullptr;  ///< its own; the others are not concerned
};

/// The use of the logits after a session's last token.
struct LogitsWork {
  SessionBackend* session = nullptr;
  float* logits = nullptr;                ///< [V] they are written here; null: not wanted
  Sampler* sampler = nullptr;             ///< draws `next`; null: none is drawn
  std::span<const int32_t> history = {};  ///< the session's tokens
  int32_t next = -1;
  std::exception_ptr failure = nullptr;
};

/// A prompt of one session that is read exactly, in steps between which others may run. Until it is
/// finished the session's layers disagree.
class PromptWork {
 public:
  virtual ~PromptWork() = default;
  virtual size_t units() const = 0;
  virtual size_t units_done() const = 0;
  /// Runs the next unit.
  virtual void advance() = 0;
  /// After the last: the session continues behind it. `sink` (may be empty) gets the logits of all
  /// tokens.
  virtual void finish(const Session::LogitsSink& sink) = 0;
};

/// One caller at a time for all that runs. An error that is thrown here, and not noted as a failure
/// of one work, concerns all sessions of the call.
class EngineBackend {
 public:
  virtual ~EngineBackend() = default;

  /// `options` are checked. Throws as Session's constructor does. From any thread.
  virtual std::unique_ptr<SessionBackend> make_session(const SessionOptions& options) = 0;

  /// Makes its own buffers large enough for a chunk of so many tokens of one session; for a token
  /// each of many; for that many logits. Throws kOutOfMemory.
  virtual void prepare_chunk(size_t /*tokens*/) {}
  virtual void prepare_tokens(size_t /*sessions*/) {}
  virtual void prepare_logits(size_t /*count*/) {}
  /// Runs a chunk of one session's checked tokens, which may be written; their rows are appended to
  /// its cache.
  virtual void run_chunk(SessionBackend& session, std::span<const int32_t> tokens,
                         int64_t first_position) = 0;
  /// Begins to read checked tokens of a session, which may be written, exactly; a prompt ends with
  /// them if `ends`. Throws kOutOfMemory with nothing changed.
  virtual std::unique_ptr<PromptWork> begin_prompt(SessionBackend& session,
                                                   std::span<const int32_t> tokens, bool ends) = 0;
  /// Runs one checked token of each session.
  virtual void run_tokens(std::span<TokenWork> works) = 0;
  virtual void finish(std::span<LogitsWork> works) = 0;
  /// Logits [V] after the session's last token; valid until it is given another. Throws kNonFinite.
  virtual std::span<const float> last_logits(SessionBackend& session) = 0;
  /// Hands out the logits of every position of the last run_chunk, which was `session`'s.
  virtual void all_logits(SessionBackend& session, const Session::LogitsSink& sink) = 0;

  /// Of the engine's own memory, without its sessions'.
  virtual Ledger ledger() const = 0;
  virtual const MemoryCounter& memory() const = 0;
  /// Of tables that engines of a runtime share, which memory() does not count.
  virtual const MemoryCounter& tables() const = 0;
  /// All that decides a result's last bits beside options: two that say the same compute the same.
  virtual std::string bits() const = 0;
};

/// `options` are checked. Throw as Engine's constructor does.
/// The runtime is of that device and outlives it.
std::unique_ptr<EngineBackend> make_cpu_engine(std::shared_ptr<const Model> model,
                                               const EngineOptions& options,
                                               RuntimeBackend& runtime);
std::unique_ptr<EngineBackend> make_cuda_engine(std::shared_ptr<const Model> model,
                                                const EngineOptions& options,
                                                RuntimeBackend& runtime);

// pith_tools/gpu.h declares these for the program.
double cuda_read_rate();
size_t cuda_bytes_in_use();

}  // namespace pith
