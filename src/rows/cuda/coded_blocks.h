#pragma once
// Coded rows of one layer's KV heads in the memory of a GPU, in blocks of 32: how they come there,
// move and are unpacked.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "rows/cuda/block_calls.h"
#include "rows/device_growth.h"

namespace pith::cuda {

/// Rows that a codec codes, once somebody gives it to the device.
struct CodeWork {
  const DeviceCodec* codec = nullptr;
  CodeBatch batch;
  CodeJob keys, values;
  /// Of rows that begin or end within a block: they are coded apart, the jobs' codes and the move's
  /// `from` being in scratch memory, which nobody has given yet. Null: where the jobs say.
  std::optional<MoveCodesCall> move = {};
};

class CodedBlocks {
 public:
  /// `saved`: bytes of blocks that nobody has written are 0.
  CodedBlocks(std::shared_ptr<const DeviceCodec> codec, const StoreSite& site, bool saved);
  /// In `codec`, which codes as the other's does.
  CodedBlocks(const CodedBlocks& other, std::shared_ptr<const DeviceCodec> codec);
  CodedBlocks(const CodedBlocks&) = delete;
  CodedBlocks& operator=(const CodedBlocks&) = delete;
  ~CodedBlocks() = default;
  /// Others that name the records of these, for rows that become them.
  CodedBlocks beside(bool saved = false) const { return {*this, saved}; }

  const DeviceCodec& codec() const { return *codec_; }
  const std::shared_ptr<const DeviceCodec>& shared_codec() const { return codec_; }
  void set_codec(std::shared_ptr<const DeviceCodec> codec) { codec_ = std::move(codec); }
  size_t rows() const { return rows_; }
  size_t capacity() const { return memory_.capacity(); }  ///< blocks of a head
  CodeBlocks all() const { return memory_.all(); }
  /// Rows that came before the first that is here; and where that one stands if rows follow each
  /// other.
  size_t gone() const { return gone_; }
  int64_t first_position() const { return site_.position + static_cast<int64_t>(gone_); }

  // Room:
  /// So many more rows, which are yet to be coded.
  void announce(size_t rows) {
    rows_ += rows;
    reserve();
  }
  /// The same of rows that wait elsewhere: they take no room here until reserve().
  void count(size_t rows) { rows_ += rows; }
  void reserve();
  StoreRoom room(const ComingRows& coming) const;
  /// None stays; memory does, and `gone` are said to have come before the next.
  void clear() { rows_ = blocks_ = 0; }
  void clear(size_t gone) {
    clear();
    gone_ = gone;
  }
  /// The oldest rows go, whole blocks; there is room for `capacity` blocks from then on.
  void drop_front(size_t rows, size_t capacity);

  // Rows come:
  /// Rows from.row, ... to be coded behind those held; up to 31 more are read, and may be anything.
  struct NewRows {
    RowTarget from;
    size_t rows = 0;
    RowPositions positions;
    DType dtype = DType::kF16;  ///< kF16 or kBF16
    /// Where they lie they become, as f16, what codes give back; up to 31 more rows are written.
    bool give_back = false;
  };
  /// Waits, rarely, where rows name records (RecordTable). With `later` the coding is left there;
  /// until it is done nobody looks at the codes, and the rows stay where they are.
  void append(const NewRows& rows, std::vector<CodeWork>* later);
  /// Blocks whose rows follow each other.
  BlockRun run(size_t first, size_t count) const {
    return {first, count, first_position() + static_cast<int64_t>(32 * first)};
  }
  /// The last of them, of so many rows.
  BlockRun last(size_t rows) const { return run(blocks_ - rows / 32, rows / 32); }
  /// Codes rows from.row, ... as those blocks.
  void code(const RowTarget& from, const BlockRun& blocks, DType dtype) const;

  // Rows stay:
  /// Rows kept [G, stride] stay, of each head `count`, in that order. `most`: so many are held from
  /// now on, if more came in a crowd; 0: the tokens expected.
  void keep(const int32_t* kept, size_t stride, size_t count, size_t most = 0);
  /// The same of rows first, ..., not all: those before them stay as they are.
  void keep_from(size_t first, const int32_t* kept, size_t stride, size_t count);
  /// Whether keep() would need no new memory but that its moves go through.
  bool keeps_in_place(size_t most = 0) const {
    most = room_for(most);
    return most == 0 || capacity() <= (std::max(most, rows_) + 31) / 32;
  }
  /// Rows came in a crowd, whose room keep() gives back.
  bool crowded() const { return capacity() > (site_.context + 31) / 32; }
  /// Where keep() would need none: `count` rows of each head count as kept. The call that this
  /// returns moves them, with `from` or `to` in other memory; nobody reads the codes before it.
  MoveCodesCall keep_later(size_t count);

  // Rows are read, by these:
  BlockCalls calls() const { return {memory_, *codec_, site_, records(), first_position()}; }

  /// `rows` of each head hold something, the rest is slack.
  void add_to(Ledger& ledger, size_t rows) const;
  void archive_counts(Archive& a, size_t tokens);
  /// Where each head has rows of its own of those held: `of_heads` [G], whole blocks.
  void archive(Archive& a, std::span<const size_t> of_heads);

 private:
  CodedBlocks(const CodedBlocks& owner, bool saved);
  const RecordTable& records() const { return owners_ ? *owners_ : records_; }
  DeviceGrowth growth() const { return device_codes(site_.context); }
  /// Rows that are worth their room where `most` will be held: no more than come at all.
  size_t room_for(size_t most) const {
    return site_.context > 0 && most > 0 ? std::min(most, site_.context)
                                         : std::max(most, site_.context);
  }
  CodeWork code_work(const RowTarget& from, const BlockRun& blocks, DType dtype) const;
  /// That coded apart, to come here from row `first` on.
  CodeWork work_apart(const NewRows& rows, size_t first) const;

  std::shared_ptr<const DeviceCodec> codec_;
  StoreSite site_;
  BlockMemory memory_;
  size_t blocks_ = 0;  // of a head
  size_t rows_ = 0;    // coded, or waiting elsewhere
  size_t gone_ = 0;    // rows that came before those
  RecordTable records_;
  const RecordTable* owners_ = nullptr;  // of blocks beside others: theirs
};

}  // namespace pith::cuda
