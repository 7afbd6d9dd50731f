// Which rows of a body stay, and when: see selected_rows.h.

#include <algorithm>

#include "cache/cuda/selected_rows.h"
#include "compress/cuda/heavy.h"
#include "kernels/cuda/grouped_layout.h"
#include "pith/error.h"

namespace pith::cuda {

void SelectedRows::take(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) {
  tokens_ += tokens;
  const size_t fresh = occupancy(plan_.schedule, tokens_).body - counts_.seen - heavy_;
  if (packs() && coded_->codec().codes_whole_blocks()) pack(counts_.held + heavy_ + fresh);
  if (plan_.selector.heavy) {
    enter_heavy(fresh, space, moves);
  } else {
    for (size_t i = 0; i < fresh; ++i) enter(space);
  }
  judge(tokens > 1 ? Moment::kChunkEnd : Moment::kTokenEnd, space);
  if (packs()) {
    pack((counts_.held + heavy_) / kBlockRows * kBlockRows);
  } else if (coded_) {
    code_settled(space);
  }
}

void SelectedRows::enter(ChunkSpace& space) {
  judge(Moment::kBeforeRow, space);
  ++counts_.seen;
  ++counts_.held;
  judge(Moment::kRow, space);
}

void SelectedRows::enter_heavy(size_t fresh, ChunkSpace& space, std::vector<BodyMove>& moves) {
  const HeavySizes& sizes = *plan_.selector.heavy;
  const size_t all = heavy_ + fresh;
  const size_t evictions = all < sizes.most() ? 0 : (all - sizes.budget) / sizes.interval;
  StagedRows staged;
  if (body_ && evictions > 0) {
    const size_t leave = evictions * sizes.interval;
    // Coders read whole blocks.
    const size_t room = (leave + kBlockRows - 1) / kBlockRows * kBlockRows;
    staged = {space.staging(room), space.staged_positions(site_.heads * leave), leave};
    body_->announce(leave);
    moves.push_back({body_.get(), staged.to, leave, 0, staged.positions, leave, true, packs()});
  }
  for (size_t i = 0; i < evictions; ++i) {
    evict(space, staged);
    staged.to.row += static_cast<int64_t>(sizes.interval);
  }
  heavy_ = all - evictions * sizes.interval;
}

void SelectedRows::evict(ChunkSpace& space, const StagedRows& staged) {
  const HeavySizes& sizes = *plan_.selector.heavy;
  if (packs()) pack(counts_.held + sizes.most());
  KeepCall call = keep_call(counts_.held, sizes.most());
  const size_t behind = packed_behind(counts_.held + sizes.most());  // they come to the store next
  const SelectSpace lent = space.select(sizes.most() + behind, true);
  name_rows(call.rows);
  JudgedRows seen = call.rows;
  if (packs() && (body_ || sizes.by_key > 0)) unpack(seen, counts_.held, space);
  choose_heavy(lent, seen, sizes, site_.stream);
  if (body_) return evict_to_body(lent, call, seen, staged);
  evict_to_rule(lent, call, space);
  known_ = counts_.held + sizes.most();
  for (size_t i = 0; i < sizes.interval; ++i) enter(space);
}

void SelectedRows::evict_to_rule(const SelectSpace& lent, const KeepCall& call, ChunkSpace& space) {
  const JudgedRows& rows = call.rows;
  const int stay = static_cast<int>(plan_.selector.heavy->budget);
  if (packs()) {
    const auto judged = static_cast<size_t>(rows.rows);
    const size_t behind = packed_behind(counts_.held + judged);
    const NewOrder order{rows.heads, static_cast<int>(counts_.held), rows.rows, stay,
                         rows.rows,  static_cast<int>(behind)};
    coded_->keep_from(counts_.held, order_rows(lent, order, site_.stream), lent.stride,
                      judged + behind);
  } else {
    leave_first(lent, rows, stay, space.unpacked(static_cast<size_t>(rows.rows)), site_.stream);
  }
  leave_first_sides(lent, rows, stay, site_.stream);
}

void SelectedRows::evict_to_body(const SelectSpace& lent, KeepCall& call, const JudgedRows& seen,
                                 const StagedRows& staged) {
  const HeavySizes& sizes = *plan_.selector.heavy;
  const int stay = static_cast<int>(sizes.budget), leave = static_cast<int>(sizes.interval);
  gather_rows(lent, {seen, stay, leave, staged.to, staged.positions, staged.stride}, site_.stream);
  call.keep = stay;
  if (packs()) {  // the body's rows are not among them
    const size_t behind = packed_behind(static_cast<size_t>(call.rows.rows));
    const NewOrder order{call.rows.heads, 0, call.rows.rows, 0, stay, static_cast<int>(behind)};
    coded_->keep(order_rows(lent, order, site_.stream), lent.stride, sizes.budget + behind);
    move_sides(lent, call, site_.stream);
  } else {
    keep_rows(lent, call, site_.stream);
    rows_.drop(sizes.interval);
  }
  counts_.seen += sizes.interval;
  known_ = sizes.budget;
}

void SelectedRows::judge(Moment moment, ChunkSpace& space) {
  for (counts_.steps = 0;; ++counts_.steps) {
    const std::optional<Judgement> judgement = rule_->judge(counts_, moment);
    if (!judgement) break;
    select(*judgement, space);
  }
  if (counts_.steps > 0) write_weights();
}

KeepCall SelectedRows::keep_call(size_t first, size_t count) const {
  const size_t sink = std::min(tokens_, plan_.schedule.sink);
  const size_t row = sink + first - std::min(first, packed());  // in the dense run
  const size_t known = std::min(known_ - std::min(known_, first), count);
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
  rows.judged = static_cast<int>(std::min(counts_.judged - std::min(counts_.judged, first), count));
  rows.first_position = static_cast<int64_t>(tokens_ - (unsettled() - first - known));
  rows.mass = wants_mass() ? mass_.data() + sink + first : nullptr;
  rows.side_stride = stride_;
  rows.log_weights = weights_.data();
  rows.rows = static_cast<int>(count);
  rows.step = static_cast<int>(counts_.steps);
  call.after = static_cast<int>(unsettled() - first - count);
  return call;
}

void SelectedRows::name_rows(JudgedRows& rows) const {
  if (!pinned_.any()) return;
  pinned_.write_positions({rows.positions + rows.known, rows.side_stride, rows.heads,
                           rows.rows - rows.known, rows.first_position});
  rows.known = rows.rows;
}

RowPositions SelectedRows::positions_of(JudgedRows& rows) const {
  if (!coded_->codec().turns_keys()) return rows.first_position;
  name_rows(rows);
  if (rows.known == 0) return rows.first_position;
  if (rows.known < rows.rows) {
    throw Error(ErrorCode::kInternal, "rows are coded of which some have no position yet");
  }
  return {rows.positions, rows.side_stride, static_cast<size_t>(rows.rows)};
}

void SelectedRows::select(const Judgement& judgement, ChunkSpace& space) {
  const size_t count = counts_.held - judgement.first;
  if (packs()) pack(counts_.held);
  KeepCall call = keep_call(judgement.first, count);
  const size_t behind = known_ - std::min(known_, counts_.held);  // of the heavy store
  name_rows(call.rows);
  call.keep = static_cast<int>(judgement.keep);
  call.after_known = static_cast<int>(behind);
  call.mass_factor = rule_->mass_kept();
  const size_t coded_behind = packed_behind(counts_.held);  // of the heavy store
  const SelectSpace lent = space.select(count + coded_behind, state_.size() > 0);
  call.rows.queries = {state_.data(), static_cast<int>(site_.query_heads / site_.heads),
                       static_cast<int64_t>(tokens()),
                       static_cast<int64_t>(tokens() - std::min(tokens(), plan_.schedule.sink)),
                       site_.rope ? &site_.rope->host : nullptr};
  if (packs() && rule_->reads_rows()) unpack(call.rows, judgement.first, space);
  rule_->choose(lent, call.rows, call.keep, site_.stream);
  if (packs()) {
    const size_t stay = judgement.keep + coded_behind;
    const bool alone = judgement.first == 0 && coded_behind == 0;
    const NewOrder order{call.rows.heads, static_cast<int>(judgement.first), call.rows.rows, 0,
                         call.keep,       static_cast<int>(coded_behind)};
    const int32_t* kept = alone ? lent.kept : order_rows(lent, order, site_.stream);
    coded_->keep_from(judgement.first, kept, lent.stride, stay);
    move_sides(lent, call, site_.stream);
  } else {
    keep_rows(lent, call, site_.stream);
    rows_.drop(count - judgement.keep);
  }
  counts_.held = counts_.judged = judgement.first + judgement.keep;
  known_ = counts_.held + behind;
  counts_.judged_at = counts_.seen;
}

// Positions of codes lie before those of dense rows: they stay where they are.
void SelectedRows::code_settled(ChunkSpace& space) {
  const size_t group = coded_->codec().block_rows();
  const size_t count = rule_->settled(counts_) / group * group;
  if (count == 0) return;
  KeepCall call = keep_call(0, count);
  RowTarget from = rows_.end();
  from.row = static_cast<int64_t>(std::min(tokens_, plan_.schedule.sink));
  if (coded_->codec().turns_keys()) {  // they do not follow each other any more
    if (count < coded_->least_appended()) return;
    coded_->append({from, count, positions_of(call.rows), plan_.dtype});
  } else {
    const BodyMove move{coded_.get(), from, count};
    coded_->announce(count);
    coded_->take({&move, 1});
  }
  keep_rows(space.select(count), call, site_.stream);
  rows_.drop(count);
  counts_.held -= count;
  counts_.judged -= count;
  known_ -= count;
  counts_.coded += count;
}

// f16 keeps more of a code times its scale than bf16.
void SelectedRows::unpack(JudgedRows& rows, size_t first, ChunkSpace& space) const {
  const size_t block = first / kBlockRows, skipped = first % kBlockRows;
  const size_t count = skipped + static_cast<size_t>(rows.rows);
  const RowTarget unpacked = space.unpacked(count);
  rows.dtype = DType::kF16;
  coded_->unpack(unpacked, {block, (count + kBlockRows - 1) / kBlockRows, rows.dtype});
  rows.k = static_cast<std::byte*>(unpacked.k) + skipped * site_.dim * 2;
  rows.v = static_cast<std::byte*>(unpacked.v) + skipped * site_.dim * 2;
  rows.head_stride = unpacked.head_stride;
}

// What lies beside the rows is in the body's order, whether they are codes or not.
void SelectedRows::pack(size_t count) {
  if (count <= packed() || count < coded_->least_appended()) return;
  const size_t fresh = count - packed();
  KeepCall call = keep_call(packed(), fresh);
  RowTarget from = rows_.end();
  from.row = static_cast<int64_t>(plan_.schedule.sink);
  coded_->append({from, fresh, positions_of(call.rows), plan_.dtype});
  move_rows({}, call, site_.stream);
  rows_.drop(fresh);
}

}  // namespace pith::cuda
