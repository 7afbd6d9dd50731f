#pragma once
// Rows on the GPU that are selected where they lie, as kernels see them, and what selectors
// share: the choice of the best, and the move of what stays. All KV heads of a layer are selected
// together: scores, the choice and the move are a launch each.
//
// Cost of a selection among R rows per head: the scores' own, 4 passes over R keys of 4 bytes, and
// what stays is read and written once.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/ragged.h"
#include "pith/dtype.h"

namespace pith::cuda {

/// The data of queries that a chooser has kept, as a selection reads them.
struct SeenQueries {
  const float* state = nullptr;
  int group = 1;                                     ///< query heads a KV head
  int64_t position = 0;                              ///< of the next query
  int64_t count = 0;                                 ///< behind the sink
  const std::vector<double>* frequencies = nullptr;  // [D/2] of RoPE on the host, or null
};

/// Rows of a layer's body, `rows` of every KV head.
struct CandidateRows {
  DType dtype = DType::kF16;        ///< kF16 or kBF16
  int heads = 0, dim = 0;           // G, D
  void *k = nullptr, *v = nullptr;  // [G, head_stride / D, D]
  size_t head_stride = 0;           ///< numbers
  /// Of the first `known` rows; row known + i has first_position + i.
  int32_t* positions = nullptr;  // [G, side_stride]
  int known = 0;
  int64_t first_position = 0;
  int selected = 0;       ///< of the first rows: those that a selection left
  float* mass = nullptr;  // [G, side_stride], or null
  size_t side_stride = 0;
  float* log_weights = nullptr;  // [side_stride], of choosers that weigh rows one by one
  int rows = 0;
  SeenQueries queries;
  /// Heads that differ have their rows one behind the other, and so has what lies beside rows and
  /// scratch for them (SelectSpace): `rows` is then the most that a head can have, and strides
  /// count for nothing.
  RaggedHeads ragged = {};

  PITH_BOTH_SIDES int count(size_t head) const { return ragged.rows_of(head, rows); }
  /// Where a head's numbers begin, and what lies beside its rows: `stride` is that of other heads.
  PITH_BOTH_SIDES size_t numbers_at(size_t head) const {
    return ragged.at(head, head_stride, static_cast<size_t>(dim));
  }
  PITH_BOTH_SIDES size_t beside(size_t head, size_t stride) const {
    return ragged.at(head, stride);
  }
};

/// The queries of a step, before they attend.
struct StepQueries {
  DType dtype = DType::kF16;                   ///< kF16 or kBF16
  int query_heads = 0, kv_heads = 0, dim = 0;  // H, G, D
  int tokens = 0;                              // T
  const void* q = nullptr;                     // [T, H, D], after RoPE
  float* state = nullptr;                      ///< DeviceChooser::state_numbers
  float* scratch = nullptr;                    // [T, H, D], of chunks
  const double* frequencies = nullptr;         // [D/2] of RoPE, or null
};
/// Where they stand.
struct QueryNote {
  int64_t position = 0;  ///< of the first
  int32_t skip = 0;      ///< the first ones that are the sink's
  int32_t seen = 0;      ///< queries behind the sink before this step
};

inline constexpr int kSelectSums = 16;  // of D numbers for each head that choosers may use

/// Memory for one selection at a time.
struct SelectSpace {
  uint32_t* keys = nullptr;  // [G, stride]
  int32_t* kept = nullptr;   // [G, stride]
  float* sums = nullptr;     // [G, kSelectSums, D]
  float* logits = nullptr;   // [H, stride], for choosers that keep something of queries
  size_t stride = 0;
  int32_t* stay = nullptr;  // [G] of selections that heads share: how many rows stay
};

/// space.kept [G, rows] <- the numbers of the `keep` rows with the largest keys, ascending, then
/// those of the others, ascending; of equal keys the newer rows stay.
void choose_rows(const SelectSpace& space, int heads, int rows, int keep, cudaStream_t stream);

/// Rows named in `kept` move to the front of the body, and the `after` rows behind the body follow
/// them, with their mass. Positions of what stays are written.
struct KeepCall {
  CandidateRows rows;
  const int32_t* kept = nullptr;  // [G, kept_stride]
  size_t kept_stride = 0;
  int keep = 0, after = 0;
  int after_known = 0;    ///< of those, the first whose positions are stored: they move too
  float mass_factor = 1;  ///< on the mass of what stays of the body
};
void keep_rows(const KeepCall& call, cudaStream_t stream);
/// The rows alone, and what lies beside them alone.
void move_rows(const KeepCall& call, cudaStream_t stream);
void move_sides(const KeepCall& call, cudaStream_t stream);
/// Of many places at once, of equally many heads and channels; what lies beside rows also of
/// others.
void keep_rows(std::span<const KeepCall> calls, cudaStream_t stream);
void move_sides(std::span<const KeepCall> calls, cudaStream_t stream);
void move_rows(std::span<const KeepCall> calls, cudaStream_t stream);

/// Rows of a body, from `first` on, in a new order: `named` of the `rows` that were selected from,
/// those in space.kept from number `begin` on and around, then the `behind` rows behind the
/// selected from.
struct NewOrder {
  int heads = 0, first = 0, rows = 0;
  int begin = 0, named = 0, behind = 0;
};
/// Their numbers [G, space.stride] in the body, for codes that move. They lie in space.keys.
const int32_t* order_rows(const SelectSpace& space, const NewOrder& order, cudaStream_t stream);
struct OrderCall {
  SelectSpace space;
  NewOrder order;
};
/// The same of many places.
void order_rows(std::span<const OrderCall> calls, cudaStream_t stream);

/// to [count] <- value.
void fill_numbers(float* to, size_t count, float value, cudaStream_t stream);

}  // namespace pith::cuda
