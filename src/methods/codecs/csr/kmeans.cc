#include "methods/codecs/csr/kmeans.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/philox.h"

namespace pith {
namespace {

constexpr size_t kBlock = 64;  // rows assigned at a time
constexpr uint32_t kFirstDraw = 0x4B4D;

}  // namespace

void normalise_rows(const Kernels& kernels, float* x, size_t count, size_t dim) {
  for (size_t i = 0; i < count; ++i) {
    const float norm = std::sqrt(kernels.dot(x + i * dim, x + i * dim, dim));
    if (norm > 0) kernels.scale(x + i * dim, 1 / norm, dim);
  }
}

std::vector<uint32_t> random_order(size_t n, size_t count, uint64_t seed, uint32_t draw) {
  const Philox random(seed, 0, 0);
  std::vector<std::pair<uint64_t, uint32_t>> keyed(n);
  for (size_t i = 0; i < n; ++i) keyed[i] = {random.word64(i, draw), static_cast<uint32_t>(i)};
  std::sort(keyed.begin(), keyed.end());
  std::vector<uint32_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = keyed[i % n].second;
  return order;
}

std::vector<float> kmeans(const Kernels& kernels, const float* x, size_t count, size_t dim,
                          const KMeansOptions& options) {
  const size_t k = options.clusters;
  std::vector<float> centroids(k * dim), columns(dim * k), dots(kBlock * k), halves(k);
  const auto start = random_order(count, k, options.seed, kFirstDraw);
  for (size_t j = 0; j < k; ++j) std::copy_n(x + start[j] * dim, dim, centroids.data() + j * dim);
  std::vector<float> sums(k * dim);
  std::vector<size_t> members(k);
  for (size_t round = 0; round < options.iterations; ++round) {
    kernels.transpose_rows(columns.data(), k, {centroids.data(), DType::kF32, dim}, k);
    for (size_t j = 0; j < k; ++j) {
      const float* c = centroids.data() + j * dim;
      halves[j] = kernels.dot(c, c, dim) / 2;
    }
    std::fill(sums.begin(), sums.end(), 0.0f);
    std::fill(members.begin(), members.end(), 0);
    for (size_t t = 0; t < count; t += kBlock) {
      const size_t n = std::min(kBlock, count - t);
      kernels.gemm({dots.data(), k, x + t * dim, dim, columns.data(), k, n, k, dim});
      for (size_t i = 0; i < n; ++i) {
        // The nearest has the largest <x, c> - |c|^2 / 2.
        const float* row = dots.data() + i * k;
        size_t best = 0;
        for (size_t j = 1; j < k; ++j)
          if (row[j] - halves[j] > row[best] - halves[best]) best = j;
        kernels.add(sums.data() + best * dim, x + (t + i) * dim, dim);
        ++members[best];
      }
    }
    const auto spare =
        random_order(count, k, options.seed, static_cast<uint32_t>(kFirstDraw + 1 + round));
    for (size_t j = 0; j < k; ++j) {
      float* c = centroids.data() + j * dim;
      std::copy_n(members[j] > 0 ? sums.data() + j * dim : x + spare[j] * dim, dim, c);
      if (members[j] > 0) kernels.scale(c, 1 / static_cast<float>(members[j]), dim);
    }
  }
  return centroids;
}

}  // namespace pith
