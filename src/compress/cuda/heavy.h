#pragma once
// Heavy rows apart on the GPU (compress/heavy.h): which rows leave the store when it has grown to
// budget + interval, and their move. All KV heads of a layer go together.
//
// Cost of an eviction among R rows a head: a selection by 4 passes over R keys of 4 bytes, where
// rows stay for their keys too another one and two passes over these; R rows are read and written
// twice, or those that leave once where they leave the run altogether.

#include "compress/cuda/judged_rows.h"
#include "kernels/cuda/layer.h"
#include "plan/heavy_rule.h"

namespace pith::cuda {

/// space.kept [G, rows] <- the numbers of the rows that stay, ascending, then those of the others,
/// ascending: budget - by_key rows with the most mass, of the others `by_key` rows whose keys are
/// most unlike all others. Of equals the newer rows stay.
void choose_heavy(const SelectSpace& space, const JudgedRows& rows, const HeavySizes& sizes,
                  cudaStream_t stream);

/// Rows kept[first], ... of every head to to.row, ...
struct GatherCall {
  JudgedRows rows;
  int first = 0, count = 0;
  RowTarget to;
  int32_t* positions = nullptr;  // [G, positions_stride] of the rows from to.row on, or null
  size_t positions_stride = 0;
};
void gather_rows(const SelectSpace& space, const GatherCall& call, cudaStream_t stream);

/// What choose_heavy lets leave moves to the front, and what stays follows: rows, through `room`
/// for as many; and what lies beside them, positions, which are all written, and mass: `space` has
/// room for logits.
void leave_first(const SelectSpace& space, const JudgedRows& rows, int stay, const RowTarget& room,
                 cudaStream_t stream);
void leave_first_sides(const SelectSpace& space, const JudgedRows& rows, int stay,
                       cudaStream_t stream);

}  // namespace pith::cuda
