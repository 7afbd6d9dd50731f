#include "cache/cuda/selected_rows.h"

#include <algorithm>

#include "kernels/cuda/grouped_layout.h"

namespace pith::cuda {

SelectedRows::SelectedRows(const LayerPlan& plan, const LayerSite& site)
    : plan_(plan),
      site_(site),
      rule_(plan.selector.scores),
      coded_(plan.codec ? std::make_unique<CodedBody>(
                              plan.codec, BodySite{site.memory, site.stream, plan.dtype, site.heads,
                                                   site.dim, site.context})
                        : nullptr),
      rows_(*site.memory, {site.heads, site.dim, 0}, site.stream),
      positions_(*site.memory, MemoryKind::kMetadata),
      mass_(*site.memory, MemoryKind::kMetadata) {}

SelectedRows::SelectedRows(const SelectedRows& o)
    : plan_(o.plan_),
      site_(o.site_),
      rule_(o.rule_),
      coded_(o.coded_ ? std::make_unique<CodedBody>(*o.coded_) : nullptr),
      rows_(o.rows_),
      positions_(*o.site_.memory, MemoryKind::kMetadata),
      mass_(*o.site_.memory, MemoryKind::kMetadata),
      tokens_(o.tokens_),
      counts_(o.counts_) {
  if (o.stride_ > 0) make_side(o.stride_, o);
}

void SelectedRows::make_side(size_t stride, const SelectedRows& from) {
  const auto grow = [&](auto& to, const auto& old, size_t count) {
    using T = std::remove_reference_t<decltype(*to.data())>;
    DeviceArray<T> fresh(*site_.memory, MemoryKind::kMetadata, site_.heads * stride, site_.stream);
    if (count > 0) {
      check(
          cudaMemcpy2DAsync(fresh.data(), stride * sizeof(T), old.data(), from.stride_ * sizeof(T),
                            count * sizeof(T), site_.heads, cudaMemcpyDeviceToDevice, site_.stream),
          "the growth of the cache");
    }
    to = std::move(fresh);
  };
  grow(positions_, from.positions_, from.counts_.coded + from.counts_.judged);
  if (rule_->wants_mass()) grow(mass_, from.mass_, from.rows_.rows() + from.packed());
  stride_ = stride;
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
  if (spans() == 1) return {{all, 0}};
  std::vector<WeightedPart> parts(rule_->parts() + 2);
  parts.front().rows = std::min(tokens, plan_.schedule.sink);
  rule_->weigh(std::span(parts).subspan(1, rule_->parts()), counts_);
  size_t rest = all;
  for (const WeightedPart& part : parts) rest -= part.rows;
  parts.back().rows = rest;
  return parts;
}

MassTarget SelectedRows::mass_target(size_t rows, bool fresh) const {
  if (!rule_->wants_mass()) return {};
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
  reserve(1);
  const std::vector<WeightedPart> parts = this->parts(tokens_ + 1);
  DeviceSpan* span = slots.spans;
  for (size_t g = 0; g < site_.heads; ++g) {
    size_t first = 0;
    for (const WeightedPart& part : parts) {
      if (coded_ && &part == &parts[1]) {
        *span = coded_->span(g);
        span->log_weight = rule_->settled_log_weight();
        ++span;
      }
      const size_t at = (g * rows_.head_stride() + first * site_.dim) * 2;
      *span = {};
      span->keys = rows_.keys() + at;
      span->values = rows_.values() + at;
      span->log_weight = part.log_weight;
      span->rows = static_cast<int32_t>(part.rows);
      span->row_stride = static_cast<int32_t>(site_.dim);
      ++span;
      first += part.rows;
    }
  }
  *slots.mass = mass_target(rows_.rows() + 1, rule_->mass(1, counts_).fresh);
  return rows_.end();
}

void SelectedRows::attend_token(const TokenStep& step) const {
  if (coded_) {
    coded_->attend_token(step.call, step.scratch);
  } else {
    decode_dense(step.call, step.scratch, site_.stream);
  }
  if (!rule_->wants_mass()) return;
  const DecodeShape& shape = step.call.shape;
  const TokenMass mass{{shape.query_heads, shape.kv_heads, shape.head_dim, step.call.dtype},
                       step.call.q,
                       step.call.log_sum};
  if (packs()) {
    coded_->codec().add_token_mass(mass, step.mass, site_.stream);
  } else {
    add_token_mass(mass, step.mass, site_.stream);
  }
}

void SelectedRows::end_token(ChunkSpace& space, std::vector<BodyMove>&) {
  rows_.add(1);
  take(1, space);
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
    return part.rows == 0 || part.log_weight == 0;
  };
  if (coded_rows() == 0 && std::ranges::all_of(parts, counts_once)) parts = {{all, 0}};
  if (rule_->wants_mass() || parts.size() > 1) space.lend_partials(call);
  size_t first = 0;
  for (const WeightedPart& part : parts) {
    call.last = false;
    if (coded_rows() > 0 && &part == &parts[1]) {
      call.span.log_weight = rule_->settled_log_weight();
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
                   part.log_weight};
      cuda::attend_chunk(call, site_.stream);
      call.first = false;
    }
    first += part.rows;
  }
  if (rule_->wants_mass()) add_mass(call, space);
}

void SelectedRows::add_mass(const CausalCall& call, ChunkSpace& space) const {
  const auto tokens = static_cast<size_t>(call.tokens);
  const MassRequest request = rule_->mass(tokens, counts_);
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
    coded_->unpack(keys, first / kBlockRows, (count + kBlockRows - 1) / kBlockRows);
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

void SelectedRows::end_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>&) {
  rows_.add(tokens);
  take(tokens, space);
}

void SelectedRows::end_prefill(ChunkSpace& space) {
  judge(Moment::kPromptEnd, space);
  rows_.shrink();
  const size_t needed = counts_.coded + packed() + rows_.capacity();
  if (stride_ > needed) make_side(needed, *this);
}

void SelectedRows::take(size_t tokens, ChunkSpace& space) {
  tokens_ += tokens;
  const size_t body = occupancy(plan_.schedule, tokens_).body;
  while (counts_.seen < body) {
    judge(Moment::kBeforeRow, space);
    ++counts_.seen;
    ++counts_.held;
    judge(Moment::kRow, space);
  }
  judge(tokens > 1 ? Moment::kChunkEnd : Moment::kTokenEnd, space);
  if (packs()) {
    const size_t whole = counts_.held / kBlockRows * kBlockRows;
    if (whole > packed()) pack(whole - packed());
  } else if (coded_) {
    code_settled(space);
  }
}

void SelectedRows::judge(Moment moment, ChunkSpace& space) {
  for (counts_.steps = 0;; ++counts_.steps) {
    const std::optional<Judgement> judgement = rule_->judge(counts_, moment);
    if (!judgement) return;
    select(*judgement, space);
  }
}

KeepCall SelectedRows::keep_call(size_t first, size_t count) const {
  const size_t sink = std::min(tokens_, plan_.schedule.sink);
  const size_t row = sink + first - std::min(first, packed());  // in the dense run
  const size_t known = std::min(counts_.judged - std::min(counts_.judged, first), count);
  KeepCall call;
  JudgedRows& rows = call.rows;
  rows.dtype = plan_.dtype;
  rows.heads = static_cast<int>(site_.heads);
  rows.dim = static_cast<int>(site_.dim);
  rows.k = rows_.keys() + row * site_.dim * 2;
  rows.v = rows_.values() + row * site_.dim * 2;
  rows.head_stride = rows_.head_stride();
  rows.positions = positions_.data() + counts_.coded + first;
  rows.known = static_cast<int>(known);
  rows.first_position = static_cast<int64_t>(tokens_ - (unsettled() - first - known));
  rows.mass = rule_->wants_mass() ? mass_.data() + sink + first : nullptr;
  rows.side_stride = stride_;
  rows.rows = static_cast<int>(count);
  rows.step = static_cast<int>(counts_.steps);
  call.after = static_cast<int>(unsettled() - first - count);
  return call;
}

void SelectedRows::select(const Judgement& judgement, ChunkSpace& space) {
  const size_t count = counts_.held - judgement.first;
  if (packs()) pack(counts_.held - packed());
  KeepCall call = keep_call(judgement.first, count);
  call.keep = static_cast<int>(judgement.keep);
  call.mass_factor = rule_->mass_kept();
  const SelectSpace lent = space.select(count);
  if (packs() && rule_->reads_rows()) {
    const RowTarget unpacked = space.unpacked(count);
    coded_->unpack(unpacked, 0, (count + kBlockRows - 1) / kBlockRows);
    call.rows.k = unpacked.k;
    call.rows.v = unpacked.v;
    call.rows.head_stride = unpacked.head_stride;
  }
  rule_->choose(lent, call.rows, call.keep, site_.stream);
  if (packs()) {
    coded_->keep(lent.kept, lent.stride, judgement.keep);
    move_sides(lent, call, site_.stream);
  } else {
    keep_rows(lent, call, site_.stream);
    rows_.drop(count - judgement.keep);
  }
  counts_.held = counts_.judged = judgement.first + judgement.keep;
  counts_.judged_at = counts_.seen;
}

// Positions of codes lie before those of dense rows: they stay where they are.
void SelectedRows::code_settled(ChunkSpace& space) {
  const size_t count = rule_->settled(counts_) / 32 * 32;
  if (count == 0) return;
  RowTarget from = rows_.end();
  from.row = static_cast<int64_t>(std::min(tokens_, plan_.schedule.sink));
  const BodyMove move{coded_.get(), from, count};
  coded_->announce(count);
  coded_->take({&move, 1});
  keep_rows(space.select(count), keep_call(0, count), site_.stream);
  rows_.drop(count);
  counts_.held -= count;
  counts_.judged -= count;
  counts_.coded += count;
}

// What lies beside the rows is in the body's order, whether they are codes or not.
void SelectedRows::pack(size_t count) {
  if (count == 0) return;
  const KeepCall call = keep_call(packed(), count);
  RowTarget from = rows_.end();
  from.row = static_cast<int64_t>(plan_.schedule.sink);
  coded_->append(from, count);
  move_rows({}, call, site_.stream);
  rows_.drop(count);
}

void SelectedRows::add_rows(pith::HeadRows& out, size_t head) const {
  const size_t sink = std::min(tokens_, plan_.schedule.sink);
  const size_t judged = counts_.coded + counts_.judged;
  for (size_t i = 0; i < sink; ++i) out.positions.push_back(static_cast<int64_t>(i));
  std::vector<int32_t> positions(judged);
  if (judged > 0) {
    check(cudaMemcpyAsync(positions.data(), positions_.data() + head * stride_,
                          judged * sizeof(int32_t), cudaMemcpyDeviceToHost, site_.stream),
          "rows held");
    check(cudaStreamSynchronize(site_.stream), "rows held");
  }
  out.positions.insert(out.positions.end(), positions.begin(), positions.end());
  for (size_t left = unsettled() - counts_.judged; left > 0; --left) {
    out.positions.push_back(static_cast<int64_t>(tokens_ - left));
  }
  const std::vector<WeightedPart> parts = this->parts(tokens_);
  for (const WeightedPart& part : parts) {
    if (coded_ && &part == &parts[1]) {
      out.log_weights.insert(out.log_weights.end(), coded_rows(), rule_->settled_log_weight());
    }
    out.log_weights.insert(out.log_weights.end(), part.rows, part.log_weight);
  }
}

void SelectedRows::add_to(Ledger& ledger) const {
  const size_t held = rows_.held_bytes();
  const size_t side =
      site_.heads * ((counts_.coded + counts_.judged) * sizeof(int32_t) +
                     (rule_->wants_mass() ? (rows_.rows() + packed()) * sizeof(float) : 0));
  ledger.payload += held;
  ledger.metadata += side;
  ledger.slack += rows_.allocated_bytes() - held + positions_.size() * sizeof(int32_t) +
                  mass_.size() * sizeof(float) - side;
  ledger.rows_kept += rows_.rows() * site_.heads;
  if (coded_) coded_->add_to(ledger);
}

}  // namespace pith::cuda
