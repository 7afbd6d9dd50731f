#include "cache/cuda/selected_rows.h"

#include <algorithm>

#include "kernels/cuda/grouped_layout.h"

namespace pith::cuda {
namespace {

/// Rows that leave the heavy store go elsewhere.
class NoRule final : public ScoreRule {
 public:
  std::optional<Judgement> judge(const BodyCounts&, Moment) const override { return std::nullopt; }
  void choose(const SelectSpace&, const JudgedRows&, int, cudaStream_t) const override {}
};

}  // namespace

SelectedRows::SelectedRows(const LayerPlan& plan, const LayerSite& site)
    : plan_(plan),
      site_(site),
      rule_(plan.selector.scores ? plan.selector.scores : std::make_shared<NoRule>()),
      coded_(plan.codec ? std::make_unique<CodedBody>(plan.codec, body_site(plan, site)) : nullptr),
      body_(plan.selector.body ? plan.selector.body->make(body_site(plan, site)) : nullptr),
      rows_(*site.memory, {site.heads, site.dim, 0}, site.stream),
      positions_(*site.memory, MemoryKind::kMetadata),
      mass_(*site.memory, MemoryKind::kMetadata),
      weights_(*site.memory, MemoryKind::kMetadata),
      state_(*site.memory, MemoryKind::kMetadata, rule_->state_numbers(site.query_heads, site.dim),
             site.stream),
      scaled_(*site.memory, MemoryKind::kScratch),
      pinned_(*site.memory, {site.heads, site.dim, 0}, plan.dtype, site.stream) {
  make_scaled();
  if (state_.size() == 0) return;
  check(cudaMemsetAsync(state_.data(), 0, state_.size() * sizeof(float), site.stream),
        "statistics of queries");
}

SelectedRows::SelectedRows(const SelectedRows& o)
    : plan_(o.plan_),
      site_(o.site_),
      rule_(o.rule_),
      coded_(o.coded_ ? std::make_unique<CodedBody>(*o.coded_) : nullptr),
      body_(o.body_ ? o.body_->clone() : nullptr),
      rows_(o.rows_),
      positions_(*o.site_.memory, MemoryKind::kMetadata),
      mass_(*o.site_.memory, MemoryKind::kMetadata),
      weights_(*o.site_.memory, MemoryKind::kMetadata),
      state_(*o.site_.memory, MemoryKind::kMetadata, o.state_.size(), o.site_.stream),
      scaled_(*o.site_.memory, MemoryKind::kScratch),
      pinned_(o.pinned_),
      tokens_(o.tokens_),
      counts_(o.counts_),
      heavy_(o.heavy_),
      known_(o.known_) {
  make_scaled();
  if (o.stride_ > 0) make_side(o.stride_, o);
  if (state_.size() == 0) return;
  check(cudaMemcpyAsync(state_.data(), o.state_.data(), state_.size() * sizeof(float),
                        cudaMemcpyDeviceToDevice, site_.stream),
        "a copy of the cache");
}

void SelectedRows::make_scaled() {
  if (rule_->scales_queries()) scaled_.allocate(2 * site_.query_heads * site_.dim, site_.stream);
}

void SelectedRows::make_side(size_t stride, const SelectedRows& from) {
  const auto grow = [&](auto& to, const auto& old, size_t heads, size_t count) {
    using T = std::remove_reference_t<decltype(*to.data())>;
    DeviceArray<T> fresh(*site_.memory, MemoryKind::kMetadata, heads * stride, site_.stream);
    if (count > 0) {
      check(
          cudaMemcpy2DAsync(fresh.data(), stride * sizeof(T), old.data(), from.stride_ * sizeof(T),
                            count * sizeof(T), heads, cudaMemcpyDeviceToDevice, site_.stream),
          "the growth of the cache");
    }
    to = std::move(fresh);
  };
  grow(positions_, from.positions_, site_.heads, from.counts_.coded + from.known_);
  if (wants_mass()) {
    grow(mass_, from.mass_, site_.heads, from.rows_.rows() + from.packed());
  }
  if (rule_->weighs_rows() || weighs_codes()) {
    grow(weights_, from.weights_, 1, rule_->weighs_rows() ? from.counts_.judged : 0);
  }
  stride_ = stride;
  write_weights();
}

void SelectedRows::write_weights() const {
  if (!weighs_codes() || stride_ == 0) return;
  size_t first = rule_->weighs_rows() ? counts_.judged : 0;
  if (!rule_->weighs_rows()) {
    std::vector<WeightedPart> parts(rule_->parts());
    rule_->weigh(parts, counts_);
    for (const WeightedPart& part : parts) {
      fill_numbers(weights_.data() + first, part.rows, part.log_weight, site_.stream);
      first += part.rows;
    }
  }
  fill_numbers(weights_.data() + first, stride_ - first, 0, site_.stream);
}

void SelectedRows::reserve(size_t rows) {
  // Coders read whole blocks, of which the last may end behind the rows.
  rows_.reserve_more(rows + (packs() ? kBlockRows - 1 : 0));
  const size_t needed = counts_.coded + packed() + rows_.rows() + rows;
  if (stride_ < needed)
    make_side(std::max(needed, counts_.coded + packed() + rows_.capacity()), *this);
}

std::vector<WeightedPart> SelectedRows::parts(size_t tokens) const {
  const size_t all = rows_.rows() + tokens - tokens_;
  if (one_run()) return {{all, 0}};
  std::vector<WeightedPart> parts(dense_parts());
  parts.front().rows = std::min(tokens, plan_.schedule.sink);
  if (parts.size() > 2) rule_->weigh(std::span(parts).subspan(1, rule_->parts()), counts_);
  size_t rest = all;
  for (const WeightedPart& part : parts) rest -= part.rows;
  parts.back().rows = rest;
  return parts;
}

MassTarget SelectedRows::mass_target(size_t rows, bool fresh) const {
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
  target.coded_from = static_cast<int32_t>(plan_.schedule.sink);
  return target;
}

RowTarget SelectedRows::begin_token(const TokenSlots& slots) {
  const bool pinned = pinned_.covers(tokens());
  const size_t fresh = pinned ? 0 : 1;  // rows of the run
  if (!pinned) reserve(1);
  const RowTarget target = pinned ? pinned_.begin_token() : rows_.end();
  const std::vector<WeightedPart> parts = this->parts(tokens_ + fresh);
  DeviceSpan* span = slots.spans;
  for (size_t g = 0; g < site_.heads; ++g) {
    size_t first = 0;
    for (const WeightedPart& part : parts) {
      if (coded_ && &part == &parts[1]) {
        *span = coded_->span(g, 0);
        span->log_weight = coded_log_weight();
        if (weighs_codes()) span->log_weights = weights_.data();
        ++span;
      }
      const size_t at = (g * rows_.head_stride() + first * site_.dim) * 2;
      *span = {};
      span->keys = rows_.keys() + at;
      span->values = rows_.values() + at;
      span->log_weight = part.log_weight;
      span->log_weights = part.apart ? weights_.data() : nullptr;
      span->rows = static_cast<int32_t>(part.rows);
      span->row_stride = static_cast<int32_t>(site_.dim);
      span->settled_rows = span->rows - (&part == &parts.back() ? static_cast<int32_t>(fresh) : 0);
      ++span;
      first += part.rows;
    }
    if (body_) *span++ = body_->span(g, 0);
    if (pinned_.any()) *span++ = pinned_.span(g, pinned_.rows() + 1 - fresh);
  }
  slots.note->mass = mass_target(rows_.rows() + fresh, mass_request(1).fresh);
  slots.note->queries = query_note(1);
  return target;
}

StepQueries SelectedRows::queries_of(const void* q, size_t tokens) const {
  StepQueries queries;
  queries.dtype = plan_.dtype;
  queries.query_heads = static_cast<int>(site_.query_heads);
  queries.kv_heads = static_cast<int>(site_.heads);
  queries.dim = static_cast<int>(site_.dim);
  queries.tokens = static_cast<int>(tokens);
  queries.q = q;
  queries.state = state_.data();
  queries.frequencies = site_.rope ? site_.rope->device.data() : nullptr;
  return queries;
}

QueryNote SelectedRows::query_note(size_t tokens) const {
  const size_t sink = plan_.schedule.sink, position = this->tokens();
  const size_t missing = sink - std::min(sink, position);
  return {static_cast<int64_t>(position), static_cast<int32_t>(std::min(tokens, missing)),
          static_cast<int32_t>(position - std::min(sink, position))};
}

void SelectedRows::attend_token(const TokenStep& step) const {
  if (state_.size() > 0) {
    rule_->observe_token(queries_of(step.call.q, 1), &step.note->queries, site_.stream);
  }
  DecodeCall call = step.call;
  if (rule_->scales_queries()) {
    rule_->scale_token(scaled_.data(), queries_of(call.q, 1), &step.note->queries, site_.stream);
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
  if (packs()) {
    coded_->codec().add_token_mass(mass, &step.note->mass, site_.stream);
  } else {
    add_token_mass(mass, &step.note->mass, site_.stream);
  }
}

void SelectedRows::end_token(ChunkSpace& space, std::vector<BodyMove>& moves) {
  if (pinned_.covers(tokens())) return pinned_.add_token();
  rows_.add(1);
  take(1, space, moves);
}

RowTarget SelectedRows::begin_chunk(size_t tokens, ChunkSpace&) {
  reserve(tokens);
  return rows_.end();
}

void SelectedRows::attend_chunk(CausalCall call, ChunkSpace& space) {
  const auto tokens = static_cast<size_t>(call.tokens);
  const size_t all = rows_.rows() + tokens;
  // As they stood before the chunk: its own rows, also those of the sink, are seen causally.
  std::vector<WeightedPart> parts = this->parts(tokens_);
  parts.back().rows += tokens;
  const auto counts_once = [](const WeightedPart& part) {
    return part.rows == 0 || (part.log_weight == 0 && !part.apart);
  };
  if (coded_rows() == 0 && std::ranges::all_of(parts, counts_once)) parts = {{all, 0}};
  const size_t apart = pinned_.rows() + (body_ ? body_->rows() : 0);
  const bool alone = parts.size() == 1 && apart == 0;
  if (wants_mass() || !alone || state_.size() > 0) space.lend_partials(call);
  if (state_.size() > 0) {
    StepQueries queries = queries_of(call.q, tokens);
    queries.scratch = call.out;  // attention has not begun
    rule_->observe_chunk(queries, query_note(tokens), site_.stream);
  }
  if (rule_->scales_queries()) {
    void* scaled = space.queries(tokens);
    rule_->scale_chunk(scaled, queries_of(call.q, tokens), query_note(tokens), site_.stream);
    call.q = scaled;
  }
  pinned_.attend_chunk(call);
  call.last = false;
  if (body_ && body_->rows() > 0) body_->attend_chunk(call, [&] { return space.piece(); });
  size_t first = 0;
  for (const WeightedPart& part : parts) {
    call.last = false;
    if (coded_rows() > 0 && &part == &parts[1]) {
      call.span = {};
      call.span.log_weight = coded_log_weight();
      if (weighs_codes()) call.span.log_weights = weights_.data();
      coded_->attend_chunk(call, [&] { return space.piece(); });
    }
    call.last = &part == &parts.back();  // the chunk's own rows are in it
    if (part.rows > 0) {
      const size_t at = first * site_.dim * 2;
      const auto before = call.last ? static_cast<int64_t>(rows_.rows() - first) : -1;
      call.span = {rows_.keys() + at,
                   rows_.values() + at,
                   rows_.head_stride(),
                   static_cast<int64_t>(part.rows),
                   before,
                   part.log_weight,
                   part.apart ? weights_.data() : nullptr};
      cuda::attend_chunk(call, site_.stream);
      call.first = false;
    }
    first += part.rows;
  }
  if (wants_mass()) add_mass(call, space);
}

void SelectedRows::add_mass(const CausalCall& call, ChunkSpace& space) const {
  const auto tokens = static_cast<size_t>(call.tokens);
  const MassRequest request = mass_request(tokens);
  ChunkMass of;
  of.shape = {call.query_heads, call.kv_heads, call.head_dim, call.dtype};
  of.q = call.q;
  of.log_sum = call.log_sum;
  of.tokens = call.tokens;
  of.queries = static_cast<int>(std::min(request.queries, tokens));
  of.before = static_cast<int>(rows_.rows());
  const MassTarget target = mass_target(rows_.rows() + tokens, request.fresh);
  add_chunk_mass(of, target, site_.stream);
  for (size_t first = 0; first < packed(); first += ChunkSpace::kPieceRows) {
    const size_t count = std::min(ChunkSpace::kPieceRows, packed() - first);
    const RowTarget keys = space.piece();
    coded_->unpack(keys, {first / kBlockRows, (count + kBlockRows - 1) / kBlockRows, plan_.dtype});
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

void SelectedRows::end_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) {
  PinnedRows::Chunk chunk{rows_.end(), this->tokens(), tokens};
  if (wants_mass()) chunk.mass = mass_.data() + packed() + rows_.rows();
  chunk.mass_stride = stride_;
  rows_.add(tokens);
  const size_t pinned = pinned_.take(chunk);
  rows_.drop(pinned);
  if (tokens > pinned) take(tokens - pinned, space, moves);
}

void SelectedRows::end_prefill(ChunkSpace& space) {
  judge(Moment::kPromptEnd, space);
  rows_.shrink();
  const size_t needed = counts_.coded + packed() + rows_.capacity();
  if (stride_ > needed) make_side(needed, *this);
}

void SelectedRows::add_rows(pith::HeadRows& out, size_t head) const {
  const size_t sink = std::min(tokens_, plan_.schedule.sink);
  const size_t known = counts_.coded + known_;
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
    out.positions.push_back(static_cast<int64_t>(tokens_ - left));
  }
  const std::vector<WeightedPart> parts = this->parts(tokens_);
  const auto add_weights = [&](const WeightedPart& part) {
    const size_t first = out.log_weights.size();
    out.log_weights.resize(first + part.rows, part.log_weight);
    if (!part.apart || part.rows == 0) return;
    weights_.download(out.log_weights.data() + first, part.rows, site_.stream);
    check(cudaStreamSynchronize(site_.stream), "rows held");
  };
  for (const WeightedPart& part : parts) {
    if (coded_ && &part == &parts[1]) {
      add_weights({coded_rows(), coded_log_weight(), weighs_codes()});
    }
    add_weights(part);
  }
  pinned_.finish(out, sink + known);  // ordinals until they are judged
  if (body_) body_->add_rows(out, head, 0);
}

void SelectedRows::add_codes(std::vector<HeadCodes>& codes, size_t head) const {
  const size_t sink = std::min(tokens_, plan_.schedule.sink);
  if (coded_rows() > 0) coded_->add_codes(codes, head, sink);
  if (body_) body_->add_codes(codes, head, coded_rows() + rows_.rows() + pinned_.rows());
}

void SelectedRows::add_to(Ledger& ledger) const {
  const size_t held = rows_.held_bytes();
  const size_t weighed = weighs_codes() ? packed() : rule_->weighs_rows() ? counts_.judged : 0;
  const size_t side =
      site_.heads * ((counts_.coded + known_) * sizeof(int32_t) +
                     (wants_mass() ? (rows_.rows() + packed()) * sizeof(float) : 0)) +
      weighed * sizeof(float);
  ledger.payload += held;
  ledger.metadata += side + state_.size() * sizeof(float);
  ledger.slack += rows_.allocated_bytes() - held + positions_.size() * sizeof(int32_t) +
                  (mass_.size() + weights_.size()) * sizeof(float) - side;
  ledger.rows_kept += rows_.rows() * site_.heads;
  pinned_.add_to(ledger);
  if (coded_) coded_->add_to(ledger);
  if (body_) body_->add_to(ledger);
}

}  // namespace pith::cuda
