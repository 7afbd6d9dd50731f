#pragma once
// Heavy rows apart on the GPU (methods/heavy.h): which rows leave the store each time that it has
// grown to budget + interval, and their move. All KV heads of a layer go together. Many layers'
// selections, and one of a layer, share a launch of one block per head. Several of a layer alone,
// as a prompt has, take three launches each of up to 32 blocks per head.
//
// Cost of a selection among R rows per head: a selection by 3 passes over R keys of 4 bytes, where
// rows stay for their keys too another one and two passes over these. Of a pass: all rows are read
// and written twice, or those that leave once where they leave the run altogether.

#include <span>

#include "kernels/cuda/layer.h"
#include "plan/heavy_rule.h"
#include "select/cuda/candidate_rows.h"

namespace pith::cuda {

/// Selections of one layer's heavy rows, one after the other: of the first budget + interval rows,
/// then of what stayed and the next `interval` rows, until none are left. Each keeps budget -
/// by_key rows with the most mass, of the others `by_key` rows whose keys are most unlike all
/// others. Of equals the newer rows stay.
struct HeavyCall {
  CandidateRows rows;  ///< budget + n * interval, n > 0
  SelectSpace space;
  HeavySizes sizes;
};
/// space.kept [G, rows] <- the numbers of the rows that stay, ascending, then those of the others
/// in the order in which they leave, of one selection ascending.
void choose_heavy(const HeavyCall& call, cudaStream_t stream);
/// Of many places at once, of equally many channels, whose rows are of one type.
void choose_heavy(std::span<const HeavyCall> calls, cudaStream_t stream);

/// Rows kept[first], ... of every head to to.row, ...
struct GatherCall {
  CandidateRows rows;
  const int32_t* kept = nullptr;  // [G, kept_stride]
  size_t kept_stride = 0;
  int first = 0, count = 0;
  RowTarget to;
  int32_t* positions = nullptr;  // [G, positions_stride] of the rows from to.row on, or null
  size_t positions_stride = 0;
};
void gather_rows(const GatherCall& call, cudaStream_t stream);
/// Of many places at once, of equally many channels.
void gather_rows(std::span<const GatherCall> calls, cudaStream_t stream);

/// Heavy rows that leave the run: they are chosen, gathered, and the run closes up.
struct HeavyWork {
  HeavyCall choice;
  GatherCall gather;
  KeepCall keep;
};
/// Of dense rows of equally many heads and channels, all of one type, in few launches.
void split_heavy(std::span<const HeavyWork> layers, cudaStream_t stream);

/// Rows that choose_heavy drops move to the front, and those that stay follow: rows, through `room`
/// for as many; and what lies beside them, positions, which are all written, and mass: `space` has
/// room for logits.
void leave_first(const SelectSpace& space, const CandidateRows& rows, int stay,
                 const RowTarget& room, cudaStream_t stream);
void leave_first_sides(const SelectSpace& space, const CandidateRows& rows, int stay,
                       cudaStream_t stream);

}  // namespace pith::cuda
