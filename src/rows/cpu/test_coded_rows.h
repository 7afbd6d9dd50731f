#pragma once
// For tests of codecs: makes rows of a codec, and decodes all of them.

#include <memory>
#include <vector>

#include "machine.h"
#include "rows/cpu/coded_rows.h"

namespace pith::test {

inline std::unique_ptr<CodedRows> rows_of(const Machine& machine, const Codec& codec, size_t dim,
                                          uint64_t seed = 0) {
  RowsRequest request;
  request.dim = dim;
  request.seed = seed;
  return codec.make_rows(machine.context, request);
}

/// [rows, D]
inline std::vector<float> decoded(const CodedRows& rows) {
  std::vector<float> x(rows.rows() * rows.dim());
  rows.decode(x.data(), 0, rows.rows());
  return x;
}

/// Of `queries` queries [queries, D] with all rows: [queries, rows]
inline std::vector<float> scores_of(const CodedRows& rows, const std::vector<float>& q,
                                    size_t queries) {
  std::vector<float> prepared(rows.prepared_size(queries)), out(queries * rows.rows());
  rows.prepare(prepared.data(), q.data(), queries);
  rows.scores(out.data(), rows.rows(), q.data(), prepared.data(), queries, 0, rows.rows(), 1);
  return out;
}

inline double dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

}  // namespace pith::test
