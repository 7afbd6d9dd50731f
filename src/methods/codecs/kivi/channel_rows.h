#pragma once
// KIVI's keys (Liu et al. 2024): b-bit codes per channel, in groups of 32 consecutive rows that
// share each channel's f16 scale and minimum. Rows wait in f16 until a group is full, so the codes
// do not depend on how rows arrive. Rows that a selector drops leave their group's scales behind
// until the last of the group goes. Bytes per row: D b / 8 + 4 D / (rows that the group still has).

#include <algorithm>

#include "rows/cpu/coded_rows.h"
#include "rows/cpu/compaction.h"
#include "rows/cpu/waiting_rows.h"

namespace pith {

inline constexpr size_t kGroupRows = 32;
inline constexpr size_t kMaxDim = 1024;  // of a head

class ChannelRows final : public CodedRows {
 public:
  ChannelRows(const Context& context, int bits, const RowsRequest& request);

  size_t rows() const override { return coded_rows() + waiting_.count(); }
  void append(const float* x, size_t stride, size_t count) override;
  void keep(std::span<const uint32_t> kept) override;
  void decode(float* out, size_t first, size_t count) const override;
  /// Straight from the codes where D is a multiple of 32: each group's scales go into the query.
  void scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
              size_t first, size_t count, float scale) const override;
  std::unique_ptr<CodedRows> clone() const override;
  void archive(Archive& a) override;
  size_t payload_bytes() const override { return codes_.size() + waiting_.bytes(); }
  size_t metadata_bytes() const override {
    return scales_.size() * 2 + firsts_.size() * sizeof(uint32_t);
  }
  size_t allocated_bytes() const override {
    return codes_.capacity_bytes() + waiting_.allocated_bytes() + scales_.capacity_bytes() +
           firsts_.capacity_bytes();
  }

 private:
  size_t row_bytes() const { return dim_ * static_cast<size_t>(bits_) / 8; }
  size_t coded_rows() const { return codes_.size() / row_bytes(); }
  size_t group_end(size_t group) const { return pith::group_end(firsts_, group, coded_rows()); }
  void code_waiting();

  int bits_;
  Array<uint8_t> codes_;    // [coded rows, D b / 8]
  WaitingRows waiting_;     // fewer than 32, the newest
  Array<uint16_t> scales_;  // [groups, 2, D] f16: scales, then minima
  Array<uint32_t> firsts_;  // [groups] first row that each group still has
};

class ChannelCodec final : public Codec {
 public:
  explicit ChannelCodec(int bits) : bits_(bits) {}
  size_t block_rows() const override { return kGroupRows; }
  double bytes_per_row(size_t dim) const override {
    return static_cast<double>(code_bytes(dim)) + group_bytes(dim) / kGroupRows;
  }
  double most_bytes(size_t rows, size_t dim, bool evicted) const override {
    const size_t groups = evicted ? rows : rows / kGroupRows;
    const double waiting = static_cast<double>(std::min(rows, kGroupRows - 1) * dim * 2);
    return static_cast<double>(rows * code_bytes(dim)) +
           static_cast<double>(groups) * group_bytes(dim) + waiting;
  }
  size_t buffers() const override { return 4; }  // codes, rows that wait, scales, groups
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override {
    return std::make_unique<ChannelRows>(context, bits_, request);
  }

 private:
  size_t code_bytes(size_t dim) const { return dim * static_cast<size_t>(bits_) / 8; }
  static double group_bytes(size_t dim) { return static_cast<double>(4 * dim + sizeof(uint32_t)); }

  int bits_;
};

}  // namespace pith
