#include "cache/cuda/step_executor.h"

#include <algorithm>

#include "kernels/cuda/grouped_layout.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

/// One selection, and behind it at most rows that enter the window: it may wait for those of other
/// layers, since no step is about the rows that it leaves. Rows that leave the window in groups can
/// bring several, or more rows.
bool ends_with_selection(std::span<const Step> steps) {
  const auto selection = std::ranges::find(steps, Op::kSelect, &Step::op);
  return selection != steps.end() && std::all_of(selection + 1, steps.end(), [](const Step& step) {
           return step.op == Op::kAppend;
         });
}

}  // namespace

void StepExecutor::carry_out(std::span<const Step> steps, bool chunk, LateWork& late) {
  const bool packs = s_.zones().packs();
  size_t fresh = 0;  // rows that have left the window
  for (const Step& step : steps) {
    if (step.from == Zone::kWindow || step.to == Zone::kLeaving) fresh += step.rows;
  }
  RunCodes codes(s_);
  HeavySplit heavy(s_, space_);
  if (packs && s_.layer.shares) codes.pack(s_.between() + fresh);
  const RowRun before = s_.run;
  // Codes in the run would have room for a whole chunk from then on.
  const bool one_by_one = packs && !s_.body;
  const bool waits = !one_by_one && heavy.carry_out(steps, chunk, late);
  const bool may_wait = !chunk && ends_with_selection(steps);
  for (const Step& step : steps) {
    if (one_by_one) heavy.carry_out({&step, 1}, chunk, late);
    carry_out(step, may_wait ? &late : nullptr);
  }
  if (const auto step = s_.late.due(s_.run, chunk || s_.layer.selector.heavy ? 1 : kBlockRows)) {
    select(*step, nullptr);
    s_.run.apply(s_.late.weigh());
  }
  if (s_.run.selected != before.selected || s_.run.weighted != before.weighted) s_.write_weights();
  if (packs && !waits) {
    codes.pack_blocks(chunk ? nullptr : &late.after);
  } else if (s_.zones().settles()) {
    codes.settle();
  }
}

void StepExecutor::carry_out(const Step& step, LateWork* late) {
  RowRun& run = s_.run;
  if (step.op == Op::kSplit) {
    run.apply(step);
    if (s_.body) run.evicted = 0;
    return;
  }
  if (s_.body && step.to != Zone::kHeavy) return;  // it carries out the others
  const bool any_time = s_.chooser->any_time();
  switch (step.op) {
    case Op::kAppend: return;
    case Op::kMove: run.apply(step); return;
    case Op::kSelect:
      if (any_time) return s_.late.put_off(run, step);
      [[fallthrough]];
    case Op::kHalve: return select(step, late);
    case Op::kWeigh: return any_time ? s_.late.put_off(run, step) : run.apply(step);
    default: throw Error(ErrorCode::kInternal, "a step that rows in one run do not know");
  }
}

void StepExecutor::share(const Step& step) {
  const size_t count = s_.in_body();
  const bool packs = s_.zones().packs();
  if (packs) RunCodes(s_).pack(count);
  KeepCall call = RunCodes(s_).rows_of(0, count);  // none of them: the ragged store has what stays
  s_.protected_rows.name(call.rows);
  call.rows.queries = s_.queries.seen(s_.tokens());
  s_.ragged->select(*s_.chooser, step, {call.rows, s_.codes.get()}, space_);
  if (packs) {
    s_.codes->blocks().clear();
    move_sides(call, s_.site.stream);
  } else {
    keep_rows(call, s_.site.stream);
    s_.rows.drop(count);
  }
  s_.run.apply(step);
}

bool StepExecutor::joins_others() const {
  return s_.zones().packs() && !s_.chooser->by_keys_alone().empty() &&
         s_.codes->blocks().keeps_in_place();
}

void StepExecutor::select(const Step& step, LateWork* late) {
  if (s_.ragged) return share(step);
  const size_t first =
      RowRun::first_of(step) - std::min<size_t>(RowRun::first_of(step), s_.settled());
  // Rows behind those that are halved follow what is left of them, as all later ones do.
  const size_t newer = step.op == Op::kHalve ? step.behind : 0;
  const size_t held = s_.in_body() - newer, count = held - first;
  const size_t keep = RowRun::kept_of(step) - newer;
  const bool alone = first == 0 && s_.packed_behind(held) == 0;  // nothing lies around them
  const bool waits = late && alone && joins_others();
  if (s_.zones().packs()) RunCodes(s_).pack(held, waits ? &late->after : nullptr);
  KeepCall call = RunCodes(s_).rows_of(first, count);
  const size_t behind = s_.known() - std::min(s_.known(), held);  // of the heavy rows
  s_.protected_rows.name(call.rows);
  call.rows.selected = static_cast<int>(step.old);
  call.keep = static_cast<int>(keep);
  call.after_known = static_cast<int>(behind);
  call.mass_factor = s_.chooser->mass_kept();
  if (waits) {
    const size_t blocks = whole_blocks(held) / kBlockRows;
    const UnpackRowsCall keys = s_.codes->blocks().calls().unpack_call({0, blocks, DType::kF16});
    late->choices.push_back({&s_.codes->codec(), s_.chooser.get(), step, keys,
                             s_.codes->blocks().keep_later(keep), call});
  } else {
    select_now(call, held, step);
  }
  s_.run.apply(step);
  s_.sides.name(s_.settled() + first + keep + behind);
}

void StepExecutor::select_now(KeepCall& call, size_t held, const Step& step) {
  const auto count = static_cast<size_t>(call.rows.rows), first = held - count;
  const auto keep = static_cast<size_t>(call.keep);
  const size_t coded_behind = s_.packed_behind(held);  // of the heavy rows
  const cudaStream_t stream = s_.site.stream;
  const bool packs = s_.zones().packs();
  RunCodes codes(s_);
  const SelectSpace scratch = space_.select(count + coded_behind, s_.queries.kept());
  call.kept = scratch.kept;
  call.kept_stride = scratch.stride;
  call.rows.queries = s_.queries.seen(s_.tokens());
  if (packs && s_.chooser->reads_rows()) codes.unpack(call.rows, first, DType::kF16, space_);
  s_.chooser->choose(scratch, call.rows, step, stream);
  if (packs) {
    const bool alone = first == 0 && coded_behind == 0;
    const NewOrder order{call.rows.heads, static_cast<int>(first),       call.rows.rows, 0,
                         call.keep,       static_cast<int>(coded_behind)};
    const int32_t* kept = alone ? scratch.kept : order_rows(scratch, order, stream);
    codes.keep({kept, scratch.stride, first, keep + coded_behind}, space_);
    move_sides(call, stream);
  } else {
    keep_rows(call, stream);
    s_.rows.drop(count - keep);
  }
}

}  // namespace pith::cuda
