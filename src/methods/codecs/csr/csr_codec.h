#pragma once
// The codec of one layer's keys or values: the format fitted to head_dim, and the offline atoms.

#include <memory>

#include "methods/codecs/csr/dictionary.h"

namespace pith {

class CsrCodec final : public Codec {
 public:
  /// `offline` may be null.
  CsrCodec(const CsrFormat& format, Side side, std::shared_ptr<const DictionaryFile> offline)
      : format_(format), side_(side), offline_(std::move(offline)) {}
  /// Rows leave the window in blocks, so that decoding steps share the work that a call costs.
  size_t block_rows() const override { return 16; }
  bool pre_rope() const override { return side_ == Side::kKeys && !format_.rotated_keys; }
  double bytes_per_row(size_t) const override { return static_cast<double>(format_.row_bytes()); }
  double most_bytes(size_t rows, size_t dim, bool evicted) const override;
  /// Codes of two kinds, outliers and where they are, rows that wait, atoms and their candidates.
  size_t buffers() const override { return 7; }
  size_t shared_bytes() const override { return offline_bytes_; }
  size_t table_bytes(const RowsRequest& request) const override;
  size_t coding_bytes(const RowsRequest& request, size_t rows) const override;
  size_t width_to_come(size_t dim) const override { return fitted(dim).chunks * format_.online; }
  void check_context(size_t tokens) const override;
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override;
  /// The format with the parts that head_dim and side decide. Throws kInvalidArgument.
  CsrFormat fitted(size_t dim) const;

 private:
  CsrFormat format_;
  Side side_;
  std::shared_ptr<const DictionaryFile> offline_;
  mutable size_t offline_bytes_ = 0;  // known when the first rows are made, as the layer is
};

}  // namespace pith
