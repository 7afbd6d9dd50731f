#pragma once
// sink | body | window on the GPU. The window is a ring of exact rows; blocks that leave it go into
// the body, or are dropped. Which rows lie where is what the plan says after each append; the body
// carries out its rule's steps.
//
// In layers with a sliding window of their own rows that no query will see again leave at once
// where they are dense; spans begin behind those that are still there.

#include "cache/cuda/layer_rows.h"
#include "cache/cuda/pinned_rows.h"

namespace pith::cuda {

class WindowedRows final : public LayerRows {
 public:
  WindowedRows(const LayerPlan& plan, const LayerSite& site);
  WindowedRows(const WindowedRows& other);

  std::unique_ptr<LayerRows> clone() const override;
  size_t spans() const override {
    return (body_ ? body_->spans() - 1 : 0) + (layer_.schedule.sink > 0 ? 1 : 0) + 2 +
           (pinned_.any() ? 1 : 0);
  }
  RowTarget begin_token(const TokenSlots& slots) override;
  void attend_token(const TokenStep& step) const override;
  void end_token(ChunkSpace& space, std::vector<BodyMove>& moves) override;
  RowTarget begin_chunk(size_t tokens, ChunkSpace& space) override;
  void attend_chunk(CausalCall call, ChunkSpace& space) override;
  void end_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) override;
  void protect(const ProtectedRows& rows) override;
  void end_prefill(ChunkSpace&) override { hide(); }
  size_t layers_together() const override { return body_ ? body_->layers_together() : 1; }
  void add_rows(pith::HeadRows& rows, size_t head) const override;
  void add_codes(std::vector<HeadCodes>& codes, size_t head) const override;
  size_t tokens() const override { return plan_.state().tokens; }
  void archive(Archive& a, const SeenStream& seen) override;
  void add_to(Ledger& ledger) const override;

 private:
  /// Tokens that are not protected; and how many of those the sink has.
  size_t open() const { return plan_.state().open; }
  size_t sink() const { return plan_.state().at(Zone::kSink); }
  /// How many of the ring's `rows` rows the body takes now, or are dropped.
  size_t leaving(size_t rows) const;
  /// Makes room for a row at the ring's end where it may not wrap.
  void make_room();
  /// Rows that the ring may need room for.
  size_t most_rows() const;
  void shrink_ring();
  /// Room for `rows` rows in the ring, up to what it may need; before that it does not wrap.
  void grow_ring(size_t rows);
  /// Tells the body which rows the next query does not see.
  void hide();
  DeviceSpan ring_span(const RowTarget& rows, size_t head, size_t count) const;
  void copy(const RowTarget& to, const RowTarget& from, size_t count) const {
    copy_rows({to, from, count, site_.heads, site_.dim}, site_.stream);
  }
  RowTarget sink_at(size_t row) const {
    return rows_in(sink_, layer_.schedule.sink, site_.dim) + row;
  }
  /// The sink as it is attended to.
  RowTarget seen_sink() const;
  /// Rows that have left the window and are gone.
  int64_t evicted() const;
  /// Turns the sink's keys by `steps`, or by those at `steps_at` on the device.
  void turn_sink(int64_t steps, const int64_t* steps_at) const;
  /// Writes the positions of rows that leave, where the body keeps them and some are protected.
  void name_positions(BodyMove& move, ChunkSpace& space) const;
  RowTarget ring_at(size_t row) const {
    return rows_in(ring_, ring_capacity_, site_.dim) +
           (ring_capacity_ > 0 ? row % ring_capacity_ : 0);
  }
  size_t body_rows() const;
  void archive_ring(Archive& a);

  LayerPlan layer_;
  LayerSite site_;
  Plan plan_;
  // Rows, a multiple of 32. Before a body, twice what the window needs: its rows then move to
  // the front when they reach the end, once in some 160 tokens, and attention sees one span. Where
  // the window is all there is, it wraps instead, and grows until it is full.
  size_t ring_most_, ring_capacity_ = 0;
  DeviceBuffer sink_, ring_;          // [2, G, sink], [2, G, ring_capacity], D
  DeviceBuffer turned_;               // [G, sink, D] keys, where positions are the cache's
  std::unique_ptr<DeviceBody> body_;  // null: rows that leave the window are dropped
  PinnedRows pinned_;
  // Of the ring: the window's rows, behind those that wait until there are as many as the body
  // takes.
  size_t front_ = 0, count_ = 0;
};

}  // namespace pith::cuda
