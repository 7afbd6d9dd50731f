#pragma once
// The selector contract: which rows of the body stay, and with what weight. One instance serves the
// KV heads of one layer that share a rule, so that work is batched over heads on both devices; it
// sees rows in blocks as they leave the window, never one call per token and head.
//
// A device backend implements the same class over bodies in its own memory: decisions are lists of
// row numbers, and nothing in the contract asks for a row's contents on the host.

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "compress/row_store.h"
#include "plan/step.h"

namespace pith {

inline constexpr size_t kUnbounded = std::numeric_limits<size_t>::max();

/// The body of one KV head: its stores, in the order of their making.
class HeadBody {
 public:
  HeadBody(const Context& context, const RowFormat& format)
      : context_(context), format_(format), stores_{} {
    stores_.emplace_back(context, format);
  }

  /// Store 0 always exists; selectors that keep rows for one sum alone (Role) add others.
  RowStore& store(size_t i = 0) { return stores_[i]; }
  const RowStore& store(size_t i = 0) const { return stores_[i]; }
  size_t stores() const { return stores_.size(); }
  RowStore& add_store(Role role) { return stores_.emplace_back(context_, format_, role); }
  uint32_t head() const { return format_.head; }
  size_t rows() const {
    size_t n = 0;
    for (const RowStore& s : stores_) n += s.rows();
    return n;
  }

 private:
  Context context_;
  RowFormat format_;
  std::vector<RowStore> stores_;
};

/// What a selector is told about its place.
struct SelectorSite {
  uint64_t seed = 0;
  uint32_t layer = 0;
  size_t layers = 0;
  size_t heads = 0;               ///< KV heads that this instance serves
  uint32_t first_head = 0;        ///< on the GPU: the first of them, which are neighbours there
  size_t group = 1;               ///< query heads per KV head
  size_t head_dim = 0;            // D
  float scale = 0;                ///< of q.k
  uint32_t sink = 0, window = 0;  ///< exact rows around the body
  int64_t sliding_window = 0;     ///< the layer's own: older rows are never seen; 0 = none
};

/// The queries of one step, before it attends.
struct QueryBlock {
  const float* q = nullptr;    // [T, H, D], after RoPE, every query head of the layer
  size_t tokens = 0;           // T
  size_t query_heads = 0;      // H
  int64_t first_position = 0;  ///< of the first query
  const Rope* rope = nullptr;  ///< null if the caller has none
};

class Selector {
 public:
  virtual ~Selector() = default;

  /// Rows that leave the window, oldest first, one entry a head, equally many in each (with gaps
  /// in their positions where rows are protected): the selector appends those it wants to bodies[h]
  /// and drops those it no longer wants. May be called with any multiple of block_rows() rows; the
  /// rows kept must not depend on how a stream is cut into calls.
  virtual void ingest(std::span<HeadBody> bodies, std::span<const NewRows> rows) = 0;
  /// The prompt is complete (SnapKV selects here).
  virtual void end_prefill(std::span<HeadBody> /*bodies*/) {}
  /// Rows come in multiples of this.
  virtual size_t block_rows() const { return 1; }
  /// Asked before each step of `tokens` queries. Whether any is asked at all must not change: rows
  /// carry mass from their first day or never.
  virtual MassRequest mass(size_t /*tokens*/) const { return {}; }
  /// Sees each step's queries before they attend (ExpectedAttention's statistics).
  virtual void observe(std::span<HeadBody> /*bodies*/, const QueryBlock& /*queries*/) {}
  /// A factor on the scores of a query that has seen `seen` tokens, itself included (BUZZ's log n);
  /// it holds for every row that the query attends to. 1 for almost all.
  virtual float score_factor(int64_t /*seen*/) const { return 1; }
  /// Rows in the body of one head after `n` rows have left the window: the most it can be.
  virtual size_t rows_after(size_t n) const = 0;
  /// Bytes of state beside the rows (counts towards metadata).
  virtual size_t state_bytes() const { return 0; }
  virtual size_t allocated_state_bytes() const { return state_bytes(); }
  /// The whole policy as the user would write it, budgets as rows.
  virtual std::string describe() const = 0;
  virtual std::unique_ptr<Selector> clone() const = 0;
};

}  // namespace pith
