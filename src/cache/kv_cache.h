#pragma once
// The compressed cache of one sequence: for each layer and KV head sink | body | window, filled and
// read through one policy.

#include <memory>
#include <vector>

#include "attend/attend.h"
#include "pith/ledger.h"
#include "pith/policy.h"
#include "pith/session.h"

namespace pith {

struct CacheShape {
  int layers = 0;                       // L
  int query_heads = 0;                  // H
  int kv_heads = 0;                     // G
  int head_dim = 0;                     // D, a multiple of 16
  std::vector<int64_t> sliding_window;  // [L], 0 = all; empty = all 0
  size_t context = 0;                   ///< tokens that per cent budgets refer to
};

class LayerCache;

class KvCache {
 public:
  /// `rope` may be null: then policies that need it are refused. It must outlive the cache.
  KvCache(const Context& context, const CacheShape& shape, const Policy& policy, uint64_t seed,
          const Rope* rope);
  ~KvCache();
  KvCache(KvCache&&) noexcept;

  /// The step of one layer: queries attend to what is stored and, causally, to their own rows; then
  /// the rows are appended and compressed. q [T, H, D], k and v [T, G, D], f32, after RoPE; out
  /// [T, H, D]. Each layer must be given each token once, in order.
  void step(int layer, float* out, const float* q, const float* k, const float* v, size_t tokens);
  /// The two halves of step, for callers that bring their own tensors.
  void attend_only(int layer, float* out, const float* q, const float* k, const float* v,
                   size_t tokens);
  void append(int layer, const float* k, const float* v, size_t tokens);
  /// Tells the selectors that the prompt is complete (SnapKV selects then).
  void end_prefill();

  std::unique_ptr<KvCache> clone() const;
  size_t tokens(int layer) const;
  HeadRows rows(int layer, int head) const;
  Ledger ledger() const;
  std::string describe() const;

 private:
  KvCache(const KvCache& other);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pith
