#pragma once
// Attention of KV heads under one rule to what their stores hold, of a token's queries or a
// chunk's. Under a sliding window spans begin behind the rows that no query sees again.

#include <string>

#include "cache/cuda/dense_parts.h"

namespace pith::cuda {

class HeadAttention {
 public:
  explicit HeadAttention(const HeadStores& stores) : s_(stores) {}

  /// Of each head: dense parts, codes or a body, protected rows, ragged ones.
  size_t spans() const;
  size_t notes() const;
  /// Whether kernels of a token read them.
  bool reads_notes() const;
  /// Of neighbours in a layer those of one form attend in one call: attention of one of them serves
  /// all. Empty: no other's.
  std::string form() const;
  /// The next token's queries are shown to the codec: launches are not those of other steps.
  bool watches_queries() const;
  /// As they are with those rows in place.
  void write_spans(const TokenSlots& slots, const NewRows& fresh) const;
  void attend_token(const TokenStep& step) const;

  /// See LayerRows.
  void attend_chunk(CausalCall call, ChunkSpace& space) const;
  void attend_held(CausalCall& call, ChunkSpace& space) const;

 private:
  /// Between the sink and the run's dense rows: its codes, or what rows flow into.
  const BodyStore* between() const {
    return s_.zones().flows() ? s_.body.get() : static_cast<const BodyStore*>(s_.codes.get());
  }
  /// Of what leaves the heavy rows.
  const BodyStore* beside() const { return s_.zones().flows() ? nullptr : s_.body.get(); }
  /// The first queries behind the sink go to a codec that is yet to learn.
  void show_queries(const void* q, size_t tokens) const;
  QueryNote query_note(size_t tokens) const { return s_.queries.note(s_.tokens(), tokens); }
  /// The sink's keys where positions are the cache's: rotated by `steps`, or by those at `steps_at`
  /// on the device.
  void turn_sink(int64_t steps, const int64_t* steps_at) const;
  /// To a body's rows, if there are any; `as`: see BodyStore.
  static void attend_body(ChunkAttention& attention, const BodyStore* body, const CausalSpan& as,
                          ChunkSpace& space);
  /// Begins a chunk's attention: all but the run and the codes in it.
  void attend_beside(ChunkAttention& attention, ChunkSpace& space) const;
  /// Goes on with those; `own` of the chunk's rows are the last of them, and end it, or none.
  void attend_run(ChunkAttention& attention, const DenseParts& parts, size_t own,
                  ChunkSpace& space) const;

  const HeadStores& s_;
};

}  // namespace pith::cuda
