#pragma once
// A policy for one model's shape, context and device, as a value: every budget as rows, every
// default spelled out, every part compared with what the others and the device offer. Caches of
// both devices are made from it; it prints itself and estimates its bytes, without
// allocating anything.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pith/ledger.h"
#include "plan/protected_rows.h"
#include "plan/schedule.h"
#include "policy/registry.h"

namespace pith {

struct CacheShape {
  int layers = 0;                            // L
  int query_heads = 0;                       // H
  int kv_heads = 0;                          // G
  int head_dim = 0;                          // D, a multiple of 16
  std::vector<int64_t> sliding_window = {};  // [L], 0 = all; empty = all 0
  size_t context = 0;                        ///< the most tokens there will be
  uint64_t model = 0;                        ///< ModelConfig::fingerprint
  size_t percent_of = 0;  ///< tokens that per cent budgets are of; 0 = the context
  // As AttentionVariant (attend/attend.h):
  float soft_cap = 0;
  std::vector<std::vector<float>> sinks = {};  // [L][H]; empty: none, or none in a layer

  bool varies() const { return soft_cap > 0 || !sinks.empty(); }
  /// Of a layer [H]; null: none.
  const float* sinks_of(int layer) const {
    if (sinks.empty()) return nullptr;
    const std::vector<float>& own = sinks[static_cast<size_t>(layer)];
    return own.empty() ? nullptr : own.data();
  }
};

/// Where a rule of a policy is to hold.
struct RulePlace {
  const CacheShape& shape;
  int layer = 0;
  std::vector<int> heads;  ///< KV heads, ascending
  uint64_t seed = 0;
  Device device = Device::kCpu;
  PromptReading prompt = PromptReading::kChunks;
};

/// How keys or values are stored.
struct SideChoice {
  PolicyPart codec;                    ///< of the body
  MethodOptions options;               ///< the codec's, read once
  DType exact = DType::kF16;           ///< of exact rows
  DType body = DType::kF16;            ///< of a body whose rows are plain numbers
  Offers offers;                       ///< on the device
  size_t together = 1;                 ///< body rows that share something in their codes
  std::shared_ptr<const Codec> sizes;  ///< for budgets and estimates; it makes no rows
  std::unique_ptr<Codec> make_codec(Side side) const;
};

/// KV heads of one layer under one rule.
struct CohortPolicy {
  PolicyRule rule;
  MethodOptions options;  ///< the selector's, read once
  Device device = Device::kCpu;
  PromptReading prompt = PromptReading::kChunks;
  int layer = 0;
  std::vector<int> heads;  ///< ascending
  uint64_t model = 0;
  SideChoice keys, values;
  BudgetSite budget;
  SelectorSite site;
  ResolvedSelector selector;
  ScheduleShape schedule;
  size_t slides = 0;      ///< rows that a query sees, its own among them, as the GPU counts; 0: all
  double side_bytes = 0;  ///< beside each body row
  StateSize state;        ///< of one KV head

  bool coded() const { return keys.offers.coded || values.offers.coded; }
  size_t exact_row_bytes() const;  ///< of one KV head
  /// Whether the `body` rows of `of` that stay leave gaps in the groups of a codec. A layer that
  /// slides drops whole groups.
  bool leaves_gaps(size_t body, size_t of) const { return body < of && !selector.needs.all(); }
  /// Rows that are the layer's to protect: none under a sliding window of its own.
  ProtectedRows protected_rows(const ProtectedRows& all) const;
  /// For `compare`.
  Asked asked(bool protect = false) const;
  std::string describe(const ProtectedRows& protect = {}) const;
  /// Adds the most that `tokens` tokens can take. On the GPU room that stores keep free is part of
  /// it; what a store takes for a moment while it grows is not: one of a layer's at a time.
  void estimate(Ledger& ledger, size_t tokens, const ProtectedRows& protect = {}) const;
};

/// A rule in its place, whether the device can do it or not. Throws kInvalidArgument for what
/// contradicts itself, and what selectors and codecs throw for their parameters.
CohortPolicy place_rule(const PolicyRule& rule, const RulePlace& place);
/// The same, if nothing stands against it. Throws kUnsupported with the differences.
CohortPolicy resolve_rule(const PolicyRule& rule, const RulePlace& place);

class ResolvedPolicy {
 public:
  /// Throws kInvalidArgument for layers and heads that the shape lacks, and as resolve_rule does.
  ResolvedPolicy(const Policy& policy, const CacheShape& shape, uint64_t seed, Device device);

  const CacheShape& shape() const { return shape_; }
  PromptReading prompt() const { return prompt_; }
  /// Those of a layer, by their first head.
  std::span<const CohortPolicy> layer(int layer) const {
    return layers_[static_cast<size_t>(layer)];
  }
  /// Throws kUnsupported if a rule of the layer needs the RoPE that queries came with. For callers
  /// that know none: without this, statistics of queries would be of rotated ones.
  void check_without_rope(int layer) const;
  /// Throws kUnsupported if rows cannot be protected under it.
  void check_protect() const;
  /// A line per run of layers that share it.
  std::string describe(const ProtectedRows& protect = {}) const;
  /// The most that `tokens` tokens can take.
  Ledger estimate(size_t tokens, const ProtectedRows& protect = {}) const;

 private:
  CacheShape shape_;
  PromptReading prompt_;
  std::vector<std::vector<CohortPolicy>> layers_;  // [L]
};

}  // namespace pith
