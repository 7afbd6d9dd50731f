#include "cache/cuda/in_place_rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/grouped_layout.h"

namespace pith::cuda {
namespace {

/// Of rows that go elsewhere.
class NoChoice final : public DeviceChooser {
 public:
  void choose(const SelectSpace&, const JudgedRows&, const Step&, cudaStream_t) const override {}
};

std::shared_ptr<const DeviceChooser> chooser_of(const LayerPlan& layer) {
  if (layer.selector.chooser) return layer.selector.chooser;
  return std::make_shared<NoChoice>();
}

}  // namespace

InPlaceRows::InPlaceRows(const LayerPlan& layer, const LayerSite& site)
    : layer_(layer),
      site_(site),
      plan_(plan_of(layer)),
      wants_mass_(plan_.mass(1).queries > 0),
      chooser_(chooser_of(layer)),
      coded_(layer.codec ? std::make_unique<CodedBody>(layer.codec, body_site(layer, site))
                         : nullptr),
      body_(layer.selector.body ? layer.selector.body->make(body_site(layer, site)) : nullptr),
      rows_(*site.memory, {site.heads, site.dim, layer.straight ? site.context : 0}, site.stream),
      positions_(*site.memory, MemoryKind::kMetadata),
      mass_(*site.memory, MemoryKind::kMetadata),
      weights_(*site.memory, MemoryKind::kMetadata),
      state_(*site.memory, MemoryKind::kMetadata,
             chooser_->state_numbers(site.query_heads, site.dim), site.stream),
      scaled_(*site.memory, MemoryKind::kScratch),
      pinned_(*site.memory, {site.heads, site.dim, 0}, layer.dtype, site.stream),
      ragged_(layer.selector.shared ? std::make_unique<RaggedRows>(layer, site, wants_mass_)
                                    : nullptr) {
  make_scaled();
  if (state_.size() == 0) return;
  check(cudaMemsetAsync(state_.data(), 0, state_.size() * sizeof(float), site.stream),
        "statistics of queries");
}

InPlaceRows::InPlaceRows(const InPlaceRows& o)
    : layer_(o.layer_),
      site_(o.site_),
      plan_(o.plan_),
      run_(o.run_),
      late_(o.late_),
      wants_mass_(o.wants_mass_),
      chooser_(o.chooser_),
      coded_(o.coded_ ? std::make_unique<CodedBody>(*o.coded_) : nullptr),
      body_(o.body_ ? o.body_->clone() : nullptr),
      rows_(o.rows_),
      positions_(*site_.memory, MemoryKind::kMetadata),
      mass_(*site_.memory, MemoryKind::kMetadata),
      weights_(*site_.memory, MemoryKind::kMetadata),
      state_(*site_.memory, MemoryKind::kMetadata, o.state_.size(), o.site_.stream),
      scaled_(*site_.memory, MemoryKind::kScratch),
      pinned_(o.pinned_),
      ragged_(o.ragged_ ? std::make_unique<RaggedRows>(*o.ragged_) : nullptr),
      known_(o.known_) {
  make_scaled();
  if (o.stride_ > 0) make_side(o.stride_, o);
  if (state_.size() == 0) return;
  check(cudaMemcpyAsync(state_.data(), o.state_.data(), state_.size() * sizeof(float),
                        cudaMemcpyDeviceToDevice, site_.stream),
        "a copy of the cache");
}

void InPlaceRows::make_scaled() {
  if (chooser_->scales_queries()) scaled_.allocate(2 * site_.query_heads * site_.dim, site_.stream);
}

void InPlaceRows::make_side(size_t stride, const InPlaceRows& from) {
  const auto grow = [&](auto& to, const auto& old, size_t heads, size_t count) {
    using T = std::remove_reference_t<decltype(*to.data())>;
    DeviceArray<T> fresh(*site_.memory, MemoryKind::kMetadata, heads * stride, site_.stream);
    if (count > 0 && from.stride_ > 0) {
      check(
          cudaMemcpy2DAsync(fresh.data(), stride * sizeof(T), old.data(), from.stride_ * sizeof(T),
                            count * sizeof(T), heads, cudaMemcpyDeviceToDevice, site_.stream),
          "the growth of the cache");
    }
    to = std::move(fresh);
  };
  grow(positions_, from.positions_, site_.heads, from.settled() + from.known_);
  if (wants_mass()) {
    grow(mass_, from.mass_, site_.heads, from.rows_.rows() + from.packed());
  }
  if (chooser_->weighs_rows() || weighs_codes()) {
    grow(weights_, from.weights_, 1, chooser_->weighs_rows() ? from.run_.judged : 0);
  }
  stride_ = stride;
  write_weights();
}

float InPlaceRows::log_weight(const RowRun::Weighted& rows) const {
  const double stands_for = static_cast<double>(rows.weight) / static_cast<double>(rows.of);
  return chooser_->weight_exponent() * static_cast<float>(std::log(stands_for));
}

void InPlaceRows::write_weights() const {
  if (!weighs_codes() || stride_ == 0) return;
  size_t first = 0;
  if (chooser_->weighs_rows()) {
    first = run_.judged;
  } else {
    for (const RowRun::Weighted& rows : run_.weighted) {
      fill_numbers(weights_.data() + first, rows.rows, log_weight(rows), site_.stream);
      first += rows.rows;
    }
  }
  fill_numbers(weights_.data() + first, stride_ - first, 0, site_.stream);
}

void InPlaceRows::reserve(size_t rows) {
  // Coders read whole blocks, of which the last may end behind the rows.
  rows_.reserve_more(rows + (packs() ? kBlockRows - 1 : 0));
  if (layer_.straight) return;
  const size_t needed = coded_rows() + rows_.rows() + rows;
  if (stride_ < needed) make_side(std::max(needed, coded_rows() + rows_.capacity()), *this);
}

InPlaceRows::Parts InPlaceRows::parts(size_t fresh, size_t to_sink) const {
  const size_t all = rows_.rows() + fresh;
  Parts parts;
  parts.part[0].rows = all;
  if (one_run()) return parts;
  parts.count = dense_parts();
  parts.part[0].rows = sink() + to_sink;
  if (!packs() && chooser_->weighs_rows()) {
    parts.part[1] = {run_.judged, 0, true};
  } else if (!packs()) {
    size_t gone = settled();
    WeightedPart* part = &parts.part[1];
    for (const RowRun::Weighted& rows : run_.weighted) {
      *part++ = {rows.rows - gone, log_weight(rows)};
      gone = 0;  // of one weight
    }
  }
  size_t rest = all;
  for (const WeightedPart& part : parts.all().first(parts.count - 1)) rest -= part.rows;
  parts.part[parts.count - 1].rows = rest;
  return parts;
}

MassTarget InPlaceRows::mass_target(size_t rows, bool fresh) const {
  if (!wants_mass()) return {};
  MassTarget target;
  target.keys = rows_.keys();
  target.mass = mass_.data();
  target.head_stride = rows_.head_stride();
  target.stride = stride_;
  target.rows = static_cast<int32_t>(rows);
  target.known = fresh ? 0 : static_cast<int32_t>(rows_.rows() + packed());
  if (packed() == 0) return target;
  coded_->add_keys(target);
  target.coded_from = static_cast<int32_t>(layer_.schedule.sink);
  return target;
}

RowTarget InPlaceRows::begin_token(const TokenSlots& slots) {
  const bool pinned = pinned_.covers(tokens());
  const size_t fresh = pinned ? 0 : 1;  // rows of the run
  if (!pinned) reserve(1);
  const RowTarget target = pinned ? pinned_.begin_token() : rows_.end();
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
    if (pinned_.any()) *span++ = pinned_.span(g, pinned_.rows() + 1 - fresh);
    if (ragged_) *span++ = ragged_->span(g);
  }
  const bool anew = plan_.mass(1).fresh;
  slots.note->mass = mass_target(rows_.rows() + fresh, anew);
  if (ragged_ && wants_mass()) slots.note[1].mass = ragged_->mass_target(anew);
  slots.note->queries = query_note(1);
  return target;
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
  if (state_.size() > 0) {
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
  if (!wants_mass()) return;
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

void InPlaceRows::end_token(ChunkSpace& space, std::vector<BodyMove>& moves) {
  const std::span<const Step> steps = plan_.append(1);
  if (steps.front().to == Zone::kProtected) return pinned_.add_token();
  rows_.add(1);
  carry_out(steps, false, space, moves);
}

RowTarget InPlaceRows::begin_chunk(size_t tokens, ChunkSpace&) {
  reserve(tokens);
  return rows_.end();
}

void InPlaceRows::attend_chunk(CausalCall call, ChunkSpace& space) {
  const auto tokens = static_cast<size_t>(call.tokens);
  const size_t all = rows_.rows() + tokens;
  // As they stood before the chunk: its own rows, also those of the sink, are seen causally.
  Parts parts = this->parts(tokens, 0);
  const auto counts_once = [](const WeightedPart& part) {
    return part.rows == 0 || (part.log_weight == 0 && !part.apart);
  };
  if (coded_rows() == 0 && std::ranges::all_of(parts.all(), counts_once)) {
    parts.part[0] = {all};
    parts.count = 1;
  }
  const size_t apart = pinned_.rows() + (body_ ? body_->rows() : 0) + shared();
  const bool alone = parts.count == 1 && apart == 0;
  if (wants_mass() || !alone || state_.size() > 0) space.lend_partials(call);
  if (state_.size() > 0) {
    StepQueries queries = queries_of(call.q, tokens);
    queries.scratch = call.out;  // attention has not begun
    chooser_->observe_chunk(queries, query_note(tokens), site_.stream);
  }
  if (chooser_->scales_queries()) {
    void* scaled = space.queries(tokens);
    chooser_->scale_chunk(scaled, queries_of(call.q, tokens), query_note(tokens), site_.stream);
    call.q = scaled;
  }
  pinned_.attend_chunk(call);
  if (ragged_) ragged_->attend_chunk(call);
  call.last = false;
  if (body_ && body_->rows() > 0) body_->attend_chunk(call, [&] { return space.piece(); });
  size_t first = 0;
  for (const WeightedPart& part : parts.all()) {
    call.last = false;
    if (coded_rows() > 0 && &part == &parts.part[1]) {
      call.span = {};
      call.span.log_weight = coded_log_weight();
      if (weighs_codes()) call.span.log_weights = weights_.data();
      coded_->attend_chunk(call, [&] { return space.piece(); });
    }
    call.last = &part == &parts.all().back();  // the chunk's own rows are in it
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
  if (wants_mass()) add_mass(call, space);
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

void InPlaceRows::end_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) {
  PinnedRows::Chunk chunk{rows_.end()};
  if (wants_mass()) chunk.mass = mass_.data() + packed() + rows_.rows();
  chunk.mass_stride = stride_;
  rows_.add(tokens);
  const std::span<const Step> steps = plan_.append(tokens);
  rows_.drop(pinned_.take(chunk, steps));
  carry_out(steps, true, space, moves);
}

void InPlaceRows::end_prefill(ChunkSpace& space) {
  std::vector<BodyMove> none;
  carry_out(plan_.end_prompt(), true, space, none);
  rows_.shrink();
  const size_t needed = coded_rows() + rows_.capacity();
  if (stride_ > needed) make_side(needed, *this);
}

void InPlaceRows::protect(const ProtectedRows& rows) {
  if (layer_.straight) return;  // all of them stay
  pinned_.protect(rows, layer_.schedule.sink);
  plan_.protect(rows.from(static_cast<int64_t>(layer_.schedule.sink)));
}

void InPlaceRows::add_rows(pith::HeadRows& out, size_t head) const {
  const size_t sink = this->sink(), known = settled() + known_;
  for (size_t i = 0; i < sink; ++i) out.positions.push_back(static_cast<int64_t>(i));
  std::vector<int32_t> positions(known);
  if (known > 0) {
    check(cudaMemcpyAsync(positions.data(), positions_.data() + head * stride_,
                          known * sizeof(int32_t), cudaMemcpyDeviceToHost, site_.stream),
          "rows held");
    check(cudaStreamSynchronize(site_.stream), "rows held");
  }
  out.positions.insert(out.positions.end(), positions.begin(), positions.end());
  for (size_t left = unsettled() - known_; left > 0; --left) {
    out.positions.push_back(static_cast<int64_t>(open() - left));
  }
  const Parts parts = this->parts(0, 0);
  const auto add_weights = [&](const WeightedPart& part) {
    const size_t first = out.log_weights.size();
    out.log_weights.resize(first + part.rows, part.log_weight);
    if (!part.apart || part.rows == 0) return;
    weights_.download(out.log_weights.data() + first, part.rows, site_.stream);
    check(cudaStreamSynchronize(site_.stream), "rows held");
  };
  for (const WeightedPart& part : parts.all()) {
    if (coded_ && &part == &parts.part[1]) {
      add_weights({coded_rows(), coded_log_weight(), weighs_codes()});
    }
    add_weights(part);
  }
  pinned_.finish(out, sink + known);  // ordinals until they are judged
  if (body_) body_->add_rows(out, head, 0);
  if (ragged_) ragged_->add_rows(out, head);
}

void InPlaceRows::add_codes(std::vector<HeadCodes>& codes, size_t head) const {
  if (coded_rows() > 0) coded_->add_codes(codes, head, sink());
  const size_t run = coded_rows() + rows_.rows() + pinned_.rows();
  if (body_) body_->add_codes(codes, head, run);
  if (ragged_) ragged_->add_codes(codes, head, run);
}

void InPlaceRows::add_to(Ledger& ledger) const {
  const size_t weighed = weighs_codes() ? packed() : chooser_->weighs_rows() ? run_.judged : 0;
  const size_t side =
      site_.heads * ((settled() + known_) * sizeof(int32_t) +
                     (wants_mass() ? (rows_.rows() + packed()) * sizeof(float) : 0)) +
      weighed * sizeof(float);
  rows_.add_to(ledger);
  ledger.metadata += side + state_.size() * sizeof(float);
  ledger.slack +=
      positions_.size() * sizeof(int32_t) + (mass_.size() + weights_.size()) * sizeof(float) - side;
  pinned_.add_to(ledger);
  if (ragged_) ragged_->add_to(ledger);
  if (coded_) coded_->add_to(ledger);
  if (body_) body_->add_to(ledger);
}

}  // namespace pith::cuda
