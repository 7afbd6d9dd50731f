#pragma once
// The dense codec: rows as they are, in f32, f16 or bf16 (round to nearest even). 2 D
// size_of(dtype) bytes per row of keys and values. Also the store of sink and window rows under
// any policy.

#include "rows/cpu/coded_rows.h"

namespace pith {

class DenseRowsStore final : public CodedRows {
 public:
  DenseRowsStore(const Context& context, DType dtype, const RowsRequest& request);

  size_t rows() const override { return bytes_.size() / row_bytes_; }
  void append(const float* x, size_t stride, size_t count) override;
  void keep(std::span<const uint32_t> kept) override;
  void keep_after(size_t first, std::span<const uint32_t> kept) override;
  void decode(float* out, size_t first, size_t count) const override;
  void decode_transposed(float* out, size_t ld, size_t first, size_t count) const override;
  void scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
              size_t first, size_t count, float scale) const override;
  void accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                  size_t count) const override;
  std::unique_ptr<CodedRows> clone() const override;
  size_t payload_bytes() const override { return bytes_.size(); }
  size_t allocated_bytes() const override { return bytes_.capacity(); }

  void archive(Archive& a) override;
  /// Rows [first, first + count) alone; loading: into places that are there, see make_places.
  void archive(Archive& a, size_t first, size_t count);
  /// The store has `rows` rows of no particular value.
  void make_places(size_t rows) { bytes_.resize(rows * row_bytes_); }

  /// Replaces rows [first, first + count): a ring's way to reuse what has left.
  void overwrite(size_t first, const float* x, size_t stride, size_t count);

 private:
  DenseRows view(size_t first) const { return {bytes_.data() + first * row_bytes_, dtype_, dim_}; }
  void store(size_t row, const float* x, size_t stride, size_t count);

  DType dtype_;
  size_t row_bytes_;
  Buffer bytes_;  // [rows, D] of dtype_
};

class DenseCodec final : public Codec {
 public:
  explicit DenseCodec(DType dtype) : dtype_(dtype) {}
  double bytes_per_row(size_t dim) const override {
    return static_cast<double>(dim * size_of(dtype_));
  }
  size_t buffers() const override { return 1; }
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override;

 private:
  DType dtype_;
};

}  // namespace pith
