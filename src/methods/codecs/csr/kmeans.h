#pragma once
// Lloyd's k-means: where a dictionary's training begins, and a baseline of its own. Cost: count
// clusters d multiply-adds an iteration.

#include <vector>

#include "core/memory.h"
#include "kernels/kernels.h"

namespace pith {

struct KMeansOptions {
  size_t clusters = 0;  // K
  size_t iterations = 10;
  uint64_t seed = 0;
};

/// x [count, dim]. Centroids [K, dim], begun from distinct rows; a cluster that loses all rows
/// starts again at a random one. With fewer rows than clusters, rows repeat.
std::vector<float> kmeans(const Kernels& kernels, const float* x, size_t count, size_t dim,
                          const KMeansOptions& options);

/// x [count, dim] <- rows of norm 1; zero rows stay.
void normalise_rows(const Kernels& kernels, float* x, size_t count, size_t dim);

/// `count` of [0, n) without repeats (but for count > n), in random order: a function of the seed
/// and `draw` alone.
std::vector<uint32_t> random_order(size_t n, size_t count, uint64_t seed, uint32_t draw);

}  // namespace pith
