#pragma once
// The compressed cache of one sequence: for each layer and KV head sink | body | window, filled and
// read through one policy.

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attend/attend.h"
#include "cache/host_tables.h"
#include "cache/pass_room.h"
#include "core/archive.h"
#include "pith/attention_error.h"
#include "pith/ledger.h"
#include "pith/policy.h"
#include "pith/rows.h"
#include "plan/schedule.h"
#include "policy/resolved.h"

namespace pith {

/// Part of a prompt in one layer: queries [first, first + count) of its `tokens`, and the rows of
/// all tokens up to there.
struct PromptBlock {
  const float* q = nullptr;  // [count, H, D]
  const float* k = nullptr;  // [first + count, G, D]
  const float* v = nullptr;  // [first + count, G, D]
  float* mass = nullptr;     // [G, tokens] zeros before the first block; null unless asks_mass()
  size_t tokens = 0, first = 0, count = 0;
};

/// The rows of a prompt in one layer.
struct PromptRows {
  const float* k = nullptr;     // [tokens, G, D]
  const float* v = nullptr;     // [tokens, G, D]
  const float* mass = nullptr;  // [G, tokens], as all blocks left it
  size_t tokens = 0;
  bool ends = false;  ///< the prompt ends with them
};

class KvCache {
 public:
  /// `context`, ropes and `tables` (null: its own) must outlive the cache and its clones. Without
  /// ropes policies that need them are refused. Throws kInvalidArgument or kUnsupported.
  KvCache(const Context& context, const CacheShape& shape, const Policy& policy, uint64_t seed,
          const LayerRopes& ropes, HostTables* tables = nullptr);
  /// The same of a policy that is resolved; with `only` layer alone, the others hold nothing and
  /// must not be given any.
  KvCache(const Context& context, ResolvedPolicy policy, const LayerRopes& ropes,
          std::optional<int> only = {}, HostTables* tables = nullptr);
  ~KvCache();
  KvCache(KvCache&&) noexcept;

  /// The step of one layer: queries attend to what is stored and, causally, to their own rows; then
  /// the rows are appended and compressed. q [T, H, D], k and v [T, G, D], f32, after RoPE; out
  /// [T, H, D]. Each layer must be given each token once, in order. `out` may be null: then nothing
  /// is attended to unless a selector asks for attention mass.
  void step(int layer, float* out, const float* q, const float* k, const float* v, size_t tokens);
  /// One token of each of several caches under one thread pool, side by side: as many threads
  /// attend as there are parts of all of them. Each has the bits of a step alone; what it throws is
  /// its own.
  struct Token {
    KvCache* cache = nullptr;
    float* out = nullptr;                    // [H, D]
    const float* q = nullptr;                // [H, D]
    const float *k = nullptr, *v = nullptr;  // [G, D]
    std::exception_ptr failure = nullptr;
  };
  static void step_together(int layer, std::span<Token> tokens);
  /// The same in parts, for policies that read prompts exactly: queries attend to what is stored
  /// and, causally, to the prompt's rows as they are. Blocks of a layer come one after another;
  /// then the layer's rows are appended, and only then the next layer is read.
  void read(int layer, float* out, const PromptBlock& block);
  void append(int layer, const PromptRows& rows);
  /// How the policy reads prompts.
  PromptReading prompt() const;
  /// Whether a selector of the layer lives on attention mass.
  bool asks_mass(int layer) const;
  /// Queries attend to what is stored and to nothing else; nothing is appended. They stand at the
  /// positions that follow the rows appended so far.
  void attend_only(int layer, float* out, const float* q, size_t tokens);
  /// Rows are appended and compressed without queries. Selectors that live on attention mass
  /// see none.
  void append(int layer, const float* k, const float* v, size_t tokens);
  /// Tokens that come later and whose rows must stay: exact and with weight 1 in every layer that
  /// has no sliding window of its own, on top of the policy's budget, unseen by its selectors.
  /// Throws kInvalidArgument as ProtectedRows::add does, with nothing changed.
  void protect(std::span<const TokenRange> ranges);
  /// Starts the error probe: steps of one token are compared from then on, in layers without a
  /// sliding window. To be called before the first row. Throws kInvalidArgument for fewer rows than
  /// 64 or `every` of 0, kUnsupported for policies that move
  /// positions.
  void start_error_probe(const ErrorProbeOptions& options, uint64_t seed);
  /// One a probed layer; empty without a probe.
  std::vector<AttentionError> attention_errors() const;
  /// Tells the selectors that the prompt is complete.
  void end_prefill();

  const std::vector<TokenRange>& protected_tokens() const;
  /// Shared by all layers: how many tokens came, which are protected, where prompts ended. With it
  /// and archive_layer of every layer, in this order, a cache of the same shape, policy, seed,
  /// ropes and probe that has seen nothing becomes this one: whatever comes next gives the same
  /// bits. Loading throws kCorrupt and leaves a cache that is to be thrown away.
  void archive(Archive& a);
  void archive_layer(int layer, Archive& a);

  std::unique_ptr<KvCache> clone() const;
  const LayerRopes& ropes() const;
  size_t tokens(int layer) const;
  HeadRows rows(int layer, int head) const;
  /// k, v f32 [rows, D] <- what is held, in the order of rows(): keys after RoPE.
  void read_rows(int layer, int head, float* k, float* v) const;
  /// As HeadGroup::scores, in the order of rows().
  std::vector<double> scores(int layer, int head) const;
  /// Bytes of what is held now; scratch and staging are the counter's.
  Ledger ledger() const;
  Ledger ledger(int layer) const;
  /// How many rows layer `layer`, KV head `head` holds where.
  Occupancy held(int layer, int head) const;
  /// The most that `tokens` tokens can take under this policy.
  Ledger estimate(size_t tokens) const;
  /// The most that is there at any time of a pass of `tokens` tokens more, `at_once` in a step,
  /// the end of a prompt included. `as_prompt`: they may come by read() and append(), whose rows
  /// and mass are the caller's (prompt_bytes).
  PassRoom room(size_t tokens, size_t at_once, bool as_prompt) const;
  /// The policy with every budget as rows, a line per run of layers and heads that share it.
  std::string describe() const;

 private:
  struct Impl;
  explicit KvCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pith
