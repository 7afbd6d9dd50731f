#pragma once
// The codec of one layer's keys or values: the format fitted to head_dim, and the offline atoms.

#include "methods/csr/csr_rows.h"

namespace pith {

class CsrCodec final : public Codec {
 public:
  CsrCodec(const CsrFormat& format, Side side) : format_(format), side_(side) {}
  /// Rows leave the window in blocks, so that decoding steps share the work that a call costs.
  size_t block_rows() const override { return 16; }
  bool pre_rope() const override { return side_ == Side::kKeys && !format_.rotated_keys; }
  double bytes_per_row(size_t) const override { return static_cast<double>(format_.row_bytes()); }
  double most_bytes(size_t rows, size_t dim, bool evicted) const override;
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override;

 private:
  CsrFormat fitted(size_t dim) const;

  CsrFormat format_;
  Side side_;
};

}  // namespace pith
