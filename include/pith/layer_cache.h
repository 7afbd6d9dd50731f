#pragma once
// The compressed cache of one attention layer over the caller's own tensors, in the memory of the
// CPU or of the GPU: for programs that have a model of their own and want its cache to stay small.
// The code is that of a session's cache, and so are its answers.

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

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// Threads, kernels and one account of memory, for any number of layers. Their calls may come from
/// several threads; a layer is one thread's at a time.
struct ComputeOptions {
  /// Where tensors and caches are; nothing falls back. kCuda: the current device of the thread that
  /// makes it, and of those that call.
  Device device = Device::kCpu;
  int threads = 0;          ///< 0 = all cores; on the GPU those of an error probe
  size_t memory_limit = 0;  ///< bytes of all layers together; 0 = none
  std::string isa = {};     ///< as EngineOptions::isa; the CPU's
};

class Compute {
 public:
  /// Throws kInvalidArgument, and kUnsupported for a GPU that is not there.
  explicit Compute(const ComputeOptions& options = {});
  ~Compute();
  size_t bytes_in_use() const;
  Device device() const;

 private:
  friend class LayerCache;
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

/// A tensor [T, heads, D] that is read, in memory of the Compute's device: the numbers of a row are
/// adjacent, rows are where the strides say, in numbers. [T, heads, D] without gaps is {x, dtype,
/// heads * D, D}, [heads, T, D] is {x, dtype, D, T * D}.
struct RowsView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  ptrdiff_t token_stride = 0, head_stride = 0;
};

/// The same, written.
struct RowsOut {
  void* data = nullptr;
  DType dtype = DType::kF32;
  ptrdiff_t token_stride = 0, head_stride = 0;
};

struct LayerCacheOptions {
  Policy policy = Policy::parse("exact");
  int query_heads = 0, kv_heads = 0;  ///< the former a multiple of the latter
  int head_dim = 0;                   ///< a multiple of 16
  size_t context = 0;                 ///< the most tokens there will be; per cent budgets are of it
  int layer = 0, layers = 1;          ///< which layer of how many, for policies that ask
  int64_t sliding_window = 0;         ///< rows that a query of this layer sees; 0 = all
  uint64_t seed = 0;
  /// The base of the RoPE that keys and queries come with (positions from 0, pairs of channels i
  /// and i + D/2, no scaling); 0: none is known, and policies that rotate keys or queries are
  /// refused.
  double rope_theta = 0;
  /// Instead of rope_theta, the RoPE's frequencies in radians per position, [D/2]: scaled ones
  /// (Llama 3.1, YaRN, LongRoPE) are given like this. Pairs that do not rotate have 0.
  std::vector<double> rope_frequencies = {};
  double scale = 0;  ///< of scores q.k in the softmax; 0 = 1/sqrt(D)
  std::vector<TokenRange> protect =
      {};                              ///< tokens whose rows stay exact, as SessionOptions::protect
  ErrorProbeOptions error_probe = {};  ///< its max_error is the caller's to act on
};

/// On the GPU step, append and attend return before the work is done. It comes behind what the
/// stream of use_stream() has when they are called, and what that stream is given later comes
/// behind it: tensors may be freed or written over in the order of that stream. Rows are stored as
/// f16, or as the policy's dtype, to which queries are rounded; numbers beyond it become infinite
/// and are not refused. What the host must know waits: all other calls, steps that an error probe
/// compares, and policies whose rows are counted on the device (adakv, uniform(rate) behind heavy
/// rows).
class LayerCache {
 public:
  /// Throws kInvalidArgument or kUnsupported for shapes and policies that cannot be.
  LayerCache(std::shared_ptr<Compute> compute, const LayerCacheOptions& options);
  ~LayerCache();
  LayerCache(LayerCache&&) noexcept;
  LayerCache& operator=(LayerCache&&) noexcept;

  /// A pass of `tokens` tokens, as a model makes it: their queries attend to what is stored and,
  /// causally, to the rows of these tokens, which are then stored and compressed. q and out
  /// [T, query heads, D], k and v [T, KV heads, D], keys and queries after RoPE. Throws
  /// kInvalidArgument for views that are none, kContextFull with nothing changed, kNonFinite,
  /// kOutOfMemory; after the last two the cache is to be thrown away.
  void step(const RowsOut& out, const RowsView& q, const RowsView& k, const RowsView& v,
            size_t tokens);
  /// Stores rows without queries; selectors that live on attention see none.
  void append(const RowsView& k, const RowsView& v, size_t tokens);
  /// Queries attend to what is stored and nothing else; they stand behind all of it.
  void attend(const RowsOut& out, const RowsView& q, size_t tokens);
  /// The stream that calls from now on are ordered with: a cudaStream_t of the Compute's device;
  /// null, as at first: the default stream. It may not be captured into a graph. Clones begin with
  /// it. Throws kInvalidArgument for a stream on the CPU.
  void use_stream(void* stream);
  /// The prompt is complete: selectors that judge it do.
  void end_prompt();
  /// Protects more tokens, all still to come. Throws kInvalidArgument as Session::protect does.
  void protect(std::span<const TokenRange> ranges);

  size_t tokens() const;          ///< seen
  HeadRows rows(int head) const;  ///< which rows a KV head holds, with their weights
  /// k, v f32 [rows, D] <- the rows of rows(head), in its order, as attention reads them: decoded,
  /// keys after RoPE. On the CPU alone: kUnsupported elsewhere.
  void read_rows(int head, float* k, float* v) const;
  /// The selector's score of each row of rows(head): the larger stays. Infinite for rows that it
  /// does not choose among (sink, window, protected). To score all rows of a tensor, give the
  /// policy a budget of as many rows. kUnsupported for a selector that does not score rows one by
  /// one, and elsewhere than on the CPU.
  std::vector<double> scores(int head) const;
  Ledger ledger() const;         ///< bytes of what is held
  std::string describe() const;  ///< the policy, budgets as rows
  LayerCache clone() const;
  /// The error probe's estimate; nothing without one.
  std::optional<AttentionError> attention_error() const;

  /// All that the cache needs to go on elsewhere, bit for bit.
  std::vector<std::byte> save() const;
  /// A cache that goes on where save() was called. Options, the device and its instruction set must
  /// be those it was saved under; `protect` may be left empty. Throws kInvalidArgument, naming what
  /// differs, and kCorrupt for bytes that are damaged or none of save()'s.
  static LayerCache restore(std::shared_ptr<Compute> compute, const LayerCacheOptions& options,
                            std::span<const std::byte> bytes);

 private:
  struct [[gnu::visibility("hidden")]] State;
  explicit LayerCache(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pith

#pragma GCC visibility pop
