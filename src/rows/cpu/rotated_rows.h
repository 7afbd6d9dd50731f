#pragma once
// Rows coded after a Walsh-Hadamard transform, around any codec. The transform is orthonormal and
// its own inverse, so it changes nothing in exact arithmetic, and spreads outlying channels over
// all of them, which a shared scale can then follow. Queries get the same transform, sums its
// inverse. A D that is no power of two is transformed in blocks: 96 = 64 + 32. Cost: D log2 D
// additions per row coded, query and result.

#include <utility>

#include "rows/cpu/coded_rows.h"

namespace pith {

/// x [count, D] <- turned.
void rotate_hadamard(const Kernels& kernels, float* x, size_t dim, size_t count);

class RotatedCodec final : public Codec {
 public:
  RotatedCodec(std::unique_ptr<Codec> inner, Side side) : inner_(std::move(inner)), side_(side) {}
  size_t block_rows() const override { return inner_->block_rows(); }
  bool pre_rope() const override { return inner_->pre_rope(); }
  double bytes_per_row(size_t dim) const override { return inner_->bytes_per_row(dim); }
  double most_bytes(size_t rows, size_t dim, bool evicted) const override {
    return inner_->most_bytes(rows, dim, evicted);
  }
  size_t buffers() const override { return inner_->buffers(); }
  size_t shared_bytes() const override { return inner_->shared_bytes(); }
  size_t table_bytes(const RowsRequest& request) const override {
    return inner_->table_bytes(request);
  }
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override;

 private:
  std::unique_ptr<Codec> inner_;
  Side side_;
};

}  // namespace pith
