#pragma once
// Two stores of coded rows of one layer on the GPU: the newest rows in one codec, older ones in
// another (see AgedCodec). Rows are unpacked to 16 bits and coded again once.

#include <functional>

#include "rows/cuda/coded_store.h"

namespace pith::cuda {

class AgedStore final : public BodyStore {
 public:
  /// `codec` has aged().
  AgedStore(std::shared_ptr<const DeviceCodec> codec, const StoreSite& site);

  std::unique_ptr<BodyStore> clone() const override { return std::make_unique<AgedStore>(*this); }
  std::string kind() const override { return "aged " + codec_->name(); }
  size_t rows() const override { return old_.rows() + young_.rows() + announced_; }
  void announce(size_t rows) override { announced_ += rows; }
  StoreRoom room(const ComingRows& coming) const override;
  void hide_first(size_t count) override;
  void take(std::span<const BodyMove> moves) const override;
  size_t spans() const override { return old_.spans() + young_.spans(); }
  DeviceSpan span(size_t head, size_t which) const override;
  bool even() const override { return old_.even() && young_.even(); }
  void attend_token(const DecodeCall& call, const DecodeScratch& scratch) const override {
    codec_->attend(call, scratch, site_.stream);
  }
  void attend_chunk(ChunkAttention& attention, const CausalSpan& as,
                    const std::function<RowTarget()>& piece) const override;
  void add_rows(HeadRows& rows, size_t head, int64_t first_position) const override;
  void add_codes(std::vector<HeadCodes>& codes, size_t head, size_t first) const override {
    old_.add_codes(codes, head, first);
    young_.add_codes(codes, head, first + old_.rows());
  }
  void add_to(Ledger& ledger) const override;
  void archive(Archive& a, size_t tokens) override;

 private:
  void append(RowTarget from, size_t rows);
  void age(size_t rows);

  std::shared_ptr<const DeviceCodec> codec_;
  StoreSite site_;
  CodedStore old_, young_;
  size_t announced_ = 0;  // rows that have not been taken
};

}  // namespace pith::cuda
