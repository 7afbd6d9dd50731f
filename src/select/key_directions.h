#pragma once
// How unlike the others the keys of a store are: minus the cosine between a key and the mean of all
// the keys' directions (Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction", 2025,
// section 3). Cost: each key is decoded twice, 4 D operations.

#include <span>

#include "rows/cpu/row_store.h"

namespace pith {

/// scores [rows] <- one number a row, from -1 (as most keys) to 1.
void score_directions(std::span<double> scores, const RowStore& store);

}  // namespace pith
