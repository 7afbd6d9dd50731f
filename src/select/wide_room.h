#pragma once
// Room for halvings that all blocks of a GPU carry out together (select/cuda/halving_wide.cu), as
// kernels need it and estimates count it.

#include <cstddef>

#include "core/both_sides.h"

namespace pith {

/// Rows of a run from which they pay: a block walks through as many by itself.
inline constexpr int kWidePanel = 256;

/// f32 numbers of a run of S rows: what is known of it, [2, S] offsets and signs, and two sums of
/// each thread for each tile.
struct WideRoom {
  static constexpr size_t kKnown = 8, kTile = 64, kTileSums = 2 * 256;

  PITH_BOTH_SIDES static constexpr size_t numbers_of_run(size_t rows) {
    const size_t tiles = (rows + kTile - 1) / kTile;
    return kKnown + tiles * (2 * kTile + kTileSums);
  }
};

/// The most bytes for each head of a coreset (plan/coreset.h) that halves up to `rows` rows at
/// once: whole buckets have 2 `rows` picks in at most 16 runs, and so many survivors.
constexpr size_t wide_coreset_bytes(size_t rows) {
  if (rows < 2 * kWidePanel) return 0;
  const size_t picks = 2 * rows;
  return 4 * (2 * picks + WideRoom::numbers_of_run(picks) + 16 * WideRoom::kKnown);
}

}  // namespace pith
