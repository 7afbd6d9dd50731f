#include "rows/cpu/outlier_rows.h"

namespace pith {

void OutlierRows::add_scores(const Kernels& kernels, const Scores& s, size_t first,
                             size_t count) const {
  std::vector<float> by_channel(s.dim * s.queries);  // [D, M]
  for (size_t m = 0; m < s.queries; ++m)
    for (size_t c = 0; c < s.dim; ++c) by_channel[c * s.queries + m] = s.q[m * s.dim + c];
  std::vector<float> run;
  for_runs(first, count, [&](const SparseRows& rows, size_t t, size_t n) {
    run.resize(s.queries * n);
    kernels.sparse_dots(run.data(), n, by_channel.data(), s.dim, s.queries, rows, n, s.scale);
    for (size_t m = 0; m < s.queries; ++m) kernels.add(s.out + m * s.ld + t, run.data() + m * n, n);
  });
}

void OutlierRows::add_sums(const Kernels& kernels, float* acc, const float* p, size_t ld,
                           size_t queries, size_t dim, size_t first, size_t count) const {
  if (per_row_ == 0) return;
  std::vector<float> by_channel(dim * queries);  // [D, M]
  for_runs(first, count, [&](const SparseRows& rows, size_t t, size_t n) {
    kernels.add_coefficients(by_channel.data(), dim, p + t, ld, queries, rows, n);
  });
  for (size_t m = 0; m < queries; ++m)
    for (size_t c = 0; c < dim; ++c) acc[m * dim + c] += by_channel[c * queries + m];
}

}  // namespace pith
