#pragma once
// Which adjacent layers are alike enough to share a dictionary (CSR, section 3.1): rows of norm 1
// of two layers are projected to their common two principal axes, and the layers' 200 x 200
// histograms compared by Jensen-Shannon divergence (base 2: 0 to 1). Histograms of finite samples
// differ even if their distributions do not: 24,576 rows by 0.20, which is the paper's threshold.
// So the divergence d0 of a random split of both layers' rows is taken off: (d - d0) / (1 - d0).

#include <span>
#include <vector>

#include "methods/codecs/csr/dictionary.h"

namespace pith {

/// x, y [count, dim], as many rows each. Throws nothing; zero rows count as they are. 1 if a random
/// split looks as different: too few rows to tell.
double layer_divergence(std::span<const float> x, std::span<const float> y, size_t dim);

struct GroupingOptions {
  double pairwise = 0.2;  ///< delta1: any two layers of a group
  double along = 1;       ///< delta2: sum over neighbours in a group
};

/// Greedy from layer 0 on: a layer joins the group before it if both bounds hold. rows [L] of
/// [count, dim] each.
std::vector<LayerGroup> group_layers(std::span<const std::vector<float>> rows, size_t dim,
                                     const GroupingOptions& options);

}  // namespace pith
