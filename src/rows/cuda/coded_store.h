#pragma once
// The coded rows of one layer's KV heads on the GPU, in blocks of 32. Where the codec learns its
// tables, its first rows wait as they are. Under a sliding window the oldest rows are hidden one by
// one, by weights of -inf in the first block that is seen, and given back a few hundred at a time.

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "kernels/cuda/slab.h"
#include "rows/cuda/body_store.h"
#include "rows/cuda/dense_store.h"
#include "rows/cuda/device_codec.h"
#include "rows/cuda/record_table.h"

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

/// The bytes of `rows` rows of each head, without records, in a store that was asked for them at
/// once.
size_t codes_bytes(const DeviceCodec& codec, const StoreSite& site, size_t rows);

class CodedStore final : public BodyStore {
 public:
  CodedStore(std::shared_ptr<const DeviceCodec> codec, const StoreSite& site)
      : CodedStore(std::move(codec), site, true) {}
  CodedStore(const CodedStore& other);

  std::unique_ptr<BodyStore> clone() const override { return std::make_unique<CodedStore>(*this); }
  std::string kind() const override;
  size_t rows() const override { return rows_; }
  /// Whole blocks.
  void announce(size_t rows) override;
  StoreRoom room(const ComingRows& coming) const override;
  void hide_first(size_t count) override;
  void take(std::span<const BodyMove> moves) const override;

  // Of codecs that code rows alone:
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
  void append(const NewRows& rows, std::vector<CodeWork>* later = nullptr);
  /// Rows that append() takes at least: a codec that learns does so from the first that come.
  size_t least_appended() const { return learned_ ? 0 : codec_->learns_from(); }
  /// The codec with tables that this body's rows gave; null: it has none, or not yet.
  std::shared_ptr<const DeviceCodec> learnt() const { return learned_ ? codec_ : nullptr; }
  const DeviceCodec* learning() const override {
    return least_appended() > 0 ? codec_.get() : nullptr;
  }
  /// Codes by tables that another body's rows gave, and gives none itself.
  void follow(std::shared_ptr<const DeviceCodec> codec) {
    codec_ = std::move(codec);
    learned_ = follows_ = true;
  }
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
  /// None stays; memory does.
  void clear() { rows_ = blocks_ = 0; }
  /// Keys and where they are in memory, for their mass.
  void add_keys(MassTarget& target) const;

  /// The oldest rows go, whole blocks.
  void drop_front(size_t rows) { drop_front(rows, capacity()); }
  /// Rows that came before the first that is here.
  size_t gone() const { return gone_; }
  /// None stays, and so many are said to have come before the next.
  void skip_to(size_t gone) {
    clear();
    hidden_ = 0;
    gone_ = gone;
  }

  struct Piece {
    size_t first = 0, blocks = 0;
    DType dtype = DType::kF16;  ///< of the rows made: kF16 or kBF16
  };
  /// The call that makes keys of a piece; its destination is left open.
  UnpackRowsCall unpack_call(const Piece& piece) const;
  /// Of keys and values, to there.
  std::pair<UnpackRowsCall, UnpackRowsCall> unpack_calls(const RowTarget& to,
                                                         const Piece& piece) const;
  /// Keys and, if the target has room for them, values.
  void unpack(const RowTarget& to, const Piece& piece) const;
  const DeviceCodec& codec() const { return *codec_; }
  CodeBlocks all_blocks() const {
    return {at(kKeyCodes, 0, 0), at(kKeySide, 0, 0), at(kValueCodes, 0, 0), at(kValueSide, 0, 0),
            capacity()};
  }
  /// Where rows are hidden: the first block, or group, that is seen, and the others.
  size_t spans() const override { return site_.slides ? 2 : 1; }
  DeviceSpan span(size_t head, size_t which) const override;
  bool even() const override { return codec_->record_bytes() == 0; }
  /// Coded rows first, ... of one head; `first` begins a block.
  DeviceSpan coded_span(size_t head, size_t first, size_t rows) const;
  void attend_token(const DecodeCall& call, const DecodeScratch& scratch) const override {
    codec_->attend(call, scratch, site_.stream);
  }
  /// The call's span may hold a log_weight, and log_weights of all rows.
  void attend_chunk(ChunkAttention& attention, const CausalSpan& as,
                    const std::function<RowTarget()>& piece) const override;
  void add_rows(HeadRows& rows, size_t head, int64_t first_position) const override;
  void add_codes(std::vector<HeadCodes>& codes, size_t head, size_t first) const override {
    if (!waits()) codes.push_back({this, head, first, rows_});
  }
  void add_to(Ledger& ledger) const override;
  void archive(Archive& a, size_t tokens) override;
  /// The same where each head has rows of its own of those held: `of_heads` [G], whole blocks.
  void archive_heads(Archive& a, size_t tokens, std::span<const size_t> of_heads);

 private:
  /// Room beside a body, for its rows: those of its parts that become the body's begin as zeros.
  struct Beside {
    bool stays = false;
  };
  CodedStore(const Beside& use, const CodedStore& owner);
  /// `saved`: what nobody has written of blocks is 0.
  CodedStore(std::shared_ptr<const DeviceCodec> codec, const StoreSite& site, bool saved);
  const RecordTable& records() const { return owners_ ? *owners_ : records_; }

  void archive_counts(Archive& a, size_t tokens);
  void archive_blocks(Archive& a, std::span<const size_t> of_heads);

  size_t capacity() const { return parts_[0].capacity(); }  ///< blocks of a head
  /// Rows that are worth their room where `most` will be held: no more than come at all.
  size_t room_for(size_t most) const {
    return site_.context > 0 && most > 0 ? std::min(most, site_.context)
                                         : std::max(most, site_.context);
  }
  enum Part { kKeyCodes, kKeySide, kValueCodes, kValueSide, kParts };
  std::byte* at(Part part, size_t head, size_t block) const { return parts_[part].at(head, block); }
  bool waits() const { return !learned_ && rows_ < codec_->learns_from(); }
  void learn(const RowTarget& rows, DType dtype, const RowPositions& positions);
  int64_t first_position() const { return site_.position + static_cast<int64_t>(gone_); }
  void drop_front(size_t rows, size_t capacity);
  RowTarget waiting_at(size_t row) const {
    return rows_in(waiting_, codec_->learns_from(), site_.dim) + row;
  }
  struct BlockRun {
    size_t first = 0, count = 0;
    RowPositions positions;
  };
  CodeJob job(const RowTarget& from, Part codes, const BlockRun& blocks) const;
  /// That coded apart, to come here from row `first` on.
  CodeWork work_apart(const NewRows& rows, size_t first) const;
  /// Those of a body whose rows follow each other.
  BlockRun run(size_t first, size_t count) const {
    return {first, count, first_position() + static_cast<int64_t>(32 * first)};
  }
  /// Codes rows from.row, ... as those blocks.
  void code(const RowTarget& from, const BlockRun& blocks, DType dtype) const;
  CodeWork code_work(const RowTarget& from, const BlockRun& blocks, DType dtype) const;
  /// Takes rows into a body that waited: see learns_from.
  void take_early(const BodyMove& move);
  /// Room for the blocks of rows_.
  void reserve();
  DeviceGrowth growth() const { return {1, kDeviceBlocks, (site_.context + 31) / 32}; }
  size_t waiting_bytes() const { return 4 * site_.heads * codec_->learns_from() * site_.dim; }
  /// `count` rows come to `to` from this body.
  MoveCodesCall moves_to(const CodedStore& to, size_t count) const;
  /// Blocks `first`, ... of `from` come to new memory.
  void move_to(size_t capacity, const CodedStore& from, size_t first = 0);

  std::shared_ptr<const DeviceCodec> codec_;
  StoreSite site_;
  std::array<Slab, kParts> parts_;  // [G, capacity] blocks each
  size_t blocks_ = 0;               // of a head
  size_t rows_ = 0;                 // coded or waiting
  size_t gone_ = 0;                 // rows that came before those
  size_t hidden_ = 0;               // of rows_
  bool learned_ = false;            // the codec, from this body's rows
  bool follows_ = false;            // or from another's
  RecordTable records_;
  const RecordTable* owners_ = nullptr;             // the owner's, of bodies beside another
  DeviceBuffer waiting_;                            // [2, G, learns_from, D] while rows wait
  std::shared_ptr<const DeviceArray<float>> veil_;  // [2 block_rows]: -inf, then 0; or null
};

}  // namespace pith::cuda
