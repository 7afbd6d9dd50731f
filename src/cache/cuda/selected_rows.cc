#include "cache/cuda/selected_rows.h"

#include <algorithm>

namespace pith::cuda {

SelectedRows::SelectedRows(const LayerPlan& plan, const LayerSite& site)
    : plan_(plan),
      site_(site),
      rule_(plan.selector.scores),
      rows_(*site.memory, {site.heads, site.dim, 0}, site.stream),
      positions_(*site.memory, MemoryKind::kMetadata),
      mass_(*site.memory, MemoryKind::kMetadata) {}

SelectedRows::SelectedRows(const SelectedRows& o)
    : plan_(o.plan_),
      site_(o.site_),
      rule_(o.rule_),
      rows_(o.rows_),
      positions_(*o.site_.memory, MemoryKind::kMetadata),
      mass_(*o.site_.memory, MemoryKind::kMetadata),
      tokens_(o.tokens_),
      seen_(o.seen_),
      held_(o.held_),
      judged_(o.judged_),
      judged_at_(o.judged_at_) {
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
  grow(positions_, from.positions_, from.judged_);
  if (wants_mass()) grow(mass_, from.mass_, from.rows_.rows());
  stride_ = stride;
}

void SelectedRows::reserve(size_t rows) {
  rows_.reserve_more(rows);
  if (stride_ < rows_.capacity()) make_side(rows_.capacity(), *this);
}

SelectedRows::Parts SelectedRows::parts(size_t tokens) const {
  const size_t sink = std::min(tokens, plan_.schedule.sink);
  return {sink, judged_, rows_.rows() + tokens - tokens_};
}

MassTarget SelectedRows::mass_target(size_t rows, bool fresh) const {
  if (!wants_mass()) return {};
  return {rows_.keys(),
          mass_.data(),
          rows_.head_stride(),
          stride_,
          static_cast<int32_t>(rows),
          fresh ? 0 : static_cast<int32_t>(rows_.rows())};
}

RowTarget SelectedRows::begin_token(const TokenSlots& slots) {
  reserve(1);
  const Parts p = parts(tokens_ + 1);
  DeviceSpan* span = slots.spans;
  const auto add = [&](size_t head, size_t first, size_t end, float log_weight) {
    const size_t at = (head * rows_.head_stride() + first * site_.dim) * 2;
    *span = {};
    span->keys = rows_.keys() + at;
    span->values = rows_.values() + at;
    span->log_weight = log_weight;
    span->rows = static_cast<int32_t>(end - first);
    span->row_stride = static_cast<int32_t>(site_.dim);
    ++span;
  };
  for (size_t g = 0; g < site_.heads; ++g) {
    if (rule_->weighted()) {
      add(g, 0, p.sink, 0);
      add(g, p.sink, p.sink + p.kept, log_weight());
      add(g, p.sink + p.kept, p.all, 0);
    } else {
      add(g, 0, p.all, 0);
    }
  }
  *slots.mass = mass_target(p.all, rule_->mass(1, until_selection()).fresh);
  return rows_.end();
}

void SelectedRows::attend_token(const TokenStep& step) const {
  decode_dense(step.call, step.scratch, site_.stream);
  if (!wants_mass()) return;
  const DecodeShape& shape = step.call.shape;
  add_token_mass({{shape.query_heads, shape.kv_heads, shape.head_dim, step.call.dtype},
                  step.call.q,
                  step.call.log_sum},
                 step.mass, site_.stream);
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
  const Parts p = parts(tokens_ + tokens);
  const bool mass = wants_mass(), apart = log_weight() != 0;
  if (mass || apart) space.lend_partials(call);
  const auto attend = [&](size_t first, size_t end, int64_t before, float log_weight) {
    if (first == end) return;
    const size_t at = first * site_.dim * 2;
    call.span = {rows_.keys() + at,
                 rows_.values() + at,
                 rows_.head_stride(),
                 static_cast<int64_t>(end - first),
                 before,
                 log_weight};
    call.last = end == p.all;
    cuda::attend_chunk(call, site_.stream);
    call.first = false;
  };
  size_t first = 0;
  if (apart) {
    attend(0, p.sink, -1, 0);
    first = p.sink + p.kept;
    attend(p.sink, first, -1, log_weight());
  }
  attend(first, p.all, static_cast<int64_t>(rows_.rows() - first), 0);
  if (!mass) return;
  const MassRequest request = rule_->mass(tokens, until_selection());
  ChunkMass of;
  of.shape = {call.query_heads, call.kv_heads, call.head_dim, call.dtype};
  of.q = call.q;
  of.log_sum = call.log_sum;
  of.tokens = call.tokens;
  of.queries = static_cast<int>(std::min(request.queries, tokens));
  of.before = static_cast<int>(rows_.rows());
  add_chunk_mass(of, mass_target(p.all, request.fresh), site_.stream);
}

void SelectedRows::end_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>&) {
  rows_.add(tokens);
  take(tokens, space);
}

void SelectedRows::end_prefill(ChunkSpace& space) {
  if (rule_->at_prompt_end()) select(space);
  rows_.shrink();
  if (stride_ > rows_.capacity()) make_side(rows_.capacity(), *this);
}

size_t SelectedRows::until_selection() const {
  const size_t limit = rule_->limit(seen_);
  return limit > held_ ? limit - held_ : 0;
}

void SelectedRows::take(size_t tokens, ChunkSpace& space) {
  tokens_ += tokens;
  const size_t body = occupancy({plan_.schedule.sink, plan_.schedule.window, 1}, tokens_).body;
  const auto full = [&] { return held_ >= rule_->limit(seen_); };
  while (seen_ < body) {
    while (rule_->before_more() && full()) select(space);
    ++seen_;
    ++held_;
    if (!rule_->before_more() && !rule_->any_time() && full()) select(space);
  }
  if (rule_->any_time() && (tokens > 1 || full())) select(space);
}

void SelectedRows::select(ChunkSpace& space) {
  const size_t keep = rule_->keep(held_, judged_, seen_);
  if (held_ <= keep) return;
  const size_t sink = std::min(tokens_, plan_.schedule.sink);
  const size_t known = sink + judged_, after = rows_.rows() - sink - held_;
  KeepCall call;
  JudgedRows& rows = call.rows;
  rows.dtype = plan_.dtype;
  rows.heads = static_cast<int>(site_.heads);
  rows.dim = static_cast<int>(site_.dim);
  rows.k = rows_.keys() + sink * site_.dim * 2;
  rows.v = rows_.values() + sink * site_.dim * 2;
  rows.head_stride = rows_.head_stride();
  rows.positions = positions_.data();
  rows.known = static_cast<int>(judged_);
  rows.first_position = static_cast<int64_t>(tokens_ - (rows_.rows() - known));
  rows.mass = wants_mass() ? mass_.data() + sink : nullptr;
  rows.side_stride = stride_;
  rows.rows = static_cast<int>(held_);
  call.keep = static_cast<int>(keep);
  call.after = static_cast<int>(after);
  call.mass_factor = rule_->mass_kept();
  const SelectSpace lent = space.select(held_);
  rule_->choose(lent, rows, call.keep, site_.stream);
  keep_rows(lent, call, site_.stream);
  rows_.drop(held_ - keep);
  held_ = judged_ = keep;
  judged_at_ = seen_;
}

void SelectedRows::add_rows(pith::HeadRows& out, size_t head) const {
  const size_t sink = std::min(tokens_, plan_.schedule.sink);
  const size_t first = out.positions.size();
  for (size_t i = 0; i < sink; ++i) out.positions.push_back(static_cast<int64_t>(i));
  std::vector<int32_t> positions(judged_);
  if (judged_ > 0) {
    check(cudaMemcpyAsync(positions.data(), positions_.data() + head * stride_,
                          judged_ * sizeof(int32_t), cudaMemcpyDeviceToHost, site_.stream),
          "rows held");
    check(cudaStreamSynchronize(site_.stream), "rows held");
  }
  out.positions.insert(out.positions.end(), positions.begin(), positions.end());
  for (size_t i = sink + judged_; i < rows_.rows(); ++i) {
    out.positions.push_back(static_cast<int64_t>(tokens_ - (rows_.rows() - i)));
  }
  out.log_weights.resize(out.positions.size());
  std::fill_n(out.log_weights.begin() + static_cast<ptrdiff_t>(first + sink), judged_,
              log_weight());
}

void SelectedRows::add_to(Ledger& ledger) const {
  const size_t held = rows_.held_bytes();
  const size_t side =
      site_.heads * (judged_ * sizeof(int32_t) + (wants_mass() ? rows_.rows() * sizeof(float) : 0));
  ledger.payload += held;
  ledger.metadata += side;
  ledger.slack += rows_.allocated_bytes() - held + positions_.size() * sizeof(int32_t) +
                  mass_.size() * sizeof(float) - side;
  ledger.rows_kept += rows_.rows() * site_.heads;
}

}  // namespace pith::cuda
