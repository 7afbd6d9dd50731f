#pragma once
// Keys in QJL's form: bits, norms, and for each group of 32 rows the list of its outlying channels.

#include <algorithm>
#include <memory>
#include <vector>

#include "rows/cpu/coded_rows.h"
#include "rows/cpu/compaction.h"
#include "rows/cpu/projection.h"
#include "rows/cpu/waiting_rows.h"

namespace pith {

inline constexpr size_t kQjlGroup = 32;  // rows that share outlying channels

struct QjlFormat {
  Sketch sketch = Sketch::kOrtho;
  size_t bits = 0;      // m; 0 = 2 D
  size_t out_bits = 0;  // m_out; 0 = D
  size_t outliers = 8;  ///< channels a group; 0 = one sketch of the whole key
  /// How much more energy a group's inliers may be left with by the channels of the group before,
  /// which then stay: 0.05 is 2.5% more noise. 0: each group has its own.
  double slack = 0;
  /// Scores less half of their variance: their exponentials are then nearly unbiased.
  bool unbias_weights = false;

  size_t inlier_bits(size_t dim) const { return bits ? bits : 2 * dim; }
  size_t outlier_bits(size_t dim) const {
    return outliers == 0 ? 0 : out_bits ? out_bits : dim;  // no sketch without outliers
  }
  size_t code_bytes(size_t dim) const { return (inlier_bits(dim) + outlier_bits(dim)) / 8; }
  size_t norms() const { return outliers ? 2 : 1; }
  /// Of one group: its channels and where it begins.
  size_t group_bytes() const { return outliers ? outliers * 2 + sizeof(uint32_t) : 0; }
};

/// The two projections of a layer's keys; codecs of one layer share them.
struct QjlTables {
  Projection in, out;
};

class QjlKeys final : public CodedRows {
 public:
  QjlKeys(const Context& context, const QjlFormat& format, const RowsRequest& request,
          std::shared_ptr<const QjlTables> tables);

  size_t rows() const override { return coded_rows() + waiting_.count(); }
  void append(const float* x, size_t stride, size_t count) override;
  void keep(std::span<const uint32_t> kept) override;
  /// The linear estimate c |k| / m S^T sign(S k), inliers and outliers each in their channels.
  void decode(float* out, size_t first, size_t count) const override;
  size_t prepared_size(size_t queries) const override;
  void prepare(float* prepared, const float* q, size_t queries) const override;
  void scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
              size_t first, size_t count, float scale) const override;
  std::unique_ptr<CodedRows> clone() const override { return std::make_unique<QjlKeys>(*this); }
  void archive(Archive& a) override;
  size_t payload_bytes() const override {
    return coded_rows() * format_.code_bytes(dim_) + waiting_.bytes();
  }
  size_t metadata_bytes() const override {
    return norms_.size() * 2 + channels_.size() * 2 + firsts_.size() * sizeof(uint32_t);
  }
  size_t allocated_bytes() const override {
    return codes_.capacity_bytes() + waiting_.allocated_bytes() + norms_.capacity_bytes() +
           channels_.capacity_bytes() + firsts_.capacity_bytes();
  }
  /// The outlying channels of a coded row, ascending.
  std::span<const uint16_t> outlying_channels(size_t row) const {
    return {channels_.data() + group_of(firsts_, row) * format_.outliers, format_.outliers};
  }

 private:
  size_t group_rows() const { return format_.outliers ? kQjlGroup : 1; }
  size_t coded_rows() const { return norms_.size() / format_.norms(); }
  size_t group_end(size_t group) const { return pith::group_end(firsts_, group, coded_rows()); }
  void code(const float* x, size_t count);  // x [count, D]: a whole group, or any rows without one
  /// Where the groups end that follow `group` with the same outlying channels.
  size_t same_channels_end(size_t group) const;
  /// The outlying channels of a group x [32, D], ascending.
  std::vector<uint16_t> choose_outliers(const float* x) const;
  struct GroupQuery;
  void split_queries(GroupQuery& room, const float* q, size_t queries, size_t group) const;
  void score_rows(float* out, size_t ld, GroupQuery& room, size_t queries, size_t first,
                  size_t count, float scale) const;
  void take_half_variance(float* out, size_t ld, const GroupQuery& room, size_t queries,
                          size_t count, float scale) const;

  QjlFormat format_;
  std::shared_ptr<const QjlTables> tables_;
  Array<uint8_t> codes_;      // [coded rows, (m + m_out) / 8] and 8 bytes that may be read
  WaitingRows waiting_;       // rows of a group that is not full
  Array<uint16_t> norms_;     // [coded rows, 1 or 2] f16: |k|, or inliers' and outliers'
  Array<uint16_t> channels_;  // [groups, outliers]
  Array<uint32_t> firsts_;    // [groups] first row that each group still has
};

class QjlCodec final : public Codec {
 public:
  explicit QjlCodec(const QjlFormat& format) : format_(format) {}
  size_t block_rows() const override { return format_.outliers ? kQjlGroup : 1; }
  double bytes_per_row(size_t dim) const override {
    return static_cast<double>(format_.code_bytes(dim) + 2 * format_.norms()) +
           static_cast<double>(format_.group_bytes()) / kQjlGroup;
  }
  double most_bytes(size_t rows, size_t dim, bool evicted) const override {
    const size_t own = format_.code_bytes(dim) + 2 * format_.norms();
    const size_t groups = evicted ? rows : rows / kQjlGroup;
    const size_t waiting = format_.outliers ? std::min(rows, kQjlGroup - 1) * dim * 2 : 0;
    return static_cast<double>(rows * own + groups * format_.group_bytes() + waiting);
  }
  size_t buffers() const override { return 5; }  // codes, norms, rows that wait, channels, groups
  size_t shared_bytes() const override {
    return tables_ ? tables_->in.bytes() + tables_->out.bytes() : 0;
  }
  size_t table_bytes(const RowsRequest& request) const override;
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override;

 private:
  QjlFormat format_;
  // Drawn when the first rows are made, which is when D is known.
  mutable std::shared_ptr<const QjlTables> tables_;
};

}  // namespace pith
