#pragma once
// A selector: a rule (src/plan) gives when and how many rows stay, for all devices. Here, for the
// CPU, a chooser gives which rows; where rows stand for others, the shared halver does. One
// instance serves the KV heads of one layer that share a policy rule, so that work is batched over
// heads; it sees rows in blocks as they leave the window.

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/rule.h"
#include "rows/cpu/row_store.h"
#include "select/halver.h"
#include "select/query_energy.h"

namespace pith {

inline constexpr size_t kUnbounded = std::numeric_limits<size_t>::max();

/// The queries of one step, before it attends.
struct QueryBlock {
  const float* q = nullptr;    // [T, H, D], after RoPE, every query head of the layer
  size_t tokens = 0;           // T
  size_t query_heads = 0;      // H
  int64_t first_position = 0;  ///< of the first query
  const Rope* rope = nullptr;  ///< null if the caller has none
};

/// The body of one KV head: its stores, in the order of their making.
class HeadBody {
 public:
  HeadBody(const Context& context, const RowFormat& format);

  /// Store 0 always exists; selectors that keep rows for one sum alone (Role) add others.
  RowStore& store(size_t i = 0) { return stores_[i]; }
  const RowStore& store(size_t i = 0) const { return stores_[i]; }
  size_t stores() const { return stores_.size(); }
  RowStore& add_store(Role role);
  /// Before the step's rows come. Passes queries to the keys' codec, if it needs them.
  void observe(const QueryBlock& queries);
  /// Loading: into a body that was just made.
  void archive(Archive& a, size_t tokens);
  uint32_t head() const { return format_.head; }
  size_t rows() const {
    size_t n = 0;
    for (const RowStore& s : stores_) n += s.rows();
    return n;
  }
  void add_to(Ledger& ledger) const;

 private:
  Context context_;
  RowFormat format_;
  std::vector<RowStore> stores_;
  std::optional<QueryEnergy> energy_;  // if the codec needs it
};

/// A selector's place.
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

/// Where a chooser's state belongs.
struct ChooserPlace {
  std::span<HeadBody> bodies;  ///< as they are, or were loaded
  const Rope* rope = nullptr;  ///< as queries came with it
  size_t tokens = 0;           ///< seen
};

/// The rows of one head that a selection leaves.
struct Chosen {
  bool all_held = false;        ///< every row of the body stays
  std::vector<uint32_t> held;   ///< else these, ascending
  std::vector<uint32_t> fresh;  ///< of the rows that join, ascending
};

/// The half of a selector that chooses rows, on the CPU. Its Rule decides when and how many.
class Chooser {
 public:
  virtual ~Chooser() = default;

  /// Before choose() of a selection: for state that its heads share.
  virtual void prepare(const Step& /*step*/, std::span<HeadBody> /*bodies*/) {}
  /// Names the rows of head `h` that a kSelect leaves. Called for several heads at the same time.
  virtual Chosen choose(const Step& step, size_t h, HeadBody& body, const NewRows& fresh);
  /// After a selection: the rows that were named are all that is left.
  virtual void kept(const Step& /*step*/, std::span<HeadBody> /*bodies*/) {}
  /// kTake: rows go through the chooser's own algorithm. Called for several heads at the same time.
  virtual void take(size_t h, HeadBody& body, const NewRows& rows);
  /// kWeigh: the number that the step's weight adds to the scores.
  virtual float log_weight(const Step& step) const;
  /// Sees each pass's queries before they attend (ExpectedAttention's statistics).
  virtual void observe(std::span<HeadBody> /*bodies*/, const QueryBlock& /*queries*/) {}
  /// All state from step to step beside the rows. Functions of seeds and rows are computed
  /// again.
  virtual void archive(Archive& a, const ChooserPlace& place);
  /// The scores of every row of each body now, larger stays: [heads][rows], or nothing from a
  /// selector that has no scores.
  virtual std::vector<std::vector<double>> scores(std::span<HeadBody> /*bodies*/) const {
    return {};
  }
  /// Bytes of state beside the rows (counts towards metadata).
  virtual size_t state_bytes() const { return 0; }
  virtual size_t allocated_state_bytes() const { return state_bytes(); }
  virtual std::unique_ptr<Chooser> clone() const = 0;
};

/// Carries a rule out on the CPU.
struct SelectorParts {
  std::shared_ptr<const Rule> rule;
  std::unique_ptr<Chooser> chooser = nullptr;      ///< null if the rule never selects
  std::shared_ptr<const Halver> halver = nullptr;  ///< null unless rows are picked and halved

  SelectorParts clone() const {
    return {rule, chooser ? chooser->clone() : nullptr,
            halver ? std::make_shared<const Halver>(*halver) : nullptr};
  }
};

}  // namespace pith
