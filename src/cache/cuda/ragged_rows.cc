#include "cache/cuda/ragged_rows.h"

#include <algorithm>
#include <numeric>

#include "attend/cuda/device_rows.h"

namespace pith::cuda {

RaggedRows::RaggedRows(const LayerSite& site, DType dtype, bool mass)
    : site_(site),
      dtype_(dtype),
      has_mass_(mass),
      places_(*site.memory, MemoryKind::kMetadata),
      held_(*site.memory),
      told_(std::make_unique<ToldNumbers>(site.heads)) {
  places_.allocate(2 * kPlaces * site.heads * sizeof(int32_t), site.stream);
  check(cudaMemsetAsync(places_.data(), 0, places_.size(), site.stream), "heads without rows");
}

RaggedRows::RaggedRows(const RaggedRows& o) : RaggedRows(o.site_, o.dtype_, o.has_mass_) {
  rows_ = o.rows_;
  now_ = o.now_;
  copy_buffer(places_, o.places_, site_.stream);
  copy_buffer(held_.rows, o.held_.rows, site_.stream);
  copy_buffer(held_.positions, o.held_.positions, site_.stream);
  copy_buffer(held_.mass, o.held_.mass, site_.stream);
  told_->set(o.counts());
}

size_t RaggedRows::begin_of(size_t head) const {
  const auto first = counts().begin();
  return std::accumulate(first, first + static_cast<ptrdiff_t>(head), size_t{0});
}

DeviceSpan RaggedRows::span(size_t head) const {
  const RowTarget at{held_.k(), held_.v(), 0, static_cast<int64_t>(begin_of(head))};
  DeviceSpan span = dense_span(at, 0, counts()[head], site_.dim);
  span.settled_rows = span.rows;
  return span;
}

void RaggedRows::attend_chunk(CausalCall& call) const {
  if (rows_ == 0) return;
  call.last = false;
  call.span =
      causal_span({held_.k(), held_.v(), 0, 0}, *std::ranges::max_element(counts()), site_.dim);
  call.span.heads = heads_at(now_);
  cuda::attend_chunk(call, site_.stream);
  call.first = false;
}

MassTarget RaggedRows::mass_target(bool fresh) const {
  MassTarget target;
  if (rows_ == 0) return target;
  target.keys = held_.k();
  target.mass = static_cast<float*>(held_.mass.data());
  target.rows = static_cast<int32_t>(*std::ranges::max_element(counts()));
  target.known = fresh ? 0 : target.rows;
  target.heads = heads_at(now_);
  return target;
}

JudgedRows RaggedRows::view() const {
  JudgedRows rows;
  rows.dtype = dtype_;
  rows.heads = static_cast<int>(site_.heads);
  rows.dim = static_cast<int>(site_.dim);
  rows.k = held_.k();
  rows.v = held_.v();
  rows.positions = static_cast<int32_t*>(held_.positions.data());
  rows.known = rows.rows = static_cast<int>(rows_);
  rows.mass = static_cast<float*>(held_.mass.data());
  rows.ragged = heads_at(now_);
  return rows;
}

void RaggedRows::place(int places, const int32_t* from, int more) const {
  place_heads({from, more, static_cast<int>(site_.heads), rows_at(places), begins_at(places)},
              site_.stream);
}

RaggedRows::Lists RaggedRows::lists(size_t rows) const {
  Lists lists(*site_.memory);
  lists.rows.allocate(4 * rows * site_.dim, site_.stream);
  lists.positions.allocate(rows * sizeof(int32_t), site_.stream);
  if (has_mass_) lists.mass.allocate(rows * sizeof(float), site_.stream);
  return lists;
}

void RaggedRows::judge(const DeviceChooser& chooser, const Step& step, const JudgedRows& fresh,
                       ChunkSpace& space) {
  const size_t heads = site_.heads, mean = rows_ / heads + static_cast<size_t>(fresh.rows);
  const int next = now_ == kOne ? kOther : kOne;
  SelectSpace lent = space.select(mean, has_mass_ || fresh.queries.state);
  lent.stay = rows_at(next);
  place(kAll, rows_at(now_), fresh.rows);
  LineUpCall call{view(), fresh};
  call.to = heads_at(kAll);
  JudgedRows all = fresh;
  all.ragged = call.to;
  all.rows = static_cast<int>(rows_) + fresh.rows;  // others may have had none
  if (chooser.reads_rows()) {
    const RowTarget room = space.unpacked(mean);
    call.k = all.k = room.k;
    call.v = all.v = room.v;
  }
  if (has_mass_) call.mass = all.mass = lent.logits;
  if (call.k || call.mass) line_up(call, site_.stream);
  chooser.choose(lent, all, step, site_.stream);

  place(next, lent.stay, 0);
  Lists kept = lists(step.keep * heads);
  call.kept = lent.kept;
  call.named = call.to;
  call.to = heads_at(next);
  call.k = kept.k();
  call.v = kept.v();
  call.positions = static_cast<int32_t*>(kept.positions.data());
  call.mass = static_cast<float*>(kept.mass.data());
  call.mass_factor = chooser.mass_kept();
  line_up(call, site_.stream);
  held_ = std::move(kept);
  rows_ = step.keep * heads;
  now_ = next;
  told_->tell(rows_at(now_), site_.stream);
}

void RaggedRows::add_rows(pith::HeadRows& out, size_t head) const {
  std::vector<int32_t> positions(counts()[head]);
  if (positions.empty()) return;
  check(cudaMemcpyAsync(positions.data(),
                        static_cast<const int32_t*>(held_.positions.data()) + begin_of(head),
                        positions.size() * sizeof(int32_t), cudaMemcpyDeviceToHost, site_.stream),
        "rows held");
  check(cudaStreamSynchronize(site_.stream), "rows held");
  out.positions.insert(out.positions.end(), positions.begin(), positions.end());
  out.log_weights.insert(out.log_weights.end(), positions.size(), 0.0f);
}

void RaggedRows::add_to(Ledger& ledger) const {
  ledger.payload += held_.rows.size();
  ledger.metadata += held_.positions.size() + held_.mass.size() + places_.size();
  ledger.rows_kept += rows_;
}

}  // namespace pith::cuda
