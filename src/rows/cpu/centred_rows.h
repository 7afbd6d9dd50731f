#pragma once
// Keys coded around the mean of their group, around any codec: k - mu is coded, and the score gets
// <q, mu> back, so that attention changes by the code's error alone. Neighbouring keys of a head
// share a large mean, on which codes whose error grows with the norm (QJL's sketch, a scale for 32
// channels) spend their bits. One mean for the whole stream does not do it: RoPE rotates the mean
// as positions grow (docs/decisions/0046-centre-and-length.md). Rows wait in f16 until their group
// is full, so the means do not depend on how rows arrive; no row is coded twice. A group keeps its
// mean until its last row goes. Cost: D subtractions per row coded; per query D multiply-adds per
// group, and one addition per score. Bytes: 2 D + 4 per group.

#include <memory>
#include <numeric>
#include <utility>

#include "rows/cpu/coded_rows.h"
#include "rows/cpu/waiting_rows.h"

namespace pith {

class CentredCodec final : public Codec {
 public:
  /// `group_rows` share a mean.
  CentredCodec(std::unique_ptr<Codec> inner, size_t group_rows)
      : inner_(std::move(inner)), group_rows_(group_rows) {}
  // Selectors that drop rows between appends must do so at the same rows however a stream is cut.
  size_t block_rows() const override { return std::lcm(inner_->block_rows(), kWaitingBlock); }
  bool pre_rope() const override { return inner_->pre_rope(); }
  double bytes_per_row(size_t dim) const override {
    return inner_->bytes_per_row(dim) + group_bytes(dim) / static_cast<double>(group_rows_);
  }
  double most_bytes(size_t rows, size_t dim, bool evicted) const override;
  size_t buffers() const override {
    return inner_->buffers() + 3;
  }  // rows that wait, means, groups
  size_t shared_bytes() const override { return inner_->shared_bytes(); }
  size_t table_bytes(const RowsRequest& request) const override {
    return inner_->table_bytes(request);
  }
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override;

 private:
  static double group_bytes(size_t dim) { return static_cast<double>(2 * dim + sizeof(uint32_t)); }

  std::unique_ptr<Codec> inner_;
  size_t group_rows_;
};

}  // namespace pith
