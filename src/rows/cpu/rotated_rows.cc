#include "rows/cpu/rotated_rows.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace pith {
namespace {

constexpr size_t kAppendRows = 32;  // turned at a time

class RotatedRows final : public CodedRows {
 public:
  RotatedRows(const Kernels& kernels, std::unique_ptr<CodedRows> inner, Side side)
      : CodedRows(kernels, inner->dim()), inner_(std::move(inner)), side_(side) {}

  size_t rows() const override { return inner_->rows(); }
  void append(const float* x, size_t stride, size_t count) override {
    std::vector<float> turned(std::min(count, kAppendRows) * dim_);
    for (size_t t = 0; t < count; t += kAppendRows) {
      const size_t n = std::min(kAppendRows, count - t);
      for (size_t i = 0; i < n; ++i)
        std::copy_n(x + (t + i) * stride, dim_, turned.data() + i * dim_);
      rotate_hadamard(*kernels_, turned.data(), dim_, n);
      inner_->append(turned.data(), dim_, n);
    }
  }
  void keep(std::span<const uint32_t> kept) override { inner_->keep(kept); }
  void decode(float* out, size_t first, size_t count) const override {
    inner_->decode(out, first, count);
    rotate_hadamard(*kernels_, out, dim_, count);
  }
  // The rotated queries [M, D], then the inner codec's preparation of them.
  size_t prepared_size(size_t queries) const override {
    return side_ == Side::kValues ? 0 : queries * dim_ + inner_->prepared_size(queries);
  }
  void prepare(float* prepared, const float* q, size_t queries) const override {
    std::copy_n(q, queries * dim_, prepared);
    rotate_hadamard(*kernels_, prepared, dim_, queries);
    inner_->prepare(prepared + queries * dim_, prepared, queries);
  }
  void scores(float* out, size_t ld, const float*, const float* prepared, size_t queries,
              size_t first, size_t count, float scale) const override {
    inner_->scores(out, ld, prepared, prepared + queries * dim_, queries, first, count, scale);
  }
  size_t accumulator_width() const override { return inner_->accumulator_width(); }
  void accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                  size_t count) const override {
    inner_->accumulate(acc, p, ld, queries, first, count);
  }
  void finish(float* out, const float* acc, size_t queries) const override {
    std::vector<float> sums(queries * dim_);
    inner_->finish(sums.data(), acc, queries);
    rotate_hadamard(*kernels_, sums.data(), dim_, queries);
    kernels_->add(out, sums.data(), sums.size());
  }
  std::unique_ptr<CodedRows> clone() const override {
    return std::make_unique<RotatedRows>(*kernels_, inner_->clone(), side_);
  }
  void archive(Archive& a) override { inner_->archive(a); }
  size_t payload_bytes() const override { return inner_->payload_bytes(); }
  size_t metadata_bytes() const override { return inner_->metadata_bytes(); }
  size_t table_bytes() const override { return inner_->table_bytes(); }
  size_t allocated_bytes() const override { return inner_->allocated_bytes(); }

 private:
  std::unique_ptr<CodedRows> inner_;
  Side side_;
};

}  // namespace

void rotate_hadamard(const Kernels& kernels, float* x, size_t dim, size_t count) {
  for (size_t t = 0; t < count; ++t) {
    float* row = x + t * dim;
    for (size_t left = dim; left > 0;) {
      const size_t block = std::bit_floor(left);
      kernels.hadamard(row, block);
      row += block;
      left -= block;
    }
  }
}

std::unique_ptr<CodedRows> RotatedCodec::make_rows(const Context& context,
                                                   const RowsRequest& request) const {
  return std::make_unique<RotatedRows>(context.kernels, inner_->make_rows(context, request), side_);
}

}  // namespace pith
