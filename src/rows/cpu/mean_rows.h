#pragma once
// Keys before RoPE, coded around one mean for each channel of a head, by any codec. RoPE turns a
// constant part of keys (the bias of a projection, or what training leaves) to every row's own
// direction: after it no mean holds such a part, and a transform spreads it over all channels.
// Before RoPE it is one vector m, and a score is <q, R_p (m + code)>. The mean is that of the first
// `first_rows` rows, which wait in f16 until they are there; later rows are coded when they come,
// and none twice. A store that lost all rows keeps its mean. Cost: D subtractions a row coded,
// D additions a row read beside the codec's own and RoPE's. Bytes: 2 D a head.

#include <memory>
#include <numeric>
#include <utility>

#include "rows/cpu/coded_rows.h"
#include "rows/cpu/waiting_rows.h"

namespace pith {

class MeanCodec final : public Codec {
 public:
  MeanCodec(std::unique_ptr<Codec> inner, size_t first_rows)
      : inner_(std::move(inner)), first_rows_(first_rows) {}
  size_t block_rows() const override { return std::lcm(inner_->block_rows(), kWaitingBlock); }
  bool pre_rope() const override { return true; }
  double bytes_per_row(size_t dim) const override { return inner_->bytes_per_row(dim); }
  double most_bytes(size_t rows, size_t dim, bool evicted) const override;
  size_t buffers() const override { return inner_->buffers() + 2; }  // rows that wait, their mean
  size_t shared_bytes() const override { return inner_->shared_bytes(); }
  size_t table_bytes(const RowsRequest& request) const override {
    return inner_->table_bytes(request);
  }
  void check_context(size_t tokens) const override { inner_->check_context(tokens); }
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override;

 private:
  std::unique_ptr<Codec> inner_;
  size_t first_rows_;
};

}  // namespace pith
