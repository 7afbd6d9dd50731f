#pragma once
// A conversation: tokens go in, logits come out, the cache stays compressed. Later turns continue
// on the same cache; a fork() continues separately. For threads see pith/engine.h.

#include <atomic>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pith/attention_error.h"
#include "pith/engine.h"
#include "pith/ledger.h"
#include "pith/model.h"
#include "pith/policy.h"
#include "pith/rows.h"

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

struct [[gnu::visibility("hidden")]] SessionContents;

/// Options of one conversation.
struct SessionOptions {
  Policy policy = Policy::parse("exact");
  size_t context = 0;  ///< tokens; 0 = the model's; streaming policies may use more
  /// Tokens that budgets in per cent refer to; 0 = the context. Set it to the number of tokens that
  /// will be read: `keydiff(budget=25%)` then keeps a quarter of a document.
  size_t percent_of = 0;
  uint64_t seed = 0;       ///< of randomised methods
  size_t cache_limit = 0;  ///< most bytes of this session, without its forks; 0 = no limit
  /// Tokens whose rows stay exact under every policy, on top of its budget: a system prompt, tool
  /// schemas. In layers with a sliding window they leave with it.
  std::vector<TokenRange> protect = {};
  ErrorProbeOptions error_probe = {};  ///< estimates the attention error while the policy runs
};

/// Options of a session with its own engine.
struct StandaloneOptions : SessionOptions, EngineOptions {};

struct SaveOptions {
  bool replace = false;   ///< replace an existing file
  std::string note = {};  ///< any UTF-8; read_saved() returns it
};
/// Takes the bytes of a saved session, in order.
using StateSink = std::function<void(std::span<const std::byte>)>;
/// Gives them: writes the next ones, at most as many as there is room for, and returns how many; 0:
/// there are no more.
using StateSource = std::function<size_t(std::span<std::byte>)>;

/// The probability of one token of a text, given those before it.
struct TokenScore {
  float logprob = 0;       ///< the log-softmax of the raw logits at the token
  int32_t likeliest = -1;  ///< the token with the greatest logit there
};

/// When a fork copies its rows.
enum class Copy : uint8_t { kWhenWritten, kNow };

class Session {
 public:
  /// Throws kInvalidArgument or kUnsupported for impossible policies, with the reason.
  Session(std::shared_ptr<Engine> engine, const SessionOptions& options);
  /// With an engine of its own, which its forks share. Its ledger includes the engine's scratch.
  Session(std::shared_ptr<const Model> model, const StandaloneOptions& options);
  template <std::same_as<StandaloneOptions> Options>
  Session(std::shared_ptr<Engine> engine, const Options& options) = delete;
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Appends tokens in chunks and returns the logits [V] after the last one, valid until the next
  /// call. Throws kInvalidArgument (no tokens, unknown id), kContextFull (nothing is appended),
  /// kOutOfMemory, kNonFinite. If `progress` returns false, the tokens of finished chunks stay and
  /// the rest of the prompt may be appended later, with the same bits. Under prompt=exact and
  /// prompt=once (PromptReading) none stay: the session is as it was before the call.
  /// On the CPU memory for a whole call is reserved first: after kOutOfMemory the session is
  /// unchanged, and the call may be repeated. After another error in the middle of a chunk (on the
  /// GPU kOutOfMemory too) every later call throws, because the layers disagree; fork() before
  /// risky steps.
  std::span<const float> prefill(std::span<const int32_t> tokens, const Progress& progress = {});
  /// As prefill, without copying logits to the host; follow it with sample().
  void append(std::span<const int32_t> tokens, const Progress& progress = {});
  /// The same for a prompt in pieces.
  void append(std::span<const int32_t> tokens, Append how, const Progress& progress = {});
  /// Draws a token from the logits after the last token, with the session's tokens as history.
  /// The draw's number is the token's position, so save and restore do not change the draw.
  /// The token is not appended.
  /// Throws kInvalidArgument if the session is empty, and kNonFinite.
  int32_t sample(Sampler& sampler);
  /// Appends one token; as prefill of one.
  std::span<const float> decode(int32_t token);
  /// prefill that passes the logits of every position to `sink`, chunk by chunk: [count, V].
  using LogitsSink = std::function<void(size_t first, size_t count, const float* logits)>;
  void prefill_logits(std::span<const int32_t> tokens, const LogitsSink& sink);

  /// Appends `tokens` as one prompt and returns the score of each: [tokens.size()].
  /// The first token of a session has no logits before it and scores {0, -1}.
  /// Throws as prefill does.
  std::vector<TokenScore> score(std::span<const int32_t> tokens);

  /// Protects tokens that are still to come (the next turn: {tokens(), tokens() + its length}).
  /// Throws kInvalidArgument, with nothing changed, for ranges that are reversed, overlap, have
  /// begun, or exceed the context.
  void protect(std::span<const TokenRange> ranges);

  /// Reserves memory for `tokens` more tokens, in calls of any size: no memory limit refuses them.
  /// Returns false if there is not enough; then nothing has changed, except that a begun prompt
  /// (goes_on) begins anew. Each call replaces the last one's; 0 frees the reserve. Forks of a
  /// session with a reserve copy at once and have none of their own. On the GPU other processes may
  /// still take the card's memory. Throws kContextFull.
  bool try_reserve(size_t tokens);
  /// The same; throws kOutOfMemory where try_reserve returns false.
  void reserve(size_t tokens);
  /// The most bytes that the session holds until `tokens` more tokens are appended, including those
  /// in use: the size of reserve(), for schedulers that free memory first. On the GPU it
  /// includes the growth of scratch memory beyond what others have set aside. Throws kContextFull.
  size_t room(size_t tokens) const;

  /// Writes a file from which another process continues bit for bit. The file appears whole or not
  /// at all. It holds the conversation, so its mode is 0600. Throws kIo, also if the file exists
  /// and SaveOptions::replace is false.
  void save(const std::filesystem::path& path, const SaveOptions& options = {}) const;
  /// Passes the same bytes to `sink`. An exception from `sink` ends it.
  void save(const StateSink& sink, const SaveOptions& options = {}) const;
  /// A session that continues from save(). Engine and options must be the same; `protect` may be
  /// left empty. Throws kInvalidArgument with the field that differs, and kNotFound, kIo, kCorrupt
  /// or kUnsupported for a missing, unreadable, damaged or foreign file.
  static Session restore(std::shared_ptr<Engine> engine, const std::filesystem::path& path,
                         const SessionOptions& options);
  static Session restore(std::shared_ptr<const Model> model, const std::filesystem::path& path,
                         const StandaloneOptions& options);
  /// The same from the bytes of a file.
  static Session restore(std::shared_ptr<Engine> engine, std::span<const std::byte> bytes,
                         const SessionOptions& options);
  /// The same from anything that gives the bytes once, in order: a socket, a pipe, a decompressor.
  /// Each section (a layer) is compared with its digest before it is loaded, in memory for one
  /// section, which no limit counts. No byte after the last is asked for. An exception from
  /// `source` ends it.
  static Session restore(std::shared_ptr<Engine> engine, const StateSource& source,
                         const SessionOptions& options);
  /// With the engine and options of `empty`, which has seen nothing, in the room that is set aside
  /// for it. After an error `empty` may still be used; reserve its room again.
  static Session restore(Session&& empty, const std::filesystem::path& path);
  static Session restore(Session&& empty, const StateSource& source);

  /// A second, independent conversation with the same past on the same engine. Both share rows
  /// until one appends; that one then copies them, and throws kOutOfMemory with nothing changed if
  /// there is no memory. A fork costs microseconds. The ledger of each counts all its rows. kNow
  /// copies at once.
  Session fork(Copy when = Copy::kWhenWritten) const;

  size_t tokens() const;                       ///< tokens seen
  std::span<const int32_t> token_ids() const;  ///< [tokens()] their ids
  size_t context() const;                      ///< most tokens
  Ledger ledger() const;
  /// The rows that KV head `head` of layer `layer` holds now.
  HeadRows rows(int layer, int head) const;
  /// The error probe's estimates, one per layer without a sliding window; empty without a probe.
  std::vector<AttentionError> attention_errors() const;
  const Model& model() const;
  const std::shared_ptr<Engine>& engine() const;
  const SessionOptions& options() const;
  /// The policy with budgets as rows and defaults spelled out, one line per group of layers.
  std::string describe_policy() const;
  int threads() const;      ///< the engine's
  const char* isa() const;  ///< the engine's

 private:
  friend class Engine;
  friend class PrefixTree;
  friend class PromptReader;
  struct [[gnu::visibility("hidden")]] State;
  explicit Session(std::unique_ptr<State> state);
  SessionContents contents(const SaveOptions& options) const;
  template <class Saved>
  static Session restored(Session fresh, Saved&& saved, const std::vector<TokenRange>& protect);
  template <class Open>
  static Session restored_into(Session& empty, const Open& open);
  template <class Saved>
  static Session loaded(Session fresh, Saved& saved, const std::vector<TokenRange>& protect);
  std::unique_ptr<State> state_;
};

/// The ledger of a session after `tokens` tokens, without running it, from the code that sizes
/// sessions. Bytes are an upper bound over the stream. Its scratch is that of a prompt of `tokens`
/// tokens under prompt=exact and prompt=once.
Ledger estimate_ledger(const ModelConfig& config, const SessionOptions& options, size_t tokens,
                       Device device);
Ledger estimate_ledger(const ModelConfig& config, const StandaloneOptions& options, size_t tokens);

}  // namespace pith

#pragma GCC visibility pop
