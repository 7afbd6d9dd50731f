#pragma once
// The part of a layer's cache that computes, on one device: LayerCache checks arguments, counts
// tokens and reads and writes saved bytes; everything else is here.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/archive.h"
#include "pith/layer_cache.h"
#include "policy/resolved.h"

namespace pith {

struct RuntimeBackend;  // runtime/runtime.h

CacheShape shape_of(const LayerCacheOptions& options);
/// The properties of a layer that both devices need.
struct LayerSite {
  explicit LayerSite(const LayerCacheOptions& options);
  int layer;
  size_t query_heads, kv_heads, dim;  // H, G, D
  /// Of queries, so that scores over sqrt(D), which is all that selectors, the probe and attention
  /// know, have the caller's scale.
  float query_factor;
  std::shared_ptr<const Rope> rope;  ///< of keys and queries; null: none is known
};
/// Whether the rows lie side by side: [T, heads, D] without gaps.
template <class View>
bool without_gaps(const View& x, size_t heads, size_t dim) {
  return x.head_stride == static_cast<ptrdiff_t>(dim) &&
         x.token_stride == static_cast<ptrdiff_t>(heads * dim);
}

/// One layer's. Arguments are checked; `options` are those of its making.
class LayerBackend {
 public:
  virtual ~LayerBackend() = default;
  virtual std::unique_ptr<LayerBackend> clone() const = 0;

  virtual void step(const RowsOut& out, const RowsView& q, const RowsView& k, const RowsView& v,
                    size_t tokens) = 0;
  virtual void append(const RowsView& k, const RowsView& v, size_t tokens) = 0;
  virtual void attend(const RowsOut& out, const RowsView& q, size_t tokens) = 0;
  virtual void end_prompt() = 0;
  virtual void protect(std::span<const TokenRange> ranges) = 0;
  /// As LayerCache::use_stream.
  virtual void use_stream(void* stream) = 0;

  virtual size_t tokens() const = 0;
  virtual HeadRows rows(int head) const = 0;
  virtual void read_rows(int head, float* k, float* v) const = 0;
  /// Throws kUnsupported where scores cannot be read back.
  virtual std::vector<double> scores(int head) const;
  virtual Ledger ledger() const = 0;
  virtual std::string describe() const = 0;
  virtual std::optional<AttentionError> attention_error() const = 0;
  virtual std::vector<TokenRange> protected_tokens() const = 0;
  /// All that it is made of: to be saved, or loaded into one that has seen nothing.
  virtual void archive(Archive& a) = 0;
  /// All that decides a result's last bits beside options.
  virtual std::string bits() const = 0;
};

/// One of many steps; its layer is of this device.
struct BackendStep {
  LayerBackend* layer;
  const LayerStep* given;

  void run() const { layer->step(given->out, given->q, given->k, given->v, given->tokens); }
};

/// Throw as LayerCache's constructor does, for options that make sense. The runtime is of that
/// device and outlives it.
std::unique_ptr<LayerBackend> make_cpu_layer(RuntimeBackend& runtime,
                                             const LayerCacheOptions& options);
std::unique_ptr<LayerBackend> make_cuda_layer(RuntimeBackend& runtime,
                                              const LayerCacheOptions& options);

/// Steps of layers of one runtime; those of a token share launches.
void step_cuda_layers(std::span<const BackendStep> steps);

}  // namespace pith
