#pragma once
// Two stores of one head, the older rows first. Cost beside the codecs': a row is decoded and coded
// again once, and moved inside the newer store rows / kStep times. Bytes: the codecs'.

#include <memory>
#include <string>
#include <vector>

#include "rows/cpu/coded_rows.h"

namespace pith {

class LadderRows final : public CodedRows {
 public:
  static constexpr size_t kStep = 64;  // rows that age together

  /// `young` holds up to `young_rows` + kStep - 1 rows.
  LadderRows(const Kernels& kernels, std::unique_ptr<CodedRows> old_rows,
             std::unique_ptr<CodedRows> young, size_t young_rows);

  size_t rows() const override { return old_->rows() + young_->rows(); }
  void append(const float* x, size_t stride, size_t count) override;
  void keep(std::span<const uint32_t> kept) override;
  void decode(float* out, size_t first, size_t count) const override;
  size_t prepared_size(size_t queries) const override {
    return old_->prepared_size(queries) + young_->prepared_size(queries);
  }
  void prepare(float* prepared, const float* q, size_t queries) const override;
  void scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
              size_t first, size_t count, float scale) const override;
  // The older rows' accumulator, then the younger ones'.
  size_t accumulator_width() const override {
    return old_->accumulator_width() + young_->accumulator_width();
  }
  void accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                  size_t count) const override;
  void finish(float* out, const float* acc, size_t queries) const override;
  std::unique_ptr<CodedRows> clone() const override {
    return std::make_unique<LadderRows>(*kernels_, old_->clone(), young_->clone(), young_rows_);
  }
  void archive(Archive& a) override {
    old_->archive(a);
    young_->archive(a);
    a.need(young_->rows() < young_rows_ + kStep, "more young rows than may be");
  }
  size_t payload_bytes() const override { return old_->payload_bytes() + young_->payload_bytes(); }
  size_t metadata_bytes() const override {
    return old_->metadata_bytes() + young_->metadata_bytes();
  }
  size_t table_bytes() const override { return old_->table_bytes() + young_->table_bytes(); }
  size_t allocated_bytes() const override {
    return old_->allocated_bytes() + young_->allocated_bytes();
  }

 private:
  struct Part;
  std::vector<Part> parts(size_t first, size_t count) const;
  void age();

  std::unique_ptr<CodedRows> old_, young_;
  size_t young_rows_;
};

class LadderCodec final : public Codec {
 public:
  LadderCodec(std::unique_ptr<Codec> old_codec, std::unique_ptr<Codec> young, size_t young_rows)
      : old_(std::move(old_codec)), young_(std::move(young)), young_rows_(young_rows) {}
  size_t block_rows() const override;
  bool pre_rope() const override { return old_->pre_rope(); }
  /// The dearer of the two: a body shorter than the step holds no other.
  double bytes_per_row(size_t dim) const override {
    return std::max(old_->bytes_per_row(dim), young_->bytes_per_row(dim));
  }
  double most_bytes(size_t rows, size_t dim, bool evicted) const override;
  size_t buffers() const override { return old_->buffers() + young_->buffers(); }
  size_t shared_bytes() const override { return old_->shared_bytes() + young_->shared_bytes(); }
  size_t table_bytes(const RowsRequest& request) const override {
    return old_->table_bytes(request) + young_->table_bytes(request);
  }
  size_t coding_bytes(const RowsRequest& request, size_t rows) const override;
  size_t width_to_come(size_t dim) const override {
    return old_->width_to_come(dim) + young_->width_to_come(dim);
  }
  void check_context(size_t tokens) const override {
    old_->check_context(tokens), young_->check_context(tokens);
  }
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override;

 private:
  std::unique_ptr<Codec> old_, young_;
  size_t young_rows_;
};

}  // namespace pith
