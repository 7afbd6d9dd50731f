#pragma once
// GEAR's rows: integer codes, plus what they miss as a product of rank r over a group of rows, with
// n numbers per row apart. The codes are KIVI's: keys per channel over 32 rows, values per row.
// Rows wait in f16 until a group is full. Bytes per row: the codes', 3 n, 2 r, and 2 r D + 4 a
// group.

#include "methods/codecs/gear/low_rank.h"
#include "rows/cpu/coded_rows.h"
#include "rows/cpu/compaction.h"
#include "rows/cpu/outlier_rows.h"
#include "rows/cpu/waiting_rows.h"

namespace pith {

/// Number of the random stream that products begin with: 2 heads further on, 1 more for values.
inline constexpr uint32_t kGearStream = 0x4745;

struct GearFormat {
  int bits = 2;             ///< 2 or 4
  size_t rank = 2;          ///< r; 0 = codes and outliers alone
  size_t outliers = 0;      ///< numbers of a row that are kept apart
  size_t group_rows = 128;  ///< rows that share the right factor, a multiple of 32
  Side side = Side::kKeys;

  /// Of one group: its right factor and where it begins.
  size_t group_bytes(size_t dim) const { return rank * dim * 2 + sizeof(uint32_t); }
  size_t extra_bytes() const { return OutlierRows::row_bytes(outliers) + 2 * rank; }  // of a row
};

class GearRows final : public CodedRows {
 public:
  GearRows(const Context& context, const GearFormat& format, const RowsRequest& request,
           std::unique_ptr<CodedRows> codes);
  GearRows(const GearRows& other);

  size_t rows() const override { return codes_->rows() + waiting_.count(); }
  void append(const float* x, size_t stride, size_t count) override;
  void keep(std::span<const uint32_t> kept) override;
  void decode(float* out, size_t first, size_t count) const override;
  size_t prepared_size(size_t queries) const override { return codes_->prepared_size(queries); }
  void prepare(float* prepared, const float* q, size_t queries) const override {
    codes_->prepare(prepared, q, queries);
  }
  void scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
              size_t first, size_t count, float scale) const override;
  void accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                  size_t count) const override;
  std::unique_ptr<CodedRows> clone() const override { return std::make_unique<GearRows>(*this); }
  void archive(Archive& a) override;
  size_t payload_bytes() const override {
    return codes_->payload_bytes() + outliers_.payload_bytes() + waiting_.bytes() +
           2 * left_.size();
  }
  size_t metadata_bytes() const override {
    return codes_->metadata_bytes() + outliers_.metadata_bytes() + 2 * right_.size() +
           firsts_.size() * sizeof(uint32_t);
  }
  size_t allocated_bytes() const override {
    return codes_->allocated_bytes() + outliers_.allocated_bytes() + waiting_.allocated_bytes() +
           left_.capacity_bytes() + right_.capacity_bytes() + firsts_.capacity_bytes();
  }

 private:
  size_t group_end(size_t group) const { return pith::group_end(firsts_, group, codes_->rows()); }
  void code_waiting();
  std::vector<uint16_t> take_outliers(std::vector<float>& x) const;
  void factor(const std::vector<float>& x, const std::vector<float>& coded,
              const std::vector<uint16_t>& apart);
  template <class F>
  void for_factors(size_t first, size_t end, F&& f) const;
  /// out [count, D] += the product of coded rows.
  void add_product(float* out, size_t first, size_t count) const;

  GearFormat format_;
  Philox random_;
  std::unique_ptr<CodedRows> codes_;
  OutlierRows outliers_;    // [coded rows] what the other parts miss
  WaitingRows waiting_;     // fewer than a group
  Array<uint16_t> left_;    // [coded rows, r] f16
  Array<uint16_t> right_;   // [groups, r, D] f16
  Array<uint32_t> firsts_;  // [groups] first row that each group still has
};

class GearCodec final : public Codec {
 public:
  static constexpr size_t kByShare = ~size_t{0};  // 2 outliers in 100 numbers

  explicit GearCodec(const GearFormat& format);
  size_t block_rows() const override { return kWaitingBlock; }
  double bytes_per_row(size_t dim) const override;
  double most_bytes(size_t rows, size_t dim, bool evicted) const override;
  // Both factors, groups, rows that wait.
  size_t buffers() const override { return codes_->buffers() + OutlierRows::kBuffers + 4; }
  size_t table_bytes(const RowsRequest& request) const override;
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override;
  /// The format with `outliers` set.
  GearFormat at(size_t dim) const;

 private:
  GearFormat format_;
  std::unique_ptr<Codec> codes_;  // kivi's
};

}  // namespace pith
