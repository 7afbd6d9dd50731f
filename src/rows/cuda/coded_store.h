#pragma once
// The coded rows of one layer's KV heads on the GPU, in blocks of 32. Where the codec learns its
// tables, its first rows wait as they are. Under a sliding window the oldest rows are hidden one by
// one, by weights of -inf in the first block that is seen, and given back a few hundred at a time.

#include "rows/cuda/coded_blocks.h"
#include "rows/cuda/dense_store.h"

namespace pith::cuda {

class CodedStore final : public BodyStore {
 public:
  CodedStore(std::shared_ptr<const DeviceCodec> codec, const StoreSite& site);
  CodedStore(const CodedStore& other);

  std::unique_ptr<BodyStore> clone() const override { return std::make_unique<CodedStore>(*this); }
  std::string kind() const override;
  size_t rows() const override { return blocks_.rows(); }
  /// Whole blocks.
  void announce(size_t rows) override;
  StoreRoom room(const ComingRows& coming) const override;
  void hide_first(size_t count) override;
  void take(std::span<const BodyMove> moves) const override;

  /// The rows themselves, unless they wait; and of codecs that code rows alone which stay.
  CodedBlocks& blocks() { return blocks_; }
  const CodedBlocks& blocks() const { return blocks_; }
  const DeviceCodec& codec() const { return blocks_.codec(); }
  /// As CodedBlocks', where tables are made of the first rows.
  void append(const CodedBlocks::NewRows& rows, std::vector<CodeWork>* later = nullptr);
  /// Rows that append() takes at least: a codec that learns does so from the first that come.
  size_t least_appended() const { return learned_ ? 0 : codec().learns_from(); }
  /// The codec with tables that this body's rows gave; null: it has none, or not yet.
  std::shared_ptr<const DeviceCodec> learnt() const {
    return learned_ ? blocks_.shared_codec() : nullptr;
  }
  const DeviceCodec* learning() const override { return least_appended() > 0 ? &codec() : nullptr; }
  /// Codes by tables that another body's rows gave, and gives none itself.
  void follow(std::shared_ptr<const DeviceCodec> codec) {
    blocks_.set_codec(std::move(codec));
    learned_ = follows_ = true;
  }
  /// The oldest rows go, whole blocks; what room is left is for `most` rows at most.
  void drop_front(size_t rows, size_t most);
  /// None stays, and so many are said to have come before the next.
  void skip_to(size_t gone) {
    blocks_.clear(gone);
    hidden_ = 0;
  }

  /// Where rows are hidden: the first block, or group, that is seen, and the others.
  size_t spans() const override { return site_.slides ? 2 : 1; }
  DeviceSpan span(size_t head, size_t which) const override;
  bool even() const override { return codec().record_bytes() == 0; }
  void attend_token(const DecodeCall& call, const DecodeScratch& scratch) const override {
    codec().attend(call, scratch, site_.stream);
  }
  /// The call's span may hold a log_weight, and log_weights of all rows.
  void attend_chunk(ChunkAttention& attention, const CausalSpan& as,
                    const std::function<RowTarget()>& piece) const override;
  void add_rows(HeadRows& rows, size_t head, int64_t first_position) const override;
  void add_codes(std::vector<HeadCodes>& codes, size_t head, size_t first) const override {
    if (!waits()) codes.push_back({this, head, first, rows()});
  }
  void add_to(Ledger& ledger) const override;
  void archive(Archive& a, size_t tokens) override;
  /// The same where each head has rows of its own of those held: `of_heads` [G], whole blocks.
  void archive_heads(Archive& a, size_t tokens, std::span<const size_t> of_heads);

 private:
  void archive_counts(Archive& a, size_t tokens);
  void archive_rows_of(Archive& a, std::span<const size_t> of_heads);

  bool waits() const { return !learned_ && rows() < codec().learns_from(); }
  void learn(const RowTarget& rows, DType dtype, const RowPositions& positions);
  RowTarget waiting_at(size_t row) const {
    return rows_in(waiting_, codec().learns_from(), site_.dim) + row;
  }
  /// Takes rows into a body that waited: see learns_from.
  void take_early(const BodyMove& move);
  size_t waiting_bytes() const { return 4 * site_.heads * codec().learns_from() * site_.dim; }

  StoreSite site_;
  CodedBlocks blocks_;
  size_t hidden_ = 0;                               // of its rows
  bool learned_ = false;                            // the codec, from this body's rows
  bool follows_ = false;                            // or from another's
  DeviceBuffer waiting_;                            // [2, G, learns_from, D] while rows wait
  std::shared_ptr<const DeviceArray<float>> veil_;  // [2 block_rows]: -inf, then 0; or null
};

}  // namespace pith::cuda
