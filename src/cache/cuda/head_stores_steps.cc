// A plan's steps carried out on rows that lie in one run: see head_stores.h.

#include <algorithm>

#include "cache/cuda/head_stores.h"
#include "kernels/cuda/grouped_layout.h"
#include "pith/error.h"
#include "select/cuda/heavy.h"

namespace pith::cuda {
namespace {

size_t whole_blocks(size_t rows) { return (rows + kBlockRows - 1) / kBlockRows * kBlockRows; }

/// One selection, and behind it at most rows that enter the window: it may wait for those of other
/// layers, since no step is about the rows that it leaves. Rows that leave the window in groups can
/// bring several, or more rows.
bool ends_with_judgement(std::span<const Step> steps) {
  const auto judgement = std::ranges::find(steps, Op::kJudge, &Step::op);
  return judgement != steps.end() && std::all_of(judgement + 1, steps.end(), [](const Step& step) {
           return step.op == Op::kAppend;
         });
}

}  // namespace

void HeadStores::carry_out(std::span<const Step> steps, bool chunk, ChunkSpace& space,
                           LateWork& late) {
  size_t fresh = 0;  // rows that have left the window
  for (const Step& step : steps) {
    if (step.from == Zone::kWindow || step.to == Zone::kLeaving) fresh += step.rows;
  }
  if (packs() && layer_.shares) pack(rows_between() + fresh);
  const RowRun before = run_;
  // Codes in the run would have room for a whole chunk from then on.
  const bool one_by_one = packs() && !body_;
  const bool waits = !one_by_one && split(steps, chunk, space, late);
  const bool may_wait = !chunk && ends_with_judgement(steps);
  for (const Step& step : steps) {
    if (one_by_one) split({&step, 1}, chunk, space, late);
    carry_out(step, space, may_wait ? &late : nullptr);
  }
  if (const auto step = late_.due(run_, chunk || layer_.selector.heavy ? 1 : kBlockRows)) {
    select(*step, space);
    run_.apply(late_.weigh());
  }
  if (run_.judged != before.judged || run_.weighted != before.weighted) write_weights();
  if (packs() && !waits) {
    pack_blocks(chunk, late);
  } else if (!packs() && coded_) {
    code_settled();
  }
}

void HeadStores::pack_blocks(bool chunk, LateWork& late) {
  pack(rows_between() / kBlockRows * kBlockRows, chunk ? nullptr : &late);
}

void HeadStores::carry_out(const Step& step, ChunkSpace& space, LateWork* late) {
  if (step.op == Op::kSplit) {
    run_.apply(step);
    if (body_) run_.evicted = 0;
    return;
  }
  if (body_ && step.to != Zone::kHeavy) return;  // it carries out the others
  switch (step.op) {
    case Op::kAppend: return;
    case Op::kMove: run_.apply(step); return;
    case Op::kJudge:
      if (chooser_->any_time()) return late_.put_off(run_, step);
      [[fallthrough]];
    case Op::kHalve: return select(step, space, late);
    case Op::kWeigh: return chooser_->any_time() ? late_.put_off(run_, step) : run_.apply(step);
    default: throw Error(ErrorCode::kInternal, "a step that rows in one run do not know");
  }
}

StagedRows HeadStores::stage(const Splits& splits, ChunkSpace& space,
                             std::vector<BodyMove>& moves) {
  // Coders read whole blocks. The keys of rows in codes are there too, until they are selected
  // from.
  const size_t leave = splits.leave, room = whole_blocks(leave);
  const size_t judged = packs() ? whole_blocks(splits.all()) / 2 : 0;  // rows have keys and values
  const StagedRows staged{space.staging(std::max(room, judged)),
                          space.staged_positions(site_.heads * leave), leave};
  body_->announce(leave);
  moves.push_back({body_.get(), staged.to, leave, 0, staged.positions, leave, true, packs()});
  return staged;
}

// Rows behind those that the first split is about come to the heavy ones next, and steps between
// two splits change nothing there: what the body's rule does, it does to rows before them.
bool HeadStores::split(std::span<const Step> steps, bool chunk, ChunkSpace& space, LateWork& late) {
  const auto is_split = [](const Step& step) { return step.op == Op::kSplit; };
  const auto first = std::ranges::find_if(steps, is_split);
  if (first == steps.end()) return false;
  const auto times = static_cast<size_t>(std::count_if(first, steps.end(), is_split));
  const Splits splits{first->keep, times * first->rows};
  const size_t end = run_.body + splits.all();
  if (packs()) pack(end);
  KeepCall call = keep_call(run_.body, splits.all());
  const SelectSpace lent = space.select(splits.all() + packed_behind(end), true);
  call.kept = lent.kept;
  call.kept_stride = lent.stride;
  protected_.name(call.rows);
  const HeavyCall choice{call.rows, lent, *layer_.selector.heavy};
  if (!body_) {
    split_in_run(splits, choice, call, space);
    sides_.name(end);
    return false;
  }
  call.keep = static_cast<int>(splits.stay);
  sides_.name(splits.stay);
  const StagedRows staged = stage(splits, space, late.moves);
  const GatherCall gather{
      call.rows, lent.kept,        lent.stride,  call.keep, static_cast<int>(splits.leave),
      staged.to, staged.positions, staged.stride};
  late.heavy.push_back({choice, gather, call, {}});
  if (!packs()) {
    rows_.drop(splits.leave);
    return false;
  }
  HeavyWork& work = late.heavy.back();
  const RowTarget keys{staged.to.k, nullptr, whole_blocks(splits.all()) * site_.dim, 0};
  if (choice.sizes.by_key > 0) unpack(work.choice.rows, 0, body_->given_back(), keys);
  work.rest = [this, work, splits, chunk, &space, &late] {
    close_up_codes(work, splits, space);
    pack_blocks(chunk, late);
  };
  return true;
}

void HeadStores::split_in_run(const Splits& splits, HeavyCall choice, const KeepCall& call,
                              ChunkSpace& space) {
  const JudgedRows& rows = call.rows;
  const SelectSpace& lent = choice.space;
  const int stay = static_cast<int>(splits.stay);
  if (packs() && choice.sizes.by_key > 0) unpack(choice.rows, run_.body, DType::kF16, space);
  choose_heavy(choice, site_.stream);
  if (packs()) {
    const size_t behind = packed_behind(run_.body + splits.all());
    const NewOrder order{rows.heads, static_cast<int>(run_.body), rows.rows, stay,
                         rows.rows,  static_cast<int>(behind)};
    keep_codes(
        {order_rows(lent, order, site_.stream), lent.stride, run_.body, splits.all() + behind}, 0,
        space);
  } else {
    leave_first(lent, rows, stay, space.unpacked(splits.all()), site_.stream);
  }
  leave_first_sides(lent, rows, stay, site_.stream);
}

void HeadStores::close_up_codes(const HeavyWork& work, const Splits& splits, ChunkSpace& space) {
  const SelectSpace& lent = work.choice.space;
  GatherCall gather = work.gather;
  unpack(gather.rows, 0, body_->given_back(), space);
  gather_rows(gather, site_.stream);
  const size_t behind = packed_behind(splits.all());  // the body's rows are not among them
  const NewOrder order{gather.rows.heads,       0, gather.rows.rows, 0, work.keep.keep,
                       static_cast<int>(behind)};
  const size_t most = layer_.selector.heavy->most() + kBlockRows - 1;  // between passes
  keep_codes({order_rows(lent, order, site_.stream), lent.stride, 0, splits.stay + behind}, most,
             space);
  move_sides(work.keep, site_.stream);
}

// Where they would get no more room than they have, no memory is asked for, which begins as zeros.
void HeadStores::keep_codes(const KeptCodes& kept, size_t most, ChunkSpace& space) {
  if (kept.first > 0) return coded_->keep_from(kept.first, kept.rows, kept.stride, kept.count);
  if (!coded_->keeps_in_place(most)) return coded_->keep(kept.rows, kept.stride, kept.count, most);
  MoveCodesCall move = coded_->keep_later(kept.count);
  move.kept = kept.rows;
  move.kept_stride = kept.stride;
  const DeviceCodec& codec = coded_->codec();
  const size_t blocks = whole_blocks(kept.count) / kBlockRows;
  const auto dim = static_cast<int>(site_.dim);
  keep_through(CodeRoom(space, {codec.block_bytes(dim), site_.heads, blocks}, 1), codec, {&move, 1},
               site_.stream);
}

KeepCall HeadStores::keep_call(size_t first, size_t count) const {
  const size_t row = sink() + first - std::min(first, packed());  // in the dense run
  const size_t known = std::min(this->known() - std::min(this->known(), first), count);
  KeepCall call;
  JudgedRows& rows = call.rows;
  rows.dtype = layer_.dtype;
  rows.heads = static_cast<int>(site_.heads);
  rows.dim = static_cast<int>(site_.dim);
  rows.k = rows_.keys() + row * site_.dim * 2;
  rows.v = rows_.values() + row * site_.dim * 2;
  rows.head_stride = rows_.head_stride();
  sides_.add_sides(rows, settled() + first, sink() + first);
  rows.known = static_cast<int>(known);
  rows.first_position = static_cast<int64_t>(open() - (unsettled() - first - known));
  rows.rows = static_cast<int>(count);
  call.after = static_cast<int>(unsettled() - first - count);
  return call;
}

RowPositions HeadStores::positions_of(JudgedRows& rows) const {
  if (!layer_.before_rope) return rows.first_position;
  protected_.name(rows);
  if (rows.known == 0) return rows.first_position;
  if (rows.known < rows.rows) {
    throw Error(ErrorCode::kInternal, "rows are coded of which some have no position yet");
  }
  return {rows.positions, rows.side_stride, static_cast<size_t>(rows.rows)};
}

void HeadStores::share(const Step& step, ChunkSpace& space) {
  const size_t count = body();
  if (packs()) pack(count);
  KeepCall call = keep_call(0, count);  // none of them: ragged_ has what stays
  protected_.name(call.rows);
  call.rows.queries = queries_.seen(tokens());
  ragged_->judge(*chooser_, step, {call.rows, coded_.get()}, space);
  if (packs()) {
    coded_->clear();
    move_sides(call, site_.stream);
  } else {
    keep_rows(call, site_.stream);
    rows_.drop(count);
  }
  run_.apply(step);
}

bool HeadStores::joins_others() const {
  return packs() && !chooser_->by_keys_alone().empty() && coded_->keeps_in_place();
}

void HeadStores::select(const Step& step, ChunkSpace& space, LateWork* late) {
  if (ragged_) return share(step, space);
  const size_t first = RowRun::first_of(step) - std::min<size_t>(RowRun::first_of(step), settled());
  const size_t held = body(), count = held - first, keep = RowRun::kept_of(step);
  const bool alone = first == 0 && packed_behind(held) == 0;  // nothing lies around them
  const bool waits = late && alone && joins_others();
  if (packs()) pack(held, waits ? late : nullptr);
  KeepCall call = keep_call(first, count);
  const size_t behind = known() - std::min(known(), held);  // of the heavy rows
  protected_.name(call.rows);
  call.rows.judged = static_cast<int>(step.old);
  call.keep = static_cast<int>(keep);
  call.after_known = static_cast<int>(behind);
  call.mass_factor = chooser_->mass_kept();
  if (waits) {
    const size_t blocks = whole_blocks(held) / kBlockRows;
    const UnpackRowsCall keys = coded_->unpack_call({0, blocks, DType::kF16});
    late->choices.push_back(
        {&coded_->codec(), chooser_.get(), step, keys, coded_->keep_later(keep), call});
  } else {
    select_now(call, first, step, space);
  }
  run_.apply(step);
  sides_.name(settled() + first + keep + behind);
}

void HeadStores::select_now(KeepCall& call, size_t first, const Step& step, ChunkSpace& space) {
  const size_t held = body(), count = held - first;
  const auto keep = static_cast<size_t>(call.keep);
  const size_t coded_behind = packed_behind(held);  // of the heavy rows
  const SelectSpace lent = space.select(count + coded_behind, queries_.kept());
  call.kept = lent.kept;
  call.kept_stride = lent.stride;
  call.rows.queries = queries_.seen(tokens());
  if (packs() && chooser_->reads_rows()) unpack(call.rows, first, DType::kF16, space);
  chooser_->choose(lent, call.rows, step, site_.stream);
  if (packs()) {
    const bool alone = first == 0 && coded_behind == 0;
    const NewOrder order{call.rows.heads, static_cast<int>(first),       call.rows.rows, 0,
                         call.keep,       static_cast<int>(coded_behind)};
    const int32_t* kept = alone ? lent.kept : order_rows(lent, order, site_.stream);
    keep_codes({kept, lent.stride, first, keep + coded_behind}, 0, space);
    move_sides(call, site_.stream);
  } else {
    keep_rows(call, site_.stream);
    rows_.drop(count - keep);
  }
}

// Positions of codes lie before those of dense rows: they stay where they are.
void HeadStores::code_settled() {
  const size_t group = coded_->codec().block_rows();
  const size_t count = (chooser_->settled(plan_.state()) - settled()) / group * group;
  if (count == 0) return;
  KeepCall call = keep_call(0, count);
  const RowTarget from = rows_.begin() + sink();
  if (layer_.before_rope) {  // they do not follow each other any more
    if (count < coded_->least_appended()) return;
    coded_->append({from, count, positions_of(call.rows), layer_.dtype});
  } else {
    const BodyMove move{coded_.get(), from, count};
    coded_->announce(count);
    coded_->take({&move, 1});
  }
  keep_rows(call, site_.stream);
  rows_.drop(count);
}

void HeadStores::unpack(JudgedRows& rows, size_t first, DType dtype, const RowTarget& to) const {
  const size_t block = first / kBlockRows, skipped = first % kBlockRows;
  const size_t count = skipped + static_cast<size_t>(rows.rows);
  rows.dtype = dtype;
  coded_->unpack(to, {block, (count + kBlockRows - 1) / kBlockRows, rows.dtype});
  rows.k = static_cast<std::byte*>(to.k) + skipped * site_.dim * 2;
  rows.v = to.v ? static_cast<std::byte*>(to.v) + skipped * site_.dim * 2 : nullptr;
  rows.head_stride = to.head_stride;
}

void HeadStores::unpack(JudgedRows& rows, size_t first, DType dtype, ChunkSpace& space) const {
  unpack(rows, first, dtype, space.unpacked(first % kBlockRows + static_cast<size_t>(rows.rows)));
}

// A body that learnt from the rows that the heavy ones leave would need kernels with two tables.
void HeadStores::share_tables() {
  if (const auto codec = body_ && coded_ ? coded_->learnt() : nullptr) body_->follow(codec);
}

// Arrays beside the rows are in the body's order, whether they are codes or not.
void HeadStores::pack(size_t count, LateWork* late) {
  if (count <= packed() || count < coded_->least_appended()) return;
  const size_t fresh = count - packed();
  KeepCall call = keep_call(packed(), fresh);
  const RowTarget from = rows_.begin() + sink();
  const size_t waiting = late ? late->codes.size() : 0;
  coded_->append({from, fresh, positions_of(call.rows), layer_.dtype},
                 late ? &late->codes : nullptr);
  share_tables();
  if (late && late->codes.size() > waiting) {
    late->behind.push_back(call);
  } else {
    move_rows(call, site_.stream);
  }
  rows_.drop(fresh);
}

}  // namespace pith::cuda
