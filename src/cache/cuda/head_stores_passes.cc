// Tokens and chunks over rows that lie in one run: see head_stores.h.

#include <algorithm>
#include <cstddef>

#include "cache/cuda/head_stores.h"
#include "kernels/cuda/grouped_layout.h"

namespace pith::cuda {

bool HeadStores::begins_freely() const {
  if (body_ && layer_.seen > 0) return false;  // rows are hidden
  if (protected_.covers(tokens())) return protected_.has_room();
  if (flows() && sink() < layer_.schedule.sink) return true;
  if (!rows_.has_shape(run_shape()) || !rows_.has_room(run_needs(1))) return false;
  return layer_.straight || flows() || side_needs(1) <= sides_.capacity();
}

RowTarget HeadStores::begin_token(const TokenSlots& slots) {
  NewRows fresh;
  const bool is_protected = protected_.covers(tokens()), to_sink = sink() < layer_.schedule.sink;
  (is_protected ? fresh.of_protected : to_sink ? fresh.sink : fresh.run) = 1;
  const bool apart = flows() && fresh.sink > 0;
  if (!is_protected && !apart) reserve(1);
  const RowTarget target = is_protected ? protected_.begin_token()
                           : apart      ? sink_.end()
                                        : rows_.end();
  hide();
  write_spans(slots, fresh);
  const bool anew = plan_.mass(1).fresh;
  slots.note->mass = mass_target(rows_.rows() + fresh.sink + fresh.run, anew);
  if (ragged_ && sides_.has_mass()) slots.note[1].mass = ragged_->mass_target(anew);
  return target;
}

void HeadStores::write_spans(const TokenSlots& slots) {
  hide();
  write_spans(slots, {});
}

void HeadStores::write_spans(const TokenSlots& slots, const NewRows& fresh) const {
  Parts parts = this->parts(fresh, rows_.begin());
  DensePart& last = parts.part[parts.count - 1];
  if (layer_.seen > 0) {  // by a row behind those held
    const size_t unseen = rows_.rows() + 1 - std::min(rows_.rows() + 1, layer_.seen);
    last = {last.at + unseen, last.rows - unseen};
  }
  for (size_t g = 0; g < site_.heads; ++g) {
    DeviceSpan* span = slots.spans + g * slots.spans_apart;
    for (size_t i = 0; i < parts.count; ++i) {
      const DensePart& part = parts.part[i];
      for (size_t s = 0; i == parts.behind && between() && s < between()->spans(); ++s, ++span) {
        *span = between()->span(g, s);
        if (coded_) span->log_weight = coded_log_weight();
        if (weighs_codes()) span->log_weights = sides_.weights();
      }
      *span = dense_span(part.at, g, part.rows, site_.dim);
      span->log_weight = part.log_weight;
      span->log_weights = part.apart ? sides_.weights() : nullptr;
      const bool newest = &part == &last, turns = i == 0 && layer_.cache_positions;
      const size_t coming = newest ? fresh.sink + fresh.run : fresh.sink;
      span->ready_rows = turns ? 0 : static_cast<int32_t>(part.rows - std::min(part.rows, coming));
      ++span;
    }
    for (size_t s = 0; beside() && s < beside()->spans(); ++s) *span++ = beside()->span(g, s);
    if (protected_.any()) *span++ = protected_.span(g, protected_.rows() + fresh.of_protected);
    if (ragged_) *span++ = ragged_->span(g);
  }
  slots.note->evicted = static_cast<int64_t>(plan_.state().gone());
  slots.note->queries = query_note(1);
}

bool HeadStores::watches_queries() const {
  const DeviceCodec* codec = between() ? between()->learning() : nullptr;
  const size_t asked = codec ? codec->first_queries() : 0;
  return asked > 0 && tokens() < layer_.schedule.sink + asked;
}

void HeadStores::show_queries(const void* q, size_t tokens) const {
  if (!watches_queries()) return;
  const DeviceCodec& codec = *between()->learning();
  const size_t at = this->tokens(), sink = layer_.schedule.sink, first = std::max(at, sink);
  const size_t end = std::min(at + tokens, sink + codec.first_queries());
  if (end <= first) return;
  const size_t skipped = 2 * (first - at) * site_.query_heads * site_.dim;  // bytes
  codec.see_queries({static_cast<const std::byte*>(q) + skipped, layer_.dtype,
                     static_cast<int>(end - first), static_cast<int>(site_.query_heads)},
                    site_.stream);
}

void HeadStores::attend_token(const TokenStep& step) const {
  if (!step.only_reads) show_queries(step.call.q, 1);
  turn_sink(0, &step.note->evicted);
  const DecodeCall call = queries_.begin_token(step);
  if (between()) {
    between()->attend_token(call, step.scratch);
  } else {
    decode_dense(call, step.scratch, site_.stream);
  }
  if (!sides_.has_mass() || step.only_reads) return;
  const DecodeShape& shape = call.shape;
  TokenMass mass{{shape.query_heads, shape.kv_heads, shape.head_dim, call.dtype},
                 call.q,
                 call.log_sum,
                 call.company};
  mass.targets_apart = step.note_by_head ? sizeof(TokenNote) : 0;
  for (size_t i = 0; i < notes(); ++i) {
    mass.target_at = i * sizeof(TokenNote) + offsetof(TokenNote, mass);
    if (packs()) {
      coded_->codec().add_token_mass(mass, &step.note[i].mass, site_.stream);
    } else {
      add_token_mass(mass, &step.note[i].mass, site_.stream);
    }
  }
}

void HeadStores::end_token(ChunkSpace& space, LateWork& late) {
  const std::span<const Step> steps = plan_.append(1);
  if (steps.front().to == Zone::kProtected) return protected_.add_token();
  if (flows() && steps.front().to == Zone::kSink) return sink_.add(1);
  rows_.add(1);
  if (flows()) {
    rows_.drop_front(flow(rows_.begin(), rows_.rows(), space, late.moves));
  } else {
    carry_out(steps, false, space, late);
  }
}

// Where rows flow the window's and the chunk's lie side by side while the chunk is worked on: one
// span for attention, and one run of rows to be cut into blocks.
RowTarget HeadStores::begin_chunk(size_t tokens, ChunkSpace& space) {
  hide();
  if (!flows()) {
    reserve(tokens);
    return rows_.end();
  }
  rows_.reshape(run_shape());
  const RowTarget to = space.staging(rows_.rows() + tokens);
  copy_rows({to, rows_.begin(), rows_.rows(), site_.heads, site_.dim}, site_.stream);
  return to + rows_.rows();
}

void HeadStores::attend_chunk(CausalCall call, ChunkSpace& space) {
  const auto tokens = static_cast<size_t>(call.tokens);
  show_queries(call.q, tokens);
  const Parts parts =
      parts_of_chunk(tokens, flows() ? space.staging(rows_.rows() + tokens) : rows_.begin());
  const size_t apart = protected_.rows() + (body_ ? body_->rows() : 0) + shared();
  const bool alone = parts.count == 1 && apart == 0;
  if (sides_.has_mass() || !alone || queries_.kept()) space.lend_partials(call);
  queries_.observe_chunk(call, query_note(tokens));
  queries_.scale_chunk(call, query_note(tokens), space);
  ChunkAttention attention(call, site_.stream);
  attend_beside(attention, space);
  attend_run(attention, parts, tokens, space);
  attention.finish();
  if (sides_.has_mass()) add_mass(call, space);
}

void HeadStores::attend_held(CausalCall& call, ChunkSpace& space) {
  hide();
  space.lend_partials(call);
  queries_.scale_chunk(call, query_note(static_cast<size_t>(call.tokens)), space);
  ChunkAttention attention(call, site_.stream);
  attend_beside(attention, space);
  attend_run(attention, parts_of_chunk(0, rows_.begin()), 0, space);
  call.first = attention.none();
  attention.flush();
}

HeadStores::Parts HeadStores::parts_of_chunk(size_t tokens, const RowTarget& run) const {
  Parts parts = this->parts({.run = tokens}, run);
  const auto counts_once = [](const DensePart& part) {
    return part.rows == 0 || (part.log_weight == 0 && !part.apart);
  };
  if (!flows() && coded_rows() == 0 && std::ranges::all_of(parts.all(), counts_once)) {
    parts.part[0] = {run, rows_.rows() + tokens};
    parts.count = 1;
  }
  return parts;
}

void HeadStores::attend_body(ChunkAttention& attention, const BodyStore* body, const CausalSpan& as,
                             ChunkSpace& space) {
  if (!body || body->rows() == 0) return;
  body->attend_chunk(attention, as, [&] {
    attention.flush();
    return space.piece();
  });
}

void HeadStores::attend_beside(ChunkAttention& attention, ChunkSpace& space) const {
  if (ragged_) ragged_->attend_chunk(attention);
  attend_body(attention, beside(), {}, space);
  protected_.attend_chunk(attention);
}

void HeadStores::attend_run(ChunkAttention& attention, const Parts& parts, size_t own,
                            ChunkSpace& space) const {
  const auto seen = static_cast<int64_t>(layer_.seen);
  if (sink() > 0) turn_sink(static_cast<int64_t>(plan_.state().gone()), nullptr);
  CausalSpan as;
  if (seen > 0) as.from = static_cast<int64_t>(open() + 1) - seen;
  if (coded_) as.log_weight = coded_log_weight();
  if (weighs_codes()) as.log_weights = sides_.weights();
  attend_body(attention, between(), as, space);  // first: it may need what was added attended to
  for (const DensePart& part : parts.all()) {
    const bool newest = &part == &parts.all().back();
    if (part.rows == 0) continue;
    CausalSpan span = causal_span(part.at, part.rows, site_.dim);
    const auto before = static_cast<int64_t>(part.rows - own);
    if (newest && own > 0) span.before = before;
    if (newest && seen > 0) span.from = before + 1 - seen;
    span.log_weight = part.log_weight;
    if (part.apart) span.log_weights = sides_.weights();
    attention.add(span);
  }
}

void HeadStores::add_mass(const CausalCall& call, ChunkSpace& space) const {
  const auto tokens = static_cast<size_t>(call.tokens);
  const MassRequest request = plan_.mass(tokens);
  ChunkMass of;
  of.shape = {call.query_heads, call.kv_heads, call.head_dim, call.dtype};
  of.q = call.q;
  of.log_sum = call.log_sum;
  of.tokens = call.tokens;
  of.queries = static_cast<int>(std::min(request.queries, tokens));
  of.before = static_cast<int>(rows_.rows());
  const MassTarget target = mass_target(rows_.rows() + tokens, request.fresh);
  add_chunk_mass(of, target, site_.stream);
  if (ragged_) ragged_->add_chunk_mass(of, request.fresh);
  for (size_t first = 0; first < packed(); first += ChunkSpace::kPieceRows) {
    const size_t count = std::min(ChunkSpace::kPieceRows, packed() - first);
    RowTarget keys = space.piece();
    keys.v = nullptr;  // mass needs no values
    coded_->unpack(keys, {first / kBlockRows, (count + kBlockRows - 1) / kBlockRows, layer_.dtype});
    MassTarget piece;
    piece.keys = keys.k;
    piece.mass = target.mass + target.coded_from + first;
    piece.head_stride = keys.head_stride;
    piece.stride = sides_.capacity();
    piece.rows = static_cast<int32_t>(count);
    piece.known = request.fresh ? 0 : piece.rows;
    of.before = piece.rows;  // all queries see all of them
    add_chunk_mass(of, piece, site_.stream);
  }
}

// Nobody attended to the chunk's rows: they have no mass yet.
void HeadStores::append_chunk(size_t tokens, ChunkSpace& space, LateWork& late) {
  sides_.clear_mass(beside_rows().with_mass, tokens);
  end_chunk(tokens, space, late);
}

void HeadStores::end_chunk(size_t tokens, ChunkSpace& space, LateWork& late) {
  if (flows()) return end_staged(tokens, space, late.moves);
  const ProtectedStore::Chunk chunk{rows_.end(), sides_.mass(beside_rows().with_mass),
                                    sides_.capacity()};
  rows_.add(tokens);
  const std::span<const Step> steps = plan_.append(tokens);
  rows_.drop(protected_.take(chunk, steps));
  carry_out(steps, true, space, late);
}

}  // namespace pith::cuda
