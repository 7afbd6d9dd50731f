#pragma once
// sink | body | window on the GPU. Blocks of exact rows leave the window in front and go into the
// body, or are dropped. Which rows lie where is what the plan says after each append; the body
// carries out its rule's steps.
//
// In layers with a sliding window of their own rows that no query will see again leave at once
// where they are dense; spans begin behind those that are still there.

#include "cache/cuda/layer_rows.h"
#include "cache/cuda/protected_store.h"

namespace pith::cuda {

class WindowedRows final : public LayerRows {
 public:
  WindowedRows(const LayerPlan& plan, const LayerSite& site);
  WindowedRows(const WindowedRows& other);

  std::unique_ptr<LayerRows> clone() const override;
  size_t spans() const override {
    return (body_ ? body_->spans() : 0) + (layer_.schedule.sink > 0 ? 1 : 0) + 1 +
           (protected_.any() ? 1 : 0);
  }
  RowTarget begin_token(const TokenSlots& slots) override;
  void attend_token(const TokenStep& step) const override;
  bool begins_freely() const override;
  void end_token(ChunkSpace& space, LateWork& late) override;
  void write_spans(const TokenSlots& slots) override;
  void attend_held(CausalCall& call, ChunkSpace& space) override;
  RowTarget begin_chunk(size_t tokens, ChunkSpace& space) override;
  void attend_chunk(CausalCall call, ChunkSpace& space) override;
  void end_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) override;
  void protect(const ProtectedRows& rows) override;
  void end_prefill(ChunkSpace&) override { hide(); }
  size_t layers_together() const override { return body_ ? body_->layers_together() : 1; }
  void add_rows(HeadRows& rows, size_t head) const override;
  void add_codes(std::vector<HeadCodes>& codes, size_t head) const override;
  size_t tokens() const override { return plan_.state().tokens; }
  void archive(Archive& a, const SeenStream& seen) override;
  void add_to(Ledger& ledger) const override;

 private:
  /// Tokens that are not protected; and how many of those the sink has.
  size_t open() const { return plan_.state().open; }
  size_t sink() const { return plan_.state().at(Zone::kSink); }
  int64_t seen() const { return static_cast<int64_t>(layer_.seen); }
  /// How many of the window's `rows` rows the body takes now, or are dropped.
  size_t leaving(size_t rows) const;
  /// What the window may need room for. Rows that a body's tables are made of wait in it.
  DeviceRowsShape window_shape() const;
  /// Tells the body which rows the next query does not see.
  void hide();
  /// Where a token's own row will be when it is attended to.
  struct Fresh {
    size_t sink = 0, window = 0, of_protected = 0;
  };
  void write_spans(const TokenSlots& slots, const Fresh& fresh) const;
  /// A chunk's attention to all but the window; begins it.
  void attend_before_window(CausalCall& call, ChunkSpace& space) const;
  void copy(const RowTarget& to, const RowTarget& from, size_t count) const {
    copy_rows({to, from, count, site_.heads, site_.dim}, site_.stream);
  }
  RowTarget sink_at(size_t row) const {
    return rows_in(sink_, layer_.schedule.sink, site_.dim) + row;
  }
  /// The sink as it is attended to.
  RowTarget seen_sink() const;
  /// Turns the sink's keys by `steps`, or by those at `steps_at` on the device.
  void turn_sink(int64_t steps, const int64_t* steps_at) const;
  /// Writes the positions of rows that leave, where the body keeps them and some are protected.
  void name_positions(BodyMove& move, ChunkSpace& space) const;
  size_t body_rows() const;
  void archive_window(Archive& a);

  LayerPlan layer_;
  LayerSite site_;
  Plan plan_;
  DeviceBuffer sink_;                 // [2, G, sink, D]
  DeviceBuffer turned_;               // [G, sink, D] keys, where positions are the cache's
  std::unique_ptr<DeviceBody> body_;  // null: rows that leave the window are dropped
  // Behind rows that wait until there are as many as the body takes.
  DeviceRows window_;
  ProtectedStore protected_;
};

}  // namespace pith::cuda
