#pragma once
// Rows as coordinates along the eigenvectors of the head's own first rows, of 0 to 8 bits each by
// their variance:
//   x = m + W^-1 s sum_i d_i level_i b_i
// with the mean m, the eigenvectors b_i of the centred rows times W and the deviations d_i along
// them, of the first `calibrate` rows, which wait in f16 until they are there; s is the row's own.
// W weighs each pair of channels that RoPE turns by the root of the queries' energy in it, so that
// squared error is the scores', whatever the position: a weight equal in a pair commutes with
// RoPE. It is 1 for values, and where no queries were shown. Bits go
// one by one to the coordinate whose squared error falls most. A row is coded coordinate by
// coordinate, the largest variance first, each along what those before left: so the roundings of
// the vectors themselves, in 8 bits, are coded too. Keys are rows before RoPE, where their
// directions are the same at all positions.
// Bytes per row: D bits / 8, one of them the scale. Tables per head: 2 D, D / 2 of W, and for each
// coordinate that has bits D + 2 D / 32 + 3. Cost: 3 R D multiply-adds per row coded and R D per
// row read, of R coordinates; once per head calibrate D^2 + 6 D^3.

#include <algorithm>
#include <vector>

#include "rows/cpu/coded_rows.h"
#include "rows/cpu/token_rows.h"
#include "rows/cpu/waiting_rows.h"

namespace pith {

struct TransformFormat {
  double bits = 2.25;  ///< of a number, the row's scale among them
  size_t calibrate = 256;

  size_t row_bytes(size_t dim) const;
  /// Bits of a row's coordinates.
  size_t code_bits(size_t dim) const { return 8 * (row_bytes(dim) - 1); }
  size_t most_coordinates(size_t dim) const { return std::min(dim, code_bits(dim)); }
  /// Of a head's tables beside the weights if so many coordinates have bits.
  size_t table_bytes(size_t dim, size_t coordinates) const;
  /// The vectors themselves.
  static constexpr TokenFormat kBasis{8, false};
};

class TransformRows final : public CodedRows {
 public:
  TransformRows(const Context& context, const TransformFormat& format, const RowsRequest& request);
  TransformRows(const TransformRows& other);

  // Waiting rows and coded ones never are there together.
  size_t rows() const override { return rows_ + waiting_.count(); }
  void append(const float* x, size_t stride, size_t count) override;
  void show_queries(std::span<const float> energy) override;
  void keep(std::span<const uint32_t> kept) override;
  void decode(float* out, size_t first, size_t count) const override;
  std::unique_ptr<CodedRows> clone() const override {
    return std::make_unique<TransformRows>(*this);
  }
  void archive(Archive& a) override;
  size_t payload_bytes() const override {
    return rows_ * format_.row_bytes(dim_) + waiting_.bytes();
  }
  size_t metadata_bytes() const override {
    return weights_.size() + (learned() ? format_.table_bytes(dim_, coordinates()) : 0);
  }
  size_t allocated_bytes() const override;

 private:
  struct Tables;
  bool learned() const { return !mean_.empty(); }
  size_t coordinates() const { return bits_.size(); }  // R
  Tables tables() const;
  void learn();
  void code(const float* x, size_t stride, size_t count);
  uint8_t best_scale(const Tables& t, const std::vector<float>& along) const;
  void code_row(uint8_t* out, const Tables& t, const float* x) const;

  ThreadPool* pool_;
  TransformFormat format_;
  WaitingRows waiting_;  // until the tables are there
  size_t rows_ = 0;      // coded
  // [coded rows, row_bytes]: coordinates from the lowest bit on, the scale in the last byte
  Array<uint8_t> codes_;
  Array<uint8_t> weights_;            // [D/2] tight scales, or nothing: all are 1
  Array<uint16_t> mean_;              // [D] f16, or nothing yet
  Array<uint16_t> deviations_;        // [R] f16
  Array<uint8_t> bits_;               // [R], none more than the one before
  std::unique_ptr<CodedRows> basis_;  // [R, D]
};

class TransformCodec final : public Codec {
 public:
  explicit TransformCodec(const TransformFormat& format, Side side)
      : format_(format), side_(side) {}
  size_t block_rows() const override { return kWaitingBlock; }
  bool pre_rope() const override { return side_ == Side::kKeys; }
  double bytes_per_row(size_t dim) const override {
    return static_cast<double>(format_.row_bytes(dim));
  }
  size_t first_queries() const override { return pre_rope() ? format_.calibrate : 0; }
  double most_bytes(size_t rows, size_t dim, bool evicted) const override;
  // Codes, weights, mean, deviations, bits, rows that wait; the basis.
  size_t buffers() const override { return 6 + TokenCodec(TransformFormat::kBasis).buffers(); }
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override {
    return std::make_unique<TransformRows>(context, format_, request);
  }

 private:
  TransformFormat format_;
  Side side_;
};

}  // namespace pith
