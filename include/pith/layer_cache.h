#pragma once
// The compressed cache of one attention layer over the caller's own tensors, on the CPU or the GPU:
// for programs that have a model of their own. Its code and its answers are those of a session's
// cache (docs/embedding.md).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pith/attention_error.h"
#include "pith/device.h"
#include "pith/dtype.h"
#include "pith/ledger.h"
#include "pith/policy.h"
#include "pith/rows.h"
#include "pith/runtime.h"

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// An input tensor [T, heads, D] in memory of the Runtime's device. The D numbers of a row are
/// adjacent; strides between rows are in numbers. Dense [T, heads, D] is {x, dtype, heads * D, D},
/// dense [heads, T, D] is {x, dtype, D, T * D}.
struct RowsView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  ptrdiff_t token_stride = 0, head_stride = 0;
};

/// An output tensor of the same form.
struct RowsOut {
  void* data = nullptr;
  DType dtype = DType::kF32;
  ptrdiff_t token_stride = 0, head_stride = 0;
};

struct LayerCacheOptions {
  Policy policy = Policy::parse("exact");
  int query_heads = 0, kv_heads = 0;  ///< H, a multiple of G; G
  int head_dim = 0;                   ///< D, a multiple of 16
  size_t context = 0;                 ///< most tokens
  size_t percent_of = 0;              ///< tokens that budgets in per cent are of; 0 = the context
  int layer = 0, layers = 1;          ///< index and number of layers, for policies that differ
  int64_t sliding_window = 0;         ///< newest rows that a query of this layer sees; 0 = all
  uint64_t seed = 0;
  /// Base of the RoPE that is applied to keys and queries (positions from 0, pairs of channels i
  /// and i + D/2, unscaled).
  /// 0: unknown; policies that rotate keys or queries are then refused.
  double rope_theta = 0;
  /// Instead of rope_theta: the RoPE's frequencies [D/2] in radians per position, for scaled RoPE
  /// (Llama 3.1, YaRN, LongRoPE). Pairs that do not rotate have 0.
  std::vector<double> rope_frequencies = {};
  double scale = 0;  ///< factor on scores q.k; 0 = 1/sqrt(D)
  /// Scores s = scale q.k count as soft_cap tanh(s / soft_cap), as in Gemma 2; 0 = as they are.
  double soft_cap = 0;
  /// Sinks [H], as in gpt-oss: one more logit in each query head's softmax, which takes no value.
  /// Empty: none.
  std::vector<float> sink_logits = {};
  /// Tokens whose rows stay exact under every policy, as SessionOptions::protect.
  std::vector<TokenRange> protect = {};
  ErrorProbeOptions error_probe = {};  ///< max_error is not used here
};

/// On the GPU step, append and attend return before the work is done. The work runs in the order of
/// the stream of use_stream(), so tensors may be freed or overwritten in that order. Rows are
/// stored as f16 or the policy's dtype, and queries are rounded to it; numbers out of its range
/// become infinite without an error. The host waits in all other calls, in steps that the error
/// probe compares, and for policies that count rows on the device (adakv, uniform(rate) behind
/// heavy rows).
class LayerCache {
 public:
  /// Throws kInvalidArgument or kUnsupported for impossible shapes and policies.
  LayerCache(std::shared_ptr<Runtime> runtime, const LayerCacheOptions& options);
  ~LayerCache();
  LayerCache(LayerCache&&) noexcept;
  LayerCache& operator=(LayerCache&&) noexcept;

  /// One forward pass of T = `tokens` tokens: queries attend to the stored rows and, causally, to
  /// the rows of these tokens, which are then stored and compressed. q and out [T, H, D], k and v
  /// [T, G, D]; keys and queries after RoPE. Throws kInvalidArgument for invalid views,
  /// kContextFull with nothing changed, kNonFinite and kOutOfMemory; after the last two drop the
  /// cache.
  void step(const RowsOut& out, const RowsView& q, const RowsView& k, const RowsView& v,
            size_t tokens);
  /// Stores rows without queries; selectors that need attention see none.
  void append(const RowsView& k, const RowsView& v, size_t tokens);
  /// Queries at positions behind all stored rows attend to these and nothing else.
  void attend(const RowsOut& out, const RowsView& q, size_t tokens);
  /// Sets the stream for all later calls: a cudaStream_t of the Runtime's device that is not being
  /// captured; null (the initial state) is the default stream. Clones inherit it. Throws
  /// kInvalidArgument on the CPU.
  void use_stream(void* stream);
  /// Declares the prompt complete: selectors that select at the end of a prompt do so now.
  void end_prompt();
  /// Protects tokens that are still to come. Throws kInvalidArgument as Session::protect does.
  void protect(std::span<const TokenRange> ranges);

  size_t tokens() const;          ///< tokens seen
  HeadRows rows(int head) const;  ///< rows that a KV head holds, with their weights
  /// Decodes the rows of rows(head), in that order, into k and v, f32 [rows, D] of the host, also
  /// on the GPU; keys after RoPE.
  void read_rows(int head, float* k, float* v) const;
  /// The selector's score of each row of rows(head); larger scores stay. Infinite for sink, window
  /// and protected rows. To score all rows of a tensor, give the policy a budget of that many rows.
  /// Throws kUnsupported on the GPU and for selectors that do not score single rows.
  std::vector<double> scores(int head) const;
  Ledger ledger() const;         ///< bytes of the cache
  std::string describe() const;  ///< the policy, budgets as rows
  LayerCache clone() const;
  /// The error probe's estimate; empty without a probe.
  std::optional<AttentionError> attention_error() const;

  /// The cache's state, from which restore() continues bit for bit.
  std::vector<std::byte> save() const;
  /// A cache that continues from save(). Options, device and instruction set must be the same;
  /// `protect` may be left empty. Throws kInvalidArgument with the field that differs, and kCorrupt
  /// for damaged bytes.
  static LayerCache restore(std::shared_ptr<Runtime> runtime, const LayerCacheOptions& options,
                            std::span<const std::byte> bytes);

 private:
  friend class Runtime;
  struct [[gnu::visibility("hidden")]] State;
  explicit LayerCache(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The arguments of one LayerCache::step, for Runtime::step.
struct LayerStep {
  LayerCache* cache = nullptr;
  RowsOut out;
  RowsView q, k, v;
  size_t tokens = 0;
};

}  // namespace pith

#pragma GCC visibility pop
