#pragma once
// KVQuant's rows: x = low + scale * level[code], level from a codebook of the head, and n numbers
// per row apart. Keys have low and scale per channel, values per row. A head's codebook and its
// keys' ranges are made from the first `calibrate` rows of its stream, which wait in f16 until
// then; every later row is coded when it comes and never again. Bytes per row: D b / 8 + 3 n, and 4
// for values; 4 D of tables a head for keys and 2^(b+1) for both.

#include <vector>

#include "methods/codecs/kvquant/codebook.h"
#include "rows/cpu/coded_rows.h"
#include "rows/cpu/outlier_rows.h"
#include "rows/cpu/waiting_rows.h"

namespace pith {

struct NonUniformFormat {
  int bits = 3;            ///< 2, 3 or 4
  size_t outliers = 0;     ///< numbers of a row that are kept apart
  size_t calibrate = 128;  ///< rows that tables are made from
  Side side = Side::kKeys;

  size_t code_bytes(size_t dim) const { return dim * static_cast<size_t>(bits) / 8; }
  size_t range_bytes() const { return side == Side::kValues ? 4 : 0; }  // of a row
  size_t row_bytes(size_t dim) const {
    return code_bytes(dim) + range_bytes() + OutlierRows::row_bytes(outliers);
  }
  size_t table_bytes(size_t dim) const {
    return (side == Side::kKeys ? 4 * dim : 0) + (size_t{2} << bits);
  }
};

class NonUniformRows final : public CodedRows {
 public:
  NonUniformRows(const Context& context, const NonUniformFormat& format,
                 const RowsRequest& request);

  size_t rows() const override { return coded_rows() + waiting_.count(); }
  void append(const float* x, size_t stride, size_t count) override;
  void keep(std::span<const uint32_t> kept) override;
  void decode(float* out, size_t first, size_t count) const override;
  /// Values: straight from the codes where D is a multiple of 32.
  void accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                  size_t count) const override;
  std::unique_ptr<CodedRows> clone() const override {
    return std::make_unique<NonUniformRows>(*this);
  }
  void archive(Archive& a) override;
  size_t payload_bytes() const override {
    return rows_ * format_.code_bytes(dim_) + outliers_.payload_bytes() + waiting_.bytes();
  }
  size_t metadata_bytes() const override {
    return 2 * (ranges_.size() + tables_.size()) + outliers_.metadata_bytes();
  }
  size_t allocated_bytes() const override {
    return codes_.capacity_bytes() + ranges_.capacity_bytes() + tables_.capacity_bytes() +
           outliers_.allocated_bytes() + waiting_.allocated_bytes();
  }

 private:
  struct Room;
  size_t coded_rows() const { return rows_; }
  bool calibrated() const { return codebook_.size() > 0; }
  void choose_ranges(const std::vector<float>& rows, Room& room);
  void calibrate();
  void code(const float* row, Room& room);
  void choose_range(const float* row, Room& room);
  void find_worst(const float* row, Room& room) const;
  LevelRows level_rows(size_t first) const;
  /// Of a row of values.
  struct Sides {
    float low, scale;
  };
  Sides sides(size_t row) const;
  /// The number that a value's code names, kept apart or not.
  float coded_number(size_t row, size_t channel) const;

  NonUniformFormat format_;
  Codebook codebook_;
  WaitingRows waiting_;     // until calibrated
  size_t rows_ = 0;         // coded
  Array<uint8_t> codes_;    // [coded rows, D b / 8], channel c at bit c b; 4 bytes may be read
  Array<uint16_t> ranges_;  // [coded rows, 2] f16 low and scale; values only
  Array<uint16_t> tables_;  // keys: [2, D] f16 lows and scales; then [2^b] f16 levels
  OutlierRows outliers_;
};

class NonUniformCodec final : public Codec {
 public:
  explicit NonUniformCodec(const NonUniformFormat& format) : format_(format) {}
  size_t block_rows() const override { return kWaitingBlock; }
  bool pre_rope() const override { return format_.side == Side::kKeys; }
  double bytes_per_row(size_t dim) const override {
    return static_cast<double>(at(dim).row_bytes(dim));
  }
  double most_bytes(size_t rows, size_t dim, bool evicted) const override;
  // Codes, ranges, tables, rows that wait.
  size_t buffers() const override { return 4 + OutlierRows::kBuffers; }
  size_t table_bytes(const RowsRequest& request) const override;
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override;
  /// The format with `outliers` set: kByShare is one number in a hundred.
  NonUniformFormat at(size_t dim) const;
  static constexpr size_t kByShare = ~size_t{0};

 private:
  NonUniformFormat format_;
};

}  // namespace pith
