#pragma once
// The layers of one cache on the GPU: those of a model, or one alone.

#include <algorithm>
#include <memory>
#include <vector>

#include "cache/cuda/layer_rows.h"

namespace pith::cuda {

class CacheLayers {
 public:
  explicit CacheLayers(int first) : first_(first) {}
  void add(std::unique_ptr<LayerRows> layer) { layers_.emplace_back(std::move(layer)); }

  int first() const { return first_; }
  int end() const { return first_ + static_cast<int>(layers_.size()); }
  size_t size() const { return layers_.size(); }
  /// Where a layer is in all(), and in arrays beside it.
  size_t index(int layer) const { return static_cast<size_t>(layer - first_); }
  LayerRows& at(int layer) const { return *layers_[index(layer)]; }
  const std::vector<Copied<LayerRows>>& all() const { return layers_; }
  /// f(stores) of each range of heads, until one is true; whether one was.
  template <class F>
  bool any_stores(const F& f) const {
    return std::ranges::any_of(layers_, [&](const auto& layer) {
      return std::ranges::any_of(layer->runs(), [&](const HeadRun& run) { return f(*run.stores); });
    });
  }

  /// The most that any layer has seen.
  size_t tokens() const;
  /// Throws kInvalidArgument unless both are of a cache of `shape`.
  void check_head(const CacheShape& shape, int layer, int head) const;
  /// By position, of a head that there is.
  HeadRows rows(const CacheShape& shape, int layer, int head) const;
  Ledger ledger(const CacheShape& shape) const;

 private:
  int first_ = 0;
  std::vector<Copied<LayerRows>> layers_;  // [L], or one
};

}  // namespace pith::cuda
