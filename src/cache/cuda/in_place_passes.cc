// Tokens and chunks over rows that lie in one run: see in_place_rows.h.

#include <algorithm>

#include "cache/cuda/in_place_rows.h"
#include "kernels/cuda/grouped_layout.h"

namespace pith::cuda {

bool InPlaceRows::begins_freely() const {
  if (protected_.covers(tokens())) return protected_.has_room();
  return rows_.has_room(run_needs(1)) && (layer_.straight || side_needs(1) <= stride_);
}

RowTarget InPlaceRows::begin_token(const TokenSlots& slots) {
  const bool is_protected = protected_.covers(tokens());
  const size_t fresh = is_protected ? 0 : 1;  // rows of the run
  if (!is_protected) reserve(1);
  const RowTarget target = is_protected ? protected_.begin_token() : rows_.end();
  write_spans(slots, fresh, is_protected);
  const bool anew = plan_.mass(1).fresh;
  slots.note->mass = mass_target(rows_.rows() + fresh, anew);
  if (ragged_ && wants_mass()) slots.note[1].mass = ragged_->mass_target(anew);
  return target;
}

void InPlaceRows::write_spans(const TokenSlots& slots, size_t fresh, bool is_protected) const {
  const Parts parts = this->parts(fresh, sink() < layer_.schedule.sink ? fresh : 0);
  const std::span<const WeightedPart> all = parts.all();
  DeviceSpan* span = slots.spans;
  for (size_t g = 0; g < site_.heads; ++g) {
    size_t first = 0;
    for (const WeightedPart& part : all) {
      if (coded_ && &part == &all[1]) {
        *span = coded_->span(g, 0);
        span->log_weight = coded_log_weight();
        if (weighs_codes()) span->log_weights = weights_.data();
        ++span;
      }
      *span = dense_span(rows_.begin() + first, g, part.rows, site_.dim);
      span->log_weight = part.log_weight;
      span->log_weights = part.apart ? weights_.data() : nullptr;
      span->settled_rows = span->rows - (&part == &all.back() ? static_cast<int32_t>(fresh) : 0);
      ++span;
      first += part.rows;
    }
    for (size_t i = 0; body_ && i < body_->spans(); ++i) *span++ = body_->span(g, i);
    if (protected_.any()) *span++ = protected_.span(g, protected_.rows() + (is_protected ? 1 : 0));
    if (ragged_) *span++ = ragged_->span(g);
  }
  slots.note->queries = query_note(1);
}

StepQueries InPlaceRows::queries_of(const void* q, size_t tokens) const {
  StepQueries queries;
  queries.dtype = layer_.dtype;
  queries.query_heads = static_cast<int>(site_.query_heads);
  queries.kv_heads = static_cast<int>(site_.heads);
  queries.dim = static_cast<int>(site_.dim);
  queries.tokens = static_cast<int>(tokens);
  queries.q = q;
  queries.state = state_.data();
  queries.frequencies = site_.rope ? site_.rope->device.data() : nullptr;
  return queries;
}

QueryNote InPlaceRows::query_note(size_t tokens) const {
  const size_t sink = layer_.schedule.sink, position = this->tokens();
  const size_t missing = sink - std::min(sink, position);
  return {static_cast<int64_t>(position), static_cast<int32_t>(std::min(tokens, missing)),
          static_cast<int32_t>(position - std::min(sink, position))};
}

void InPlaceRows::attend_token(const TokenStep& step) const {
  if (state_.size() > 0 && !step.only_reads) {
    chooser_->observe_token(queries_of(step.call.q, 1), &step.note->queries, site_.stream);
  }
  const bool alone = wants_mass() || chooser_->scales_queries();
  DecodeCall call = alone ? step.alone() : step.call;
  if (chooser_->scales_queries()) {
    chooser_->scale_token(scaled_.data(), queries_of(call.q, 1), &step.note->queries, site_.stream);
    call.q = scaled_.data();
  }
  if (coded_) {
    coded_->attend_token(call, step.scratch);
  } else {
    decode_dense(call, step.scratch, site_.stream);
  }
  if (!wants_mass() || step.only_reads) return;
  const DecodeShape& shape = call.shape;
  const TokenMass mass{
      {shape.query_heads, shape.kv_heads, shape.head_dim, call.dtype}, call.q, call.log_sum};
  for (size_t i = 0; i < notes(); ++i) {
    if (packs()) {
      coded_->codec().add_token_mass(mass, &step.note[i].mass, site_.stream);
    } else {
      add_token_mass(mass, &step.note[i].mass, site_.stream);
    }
  }
}

void InPlaceRows::end_token(ChunkSpace& space, LateWork& late) {
  const std::span<const Step> steps = plan_.append(1);
  if (steps.front().to == Zone::kProtected) return protected_.add_token();
  rows_.add(1);
  carry_out(steps, false, space, late);
}

RowTarget InPlaceRows::begin_chunk(size_t tokens, ChunkSpace&) {
  reserve(tokens);
  return rows_.end();
}

void InPlaceRows::attend_chunk(CausalCall call, ChunkSpace& space) {
  const auto tokens = static_cast<size_t>(call.tokens);
  const Parts parts = parts_of_chunk(tokens);
  const size_t apart = protected_.rows() + (body_ ? body_->rows() : 0) + shared();
  const bool alone = parts.count == 1 && apart == 0;
  if (wants_mass() || !alone || state_.size() > 0) space.lend_partials(call);
  if (state_.size() > 0) {
    StepQueries queries = queries_of(call.q, tokens);
    queries.scratch = call.out;  // attention has not begun
    chooser_->observe_chunk(queries, query_note(tokens), site_.stream);
  }
  scale_chunk(call, space);
  attend_beside(call, space);
  attend_run(call, parts, true, space);
  if (wants_mass()) add_mass(call, space);
}

void InPlaceRows::attend_held(CausalCall& call, ChunkSpace& space) {
  space.lend_partials(call);
  scale_chunk(call, space);
  attend_beside(call, space);
  attend_run(call, parts_of_chunk(0), false, space);
}

// As they stood before the chunk: its own rows, also those of the sink, are seen causally.
InPlaceRows::Parts InPlaceRows::parts_of_chunk(size_t tokens) const {
  Parts parts = this->parts(tokens, 0);
  const auto counts_once = [](const WeightedPart& part) {
    return part.rows == 0 || (part.log_weight == 0 && !part.apart);
  };
  if (coded_rows() == 0 && std::ranges::all_of(parts.all(), counts_once)) {
    parts.part[0] = {rows_.rows() + tokens};
    parts.count = 1;
  }
  return parts;
}

void InPlaceRows::scale_chunk(CausalCall& call, ChunkSpace& space) const {
  if (!chooser_->scales_queries()) return;
  const auto tokens = static_cast<size_t>(call.tokens);
  void* scaled = space.queries(tokens);
  chooser_->scale_chunk(scaled, queries_of(call.q, tokens), query_note(tokens), site_.stream);
  call.q = scaled;
}

void InPlaceRows::attend_beside(CausalCall& call, ChunkSpace& space) const {
  protected_.attend_chunk(call);
  if (ragged_) ragged_->attend_chunk(call);
  call.last = false;
  if (body_ && body_->rows() > 0) body_->attend_chunk(call, [&] { return space.piece(); });
}

void InPlaceRows::attend_run(CausalCall& call, const Parts& parts, bool own,
                             ChunkSpace& space) const {
  size_t first = 0;
  for (const WeightedPart& part : parts.all()) {
    call.last = false;
    if (coded_rows() > 0 && &part == &parts.part[1]) {
      call.span = {};
      call.span.log_weight = coded_log_weight();
      if (weighs_codes()) call.span.log_weights = weights_.data();
      coded_->attend_chunk(call, [&] { return space.piece(); });
    }
    call.last = own && &part == &parts.all().back();
    if (part.rows > 0) {
      call.span = causal_span(rows_.begin() + first, part.rows, site_.dim);
      if (call.last) call.span.before = static_cast<int64_t>(rows_.rows() - first);
      call.span.log_weight = part.log_weight;
      if (part.apart) call.span.log_weights = weights_.data();
      cuda::attend_chunk(call, site_.stream);
      call.first = false;
    }
    first += part.rows;
  }
}

void InPlaceRows::add_mass(const CausalCall& call, ChunkSpace& space) const {
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
    const RowTarget keys = space.piece();
    coded_->unpack(keys, {first / kBlockRows, (count + kBlockRows - 1) / kBlockRows, layer_.dtype});
    MassTarget piece;
    piece.keys = keys.k;
    piece.mass = target.mass + target.coded_from + first;
    piece.head_stride = keys.head_stride;
    piece.stride = stride_;
    piece.rows = static_cast<int32_t>(count);
    piece.known = request.fresh ? 0 : piece.rows;
    of.before = piece.rows;  // all queries see all of them
    add_chunk_mass(of, piece, site_.stream);
  }
}

// Nobody attended to the chunk's rows: they have no mass yet.
void InPlaceRows::append_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) {
  if (wants_mass())
    check(cudaMemset2DAsync(mass_.data() + packed() + rows_.rows(), stride_ * sizeof(float), 0,
                            tokens * sizeof(float), site_.heads, site_.stream),
          "the mass of new rows");
  end_chunk(tokens, space, moves);
}

void InPlaceRows::end_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) {
  ProtectedStore::Chunk chunk{rows_.end()};
  if (wants_mass()) chunk.mass = mass_.data() + packed() + rows_.rows();
  chunk.mass_stride = stride_;
  rows_.add(tokens);
  const std::span<const Step> steps = plan_.append(tokens);
  rows_.drop(protected_.take(chunk, steps));
  LateWork late;
  carry_out(steps, true, space, late);
  moves.insert(moves.end(), late.moves.begin(), late.moves.end());
}

}  // namespace pith::cuda
