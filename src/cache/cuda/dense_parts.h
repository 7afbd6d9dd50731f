#pragma once
// The dense rows of KV heads under one rule as attention sees them: runs of one weight, oldest
// first. Their number never changes, but for a chunk's.

#include <array>
#include <span>

#include "cache/cuda/head_stores.h"

namespace pith::cuda {

/// Dense rows of one weight.
struct DensePart {
  RowTarget at;
  size_t rows = 0;
  float log_weight = 0;
  bool apart = false;  ///< each row has its own: see DeviceChooser::weighs_rows
};

/// Rows that are about to come, last, to where they lie in the end.
struct NewRows {
  size_t sink = 0, run = 0, of_protected = 0;
};

/// The sink, then what lies behind the codes, or behind a body that rows flow into; the last has
/// the newest.
struct DenseParts {
  std::array<DensePart, kMostWeights + 2> part;
  size_t count = 0;
  size_t behind = 1;  ///< the first that lies behind those
  void add(const DensePart& one) { part[count++] = one; }
  std::span<const DensePart> all() const { return {part.data(), count}; }
};

/// How many there are at most.
size_t most_parts(const HeadStores& stores);
/// `run`: where the run's rows lie.
DenseParts parts_of(const HeadStores& stores, const NewRows& fresh, const RowTarget& run);
/// As a chunk of `tokens` sees them, with their rows: those of one weight side by side are one.
DenseParts parts_of_chunk(const HeadStores& stores, size_t tokens, const RowTarget& run);

}  // namespace pith::cuda
