#pragma once
// A conversation: tokens go in, logits come out, the cache stays compressed. Follow-up turns go on
// on the same cache; a fork() goes on apart. Which threads may call what: pith/engine.h.

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

class [[gnu::visibility("hidden")]] SessionFile;
struct [[gnu::visibility("hidden")]] SessionContents;

/// What is one conversation's own.
struct SessionOptions {
  Policy policy = Policy::parse("exact");
  size_t context = 0;  ///< tokens; 0 = the model's; more is allowed, for streaming policies
  /// Tokens that per cent of a budget are of; 0 = the context. Give what will be read where it is
  /// known: `keydiff(budget=25%)` then keeps a quarter of a document, however large the context.
  size_t percent_of = 0;
  uint64_t seed = 0;       ///< of randomised methods
  size_t cache_limit = 0;  ///< bytes of this session alone, its forks apart; 0 = none
  /// Tokens whose rows stay exact under every policy, on top of its budget: a system prompt, tool
  /// schemas. Layers with a sliding window of their own forget them as the model does.
  std::vector<TokenRange> protect = {};
  ErrorProbeOptions error_probe = {};  ///< estimates the policy's attention error while it runs
};

/// Of a session with an engine of its own.
struct StandaloneOptions : SessionOptions, EngineOptions {};

struct SaveOptions {
  bool replace = false;   ///< a file that is there already
  std::string note = {};  ///< the program's own, UTF-8: what read_saved() hands back
};
/// Takes the bytes of a saved session, in order.
using StateSink = std::function<void(std::span<const std::byte>)>;

/// How likely one token of a text was after those before it.
struct TokenScore {
  float logprob = 0;       ///< the log-softmax of the raw logits at the token
  int32_t likeliest = -1;  ///< the token with the greatest logit there
};

/// When a fork takes memory for its rows.
enum class Copy : uint8_t { kWhenWritten, kNow };

class Session {
 public:
  /// Throws kInvalidArgument or kUnsupported for policies that cannot be, with the reason.
  Session(std::shared_ptr<Engine> engine, const SessionOptions& options);
  /// With an engine that is its own and its forks', whose scratch its ledger has too.
  Session(std::shared_ptr<const Model> model, const StandaloneOptions& options);
  template <std::same_as<StandaloneOptions> Options>
  Session(std::shared_ptr<Engine> engine, const Options& options) = delete;
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Appends tokens in chunks and returns the logits [V] after the last one; valid until the next
  /// call. Throws kInvalidArgument (no tokens, unknown id), kContextFull (nothing is appended),
  /// kOutOfMemory, kNonFinite. If `progress` returns false the tokens of the finished chunks stay,
  /// the prompt has not ended, and its rest may be appended later with the same bits. After an
  /// error in the middle of a chunk the layers no longer agree and every later call throws; fork()
  /// before risky steps.
  std::span<const float> prefill(std::span<const int32_t> tokens, const Progress& progress = {});
  /// As prefill, without logits: sample() is cheaper where they would have to be copied.
  void append(std::span<const int32_t> tokens, const Progress& progress = {});
  /// The same for a prompt that comes in pieces.
  void append(std::span<const int32_t> tokens, Append how, const Progress& progress = {});
  /// The token that sampler.sample() draws from the logits after the last token, with the session's
  /// tokens as its history and the number of the draw that of the token's position: who saves and
  /// restores in between draws the same. Throws kInvalidArgument if the session is empty,
  /// kNonFinite.
  int32_t sample(Sampler& sampler);
  /// Appends one token: prefill of one.
  std::span<const float> decode(int32_t token);
  /// prefill that hands out the logits of every position, chunk by chunk: [count, V].
  using LogitsSink = std::function<void(size_t first, size_t count, const float* logits)>;
  void prefill_logits(std::span<const int32_t> tokens, const LogitsSink& sink);

  /// Appends `tokens` as one prompt and says how likely each was: [tokens.size()]. The first token
  /// of a session has no logits before it and scores {0, -1}. Logits are looked at chunk by chunk.
  /// Throws as prefill.
  std::vector<TokenScore> score(std::span<const int32_t> tokens);

  /// Protects more tokens, all still to come (the next turn: {tokens(), tokens() + its length}).
  /// Throws kInvalidArgument, with nothing changed, for ranges that are reversed, overlap, have
  /// begun, or pass the context.
  void protect(std::span<const TokenRange> ranges);

  /// Writes everything that the conversation needs to go on in another process, bit for bit, whole
  /// or not at all. The file holds the conversation: its mode is 0600. Throws kIo, also where the
  /// file is there already unless it is to be replaced.
  void save(const std::filesystem::path& path, const SaveOptions& options = {}) const;
  /// The same bytes to anything that takes them; what `sink` throws ends it.
  void save(const StateSink& sink, const SaveOptions& options = {}) const;
  /// A session that goes on where save() was called. Engine and options must be those it was saved
  /// under; `protect` may be left empty. Throws kInvalidArgument, naming what differs, and
  /// kNotFound, kIo, kCorrupt or kUnsupported for a file that is none or is damaged.
  static Session restore(std::shared_ptr<Engine> engine, const std::filesystem::path& path,
                         const SessionOptions& options);
  static Session restore(std::shared_ptr<const Model> model, const std::filesystem::path& path,
                         const StandaloneOptions& options);
  /// From the bytes of a file.
  static Session restore(std::shared_ptr<Engine> engine, std::span<const std::byte> bytes,
                         const SessionOptions& options);

  /// A second conversation with the same past, on the same engine; both go on independently. They
  /// have their rows in common, so that a fork costs microseconds, until one of them goes on: then
  /// it takes memory for its own, and throws kOutOfMemory with nothing changed if there is none.
  /// The ledger of each says what it would take alone. kNow takes it here and now.
  Session fork(Copy when = Copy::kWhenWritten) const;

  size_t tokens() const;                       ///< seen so far
  std::span<const int32_t> token_ids() const;  ///< [tokens()] which
  size_t context() const;                      ///< the most that may be seen
  Ledger ledger() const;
  /// What layer `layer`, KV head `head` holds now.
  HeadRows rows(int layer, int head) const;
  /// The error probe's estimates, one a layer without a sliding window; empty without a probe.
  std::vector<AttentionError> attention_errors() const;
  const Model& model() const;
  const std::shared_ptr<Engine>& engine() const;
  const SessionOptions& options() const;
  /// The policy with every budget as rows and every default spelled out, a line a layer group.
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
  static Session restored(Session fresh, const SessionFile& file,
                          const std::vector<TokenRange>& protect);
  std::unique_ptr<State> state_;
};

/// What a policy would cost at a context length, without running it: built from the same code that
/// sizes a session. Bytes are an upper bound over the stream, without scratch.
Ledger estimate_ledger(const ModelConfig& config, const SessionOptions& options, size_t tokens,
                       Device device);
Ledger estimate_ledger(const ModelConfig& config, const StandaloneOptions& options, size_t tokens);

}  // namespace pith

#pragma GCC visibility pop
