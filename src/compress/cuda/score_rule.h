#pragma once
// Selectors on the GPU that judge rows where they lie: the contract of a rule (its row in
// methods/registry_cuda.cc makes one) and the steps that rules share. How many rows stay and
// when they are judged depends on counts alone, so the host plans without asking; which ones stay
// only the device knows. All KV heads of a layer are judged together: scores, the choice of the
// best, and the move of what stays are a launch each.
//
// Cost of a selection among R rows a head: the rule's own, 4 passes over R keys of 4 bytes, and
// what stays is read and written once.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "compress/selector.h"
#include "pith/dtype.h"
#include "plan/best_rule.h"

namespace pith::cuda {

/// What a rule has kept of queries, as a judgement reads it.
struct SeenQueries {
  const float* state = nullptr;
  int group = 1;                                     ///< query heads a KV head
  int64_t position = 0;                              ///< of the next query
  int64_t count = 0;                                 ///< behind the sink
  const std::vector<double>* frequencies = nullptr;  // [D/2] of RoPE on the host, or null
};

/// Rows of a layer's body, `rows` of every KV head.
struct JudgedRows {
  DType dtype = DType::kF16;        ///< kF16 or kBF16
  int heads = 0, dim = 0;           // G, D
  void *k = nullptr, *v = nullptr;  // [G, head_stride / D, D]
  size_t head_stride = 0;           ///< numbers
  /// Of the first `known` rows; row known + i has first_position + i.
  int32_t* positions = nullptr;  // [G, side_stride]
  int known = 0;
  int64_t first_position = 0;
  int judged = 0;         ///< of the first rows: those that a judgement left
  float* mass = nullptr;  // [G, side_stride], or null
  size_t side_stride = 0;
  float* log_weights = nullptr;  // [side_stride], of rules that weigh rows one by one
  int rows = 0;
  int step = 0;  ///< judgements at this moment so far
  SeenQueries queries;
};

/// The queries of a step, before they attend.
struct StepQueries {
  DType dtype = DType::kF16;                   ///< kF16 or kBF16
  int query_heads = 0, kv_heads = 0, dim = 0;  // H, G, D
  int tokens = 0;                              // T
  const void* q = nullptr;                     // [T, H, D], after RoPE
  float* state = nullptr;                      ///< ScoreRule::state_numbers
  float* scratch = nullptr;                    // [T, H, D], of chunks
  const double* frequencies = nullptr;         // [D/2] of RoPE, or null
};
/// Where they stand.
struct QueryNote {
  int64_t position = 0;  ///< of the first
  int32_t skip = 0;      ///< the first ones that are the sink's
  int32_t seen = 0;      ///< queries behind the sink before this step
};

inline constexpr int kSelectSums = 16;  // of D numbers for each head that rules may use

/// Memory for one selection at a time.
struct SelectSpace {
  uint32_t* keys = nullptr;  // [G, stride]
  int32_t* kept = nullptr;   // [G, stride]
  float* sums = nullptr;     // [G, kSelectSums, D]
  float* logits = nullptr;   // [H, stride], for rules that keep something of queries
  size_t stride = 0;
};

/// space.kept [G, rows] <- the numbers of the `keep` rows with the largest keys, ascending, then
/// those of the others, ascending; of equal keys the newer rows stay.
void choose_rows(const SelectSpace& space, int heads, int rows, int keep, cudaStream_t stream);

/// How many rows of a head stand where. Counts alone: the same for all heads.
struct BodyCounts {
  size_t seen = 0;                   ///< rows that have left the window
  size_t coded = 0;                  ///< settled rows in their codes: they count no more below
  size_t held = 0;                   ///< rows in the body
  size_t judged = 0, judged_at = 0;  ///< rows that a judgement left, when `seen` was that
  size_t steps = 0;                  ///< judgements at this moment so far
};
enum class Moment { kBeforeRow, kRow, kTokenEnd, kChunkEnd, kPromptEnd };
/// Of the body's rows first, ..., held - 1 `keep` stay. `first` is 0 for rules without parts.
struct Judgement {
  size_t first = 0, keep = 0;
};
/// Rows of one weight, in the body's order; what is left has weight 1.
struct WeightedPart {
  size_t rows = 0;
  float log_weight = 0;
  bool apart = false;  ///< each row has its own: see weighs_rows
};

class ScoreRule {
 public:
  virtual ~ScoreRule() = default;
  /// Asked again after each judgement, until there is none. kBeforeRow and kRow: around each row
  /// that leaves the window.
  virtual std::optional<Judgement> judge(const BodyCounts& counts, Moment moment) const = 0;
  /// space.kept [G, keep] <- the numbers of the rows that stay, ascending.
  virtual void choose(const SelectSpace& space, const JudgedRows& rows, int keep,
                      cudaStream_t stream) const = 0;
  /// Numbers that the rule keeps of the queries that pass, 0 at first; `heads`: of queries.
  virtual size_t state_numbers(size_t /*heads*/, size_t /*dim*/) const { return 0; }
  /// Sees queries before they attend. A token's note [1] is read on the device, so that a graph
  /// stays valid.
  virtual void observe_token(const StepQueries& /*queries*/, const QueryNote* /*note*/,
                             cudaStream_t) const {}
  virtual void observe_chunk(const StepQueries& /*queries*/, const QueryNote& /*note*/,
                             cudaStream_t) const {}
  /// Whether queries attend times a factor of their own (Rule::query_factor): `scaled` [T, H,
  /// D]
  /// <- those of a step. As with the functions above, the note is on the device for a token.
  virtual bool scales_queries() const { return false; }
  virtual void scale_token(void* /*scaled*/, const StepQueries& /*queries*/,
                           const QueryNote* /*note*/, cudaStream_t) const {}
  virtual void scale_chunk(void* /*scaled*/, const StepQueries& /*queries*/,
                           const QueryNote& /*note*/, cudaStream_t) const {}
  /// Whether choose() looks at keys or values.
  virtual bool reads_rows() const { return true; }
  /// Whether choose() looks at positions.
  virtual bool reads_positions() const { return false; }
  /// Whether mass() ever asks for any, and what it asks of a step of `tokens` queries.
  virtual bool wants_mass() const { return false; }
  virtual MassRequest mass(size_t /*tokens*/, const BodyCounts& /*counts*/) const { return {}; }
  /// A factor on the mass of rows that stay, at each judgement.
  virtual float mass_kept() const { return 1; }
  /// Parts of weights other than 1: their number never changes.
  virtual size_t parts() const { return 0; }
  virtual void weigh(std::span<WeightedPart> /*parts*/, const BodyCounts& /*counts*/) const {}
  /// Whether the rows that a judgement left, one part, have a weight each, which follows from
  /// counts: it is the same in all heads. choose() then reads JudgedRows::log_weights of the rows
  /// judged before and writes those of what stays.
  virtual bool weighs_rows() const { return false; }
  /// Whether rows are ever settled: then any codec may store them; the rows of rules without parts
  /// may be in codecs that code rows alone. Settled are the body's oldest that
  /// are never judged again; they have one weight, the first part's.
  virtual bool settles() const { return false; }
  virtual size_t settled(const BodyCounts& /*counts*/) const { return 0; }
  virtual float settled_log_weight() const { return 0; }
};

/// Rules that give each row a number and keep the rows with the largest: when and how many is the
/// same KeepBest as on the CPU.
class BestRows : public ScoreRule {
 public:
  explicit BestRows(std::shared_ptr<const KeepBest> rule) : rule_(std::move(rule)) {}

  std::optional<Judgement> judge(const BodyCounts& counts, Moment moment) const final;
  void choose(const SelectSpace& space, const JudgedRows& rows, int keep,
              cudaStream_t stream) const final {
    score(space, rows, stream);
    choose_rows(space, rows.heads, rows.rows, keep, stream);
  }
  bool wants_mass() const final { return mass(1, {}).queries > 0; }
  MassRequest mass(size_t tokens, const BodyCounts& counts) const final;

 protected:
  /// space.keys <- a number for each row (key_of in order_key.cuh makes it).
  virtual void score(const SelectSpace& space, const JudgedRows& rows,
                     cudaStream_t stream) const = 0;
  /// What stays does not depend on when rows are judged: a chunk's are judged once, at its end.
  virtual bool any_time() const { return false; }

 private:
  std::shared_ptr<const KeepBest> rule_;
};

/// Rows named in space.kept move to the front of the body, and the `after` rows behind the body
/// follow them, with their mass. Positions of what stays are written.
struct KeepCall {
  JudgedRows rows;
  int keep = 0, after = 0;
  int after_known = 0;    ///< of those, the first whose positions are stored: they move too
  float mass_factor = 1;  ///< on the mass of what stays of the body
};
void keep_rows(const SelectSpace& space, const KeepCall& call, cudaStream_t stream);
/// The rows alone, and what lies beside them alone.
void move_rows(const SelectSpace& space, const KeepCall& call, cudaStream_t stream);
void move_sides(const SelectSpace& space, const KeepCall& call, cudaStream_t stream);

/// Rows of a body, from `first` on, in a new order: `named` of the `rows` that were judged, those
/// in space.kept from number `begin` on and around, then the `behind` rows behind the judged.
struct NewOrder {
  int heads = 0, first = 0, rows = 0;
  int begin = 0, named = 0, behind = 0;
};
/// Their numbers [G, space.stride] in the body, for codes that move. They lie in space.keys.
const int32_t* order_rows(const SelectSpace& space, const NewOrder& order, cudaStream_t stream);

/// to [count] <- value.
void fill_numbers(float* to, size_t count, float value, cudaStream_t stream);

}  // namespace pith::cuda
