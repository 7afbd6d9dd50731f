#pragma once
// What tests of codecs begin and end with: rows of a codec, and all of them decoded.

#include <memory>
#include <vector>

#include "machine.h"
#include "rows/cpu/coded_rows.h"

namespace pith::test {

inline std::unique_ptr<CodedRows> rows_of(const Machine& machine, const Codec& codec, size_t dim) {
  RowsRequest request;
  request.dim = dim;
  return codec.make_rows(machine.context, request);
}

/// [rows, D]
inline std::vector<float> decoded(const CodedRows& rows) {
  std::vector<float> x(rows.rows() * rows.dim());
  rows.decode(x.data(), 0, rows.rows());
  return x;
}

}  // namespace pith::test
