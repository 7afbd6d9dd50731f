#pragma once
// Selectors on the GPU that judge rows where they lie: the contract of a rule (its registry row
// makes one, SelectorRow::make_on_gpu) and the steps that rules share. How many rows stay and
// when they are judged depends on counts alone, so the host plans without asking; which ones stay
// only the device knows. All KV heads of a layer are judged together: scores, the choice of the
// best, and the move of what stays are a launch each.
//
// Cost of a selection among R rows a head: the rule's own, 4 passes over R keys of 4 bytes, and
// what stays is read and written once.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "compress/selector.h"
#include "pith/dtype.h"

namespace pith::cuda {

/// Rows of a layer's body: the first `rows` of every KV head.
struct JudgedRows {
  DType dtype = DType::kF16;        ///< kF16 or kBF16
  int heads = 0, dim = 0;           // G, D
  void *k = nullptr, *v = nullptr;  // [G, head_stride / D, D]
  size_t head_stride = 0;           ///< numbers
  /// Of the first `known` rows; row known + i has first_position + i.
  int32_t* positions = nullptr;  // [G, side_stride]
  int known = 0;
  int64_t first_position = 0;
  float* mass = nullptr;  // [G, side_stride], or null
  size_t side_stride = 0;
  int rows = 0;
};

inline constexpr int kSelectSums = 16;  // of D numbers for each head that rules may use

/// Memory for one selection at a time.
struct SelectSpace {
  uint32_t* keys = nullptr;  // [G, stride]
  int32_t* kept = nullptr;   // [G, stride]
  float* sums = nullptr;     // [G, kSelectSums, D]
  size_t stride = 0;
};

/// space.kept [G, keep] <- the numbers of the `keep` rows with the largest keys, ascending; of
/// equal keys the newer rows stay.
void choose_rows(const SelectSpace& space, int heads, int rows, int keep, cudaStream_t stream);

class ScoreRule {
 public:
  virtual ~ScoreRule() = default;
  /// space.kept [G, keep] <- the numbers of the rows that stay, ascending.
  virtual void choose(const SelectSpace& space, const JudgedRows& rows, int keep,
                      cudaStream_t stream) const = 0;
  /// Rows of a body of `held` that stay, once `n` rows have left the window.
  virtual size_t keep(size_t held, size_t judged, size_t n) const = 0;
  /// Rows that a body holds when it is judged; with `before_more`, when another comes. `judged` of
  /// them stayed the last time.
  virtual size_t limit(size_t n) const = 0;
  virtual bool before_more() const { return false; }
  /// A prompt's end is a moment to judge.
  virtual bool at_prompt_end() const { return true; }
  /// What stays does not depend on when rows are judged: a chunk's are judged once.
  virtual bool any_time() const { return false; }
  /// Attention mass wanted of a step of `tokens` queries, `until` rows before the next selection.
  virtual MassRequest mass(size_t /*tokens*/, size_t /*until*/) const { return {}; }
  /// A factor on the mass of rows that stay, at each selection.
  virtual float mass_kept() const { return 1; }
  /// Of rows that stayed when `n` rows had left the window.
  virtual float log_weight(size_t /*n*/) const { return 0; }
  virtual bool weighted() const { return false; }
};

/// Rules that give each row a number and keep the rows with the largest.
class BestRows : public ScoreRule {
 public:
  void choose(const SelectSpace& space, const JudgedRows& rows, int keep,
              cudaStream_t stream) const final {
    score(space, rows, stream);
    choose_rows(space, rows.heads, rows.rows, keep, stream);
  }
  size_t keep(size_t, size_t, size_t n) const final { return budget_at(n); }
  size_t limit(size_t n) const final { return budget_at(n) + interval(); }
  virtual size_t budget_at(size_t n) const = 0;
  /// Rows by which a body may outgrow its budget.
  virtual size_t interval() const = 0;

 protected:
  /// space.keys <- a number for each row (key_of in order_key.cuh makes it).
  virtual void score(const SelectSpace& space, const JudgedRows& rows,
                     cudaStream_t stream) const = 0;
};

/// Rows named in space.kept move to the front of the body, and the `after` rows behind the body
/// follow them, with their mass. Positions of what stays are written.
struct KeepCall {
  JudgedRows rows;
  int keep = 0, after = 0;
  float mass_factor = 1;  ///< on the mass of what stays of the body
};
void keep_rows(const SelectSpace& space, const KeepCall& call, cudaStream_t stream);

}  // namespace pith::cuda
