#pragma once
// The coded rows of one layer's KV heads on the GPU, in blocks of 32.

#include <array>
#include <optional>

#include "cache/cuda/layer_rows.h"

namespace pith::cuda {

class CodedBody {
 public:
  CodedBody(std::shared_ptr<const DeviceCodec> codec, DType dtype, const LayerSite& site);
  CodedBody(const CodedBody& other);

  size_t rows() const { return blocks_ * 32; }
  /// Codes rows from.row, ...: whole blocks.
  void append(const RowTarget& from, size_t blocks);
  /// Makes room for them and says what there is to code; from then on they count as there.
  CodeMove begin_append(const RowTarget& from, size_t blocks);
  DeviceSpan span(size_t head) const;
  /// Rows of blocks first, ... to `to`.
  void unpack(const RowTarget& to, size_t first, size_t blocks) const;
  void add_to(Ledger& ledger) const;

 private:
  enum Part { kKeyCodes, kKeySide, kValueCodes, kValueSide, kParts };
  std::byte* at(Part part, size_t head, size_t block) const {
    return static_cast<std::byte*>(buffers_[part].data()) +
           (head * capacity_ + block) * bytes_[part];
  }
  void reserve_more(size_t blocks);
  void move_to(size_t capacity, const CodedBody& from);

  std::shared_ptr<const DeviceCodec> codec_;
  DType dtype_;
  LayerSite site_;
  std::array<size_t, kParts> bytes_;          // of a block
  std::array<DeviceBuffer, kParts> buffers_;  // [G, capacity] blocks each
  size_t blocks_ = 0, capacity_ = 0;          // of a head
};

}  // namespace pith::cuda
