#include "cache/cuda/heavy_split.h"

#include <algorithm>

#include "kernels/cuda/grouped_layout.h"

namespace pith::cuda {

// Rows behind those that the first split is about come to the heavy ones next, and steps between
// two splits change nothing there: what the body's rule does, it does to rows before them.
bool HeavySplit::carry_out(std::span<const Step> steps, bool chunk, LateWork& late) {
  const auto is_split = [](const Step& step) { return step.op == Op::kSplit; };
  const auto first = std::ranges::find_if(steps, is_split);
  if (first == steps.end()) return false;
  const auto times = static_cast<size_t>(std::count_if(first, steps.end(), is_split));
  const Splits splits{first->keep, times * first->rows};
  const size_t end = s_.run.body + splits.all();
  const bool packs = s_.zones().packs();
  if (packs) RunCodes(s_).pack(end, s_.body ? &late.before : nullptr);
  KeepCall call = RunCodes(s_).rows_of(s_.run.body, splits.all());
  const SelectSpace scratch = space_.select(splits.all() + s_.packed_behind(end), true);
  call.kept = scratch.kept;
  call.kept_stride = scratch.stride;
  s_.protected_rows.name(call.rows);
  const HeavyCall choice{call.rows, scratch, *s_.layer.selector.heavy};
  if (!s_.body) {
    split_in_run(splits, choice, call);
    s_.sides.name(end);
    return false;
  }
  split_to_body(splits, choice, call, chunk, late);
  return packs;
}

void HeavySplit::split_to_body(const Splits& splits, const HeavyCall& choice, KeepCall call,
                               bool chunk, LateWork& late) {
  call.keep = static_cast<int>(splits.stay);
  s_.sides.name(splits.stay);
  const Staged staged = stage(splits, late.moves);
  const GatherCall gather{
      call.rows, choice.space.kept, choice.space.stride, call.keep, static_cast<int>(splits.leave),
      staged.to, staged.positions,  staged.stride};
  const HeavyWork work{choice, gather, call};
  if (s_.zones().packs()) {
    late.splits.push_back({&s_.codes->codec(), work, &s_, chunk ? nullptr : &late});
  } else {
    late.heavy.push_back(work);
    s_.rows.drop(splits.leave);
  }
}

// Coders read whole blocks.
HeavySplit::Staged HeavySplit::stage(const Splits& splits, std::vector<BodyMove>& moves) {
  const bool packs = s_.zones().packs();
  const size_t leave = splits.leave;
  const Staged staged{space_.staging(whole_blocks(leave)),
                      space_.staged_positions(s_.heads() * leave), leave};
  s_.body->announce(leave);
  moves.push_back({s_.body.get(), staged.to, leave, 0, staged.positions, leave, true, packs});
  return staged;
}

void HeavySplit::split_in_run(const Splits& splits, HeavyCall choice, const KeepCall& call) {
  const CandidateRows& rows = call.rows;
  const SelectSpace& scratch = choice.space;
  const cudaStream_t stream = s_.site.stream;
  const int stay = static_cast<int>(splits.stay);
  RunCodes codes(s_);
  const bool packs = s_.zones().packs();
  if (packs && choice.sizes.by_key > 0) codes.unpack(choice.rows, s_.run.body, DType::kF16, space_);
  choose_heavy(choice, stream);
  if (packs) {
    const size_t first = s_.run.body, behind = s_.packed_behind(first + splits.all());
    const NewOrder order{rows.heads, static_cast<int>(first), rows.rows, stay,
                         rows.rows,  static_cast<int>(behind)};
    codes.keep({order_rows(scratch, order, stream), scratch.stride, first, splits.all() + behind},
               space_);
  } else {
    leave_first(scratch, rows, stay, space_.unpacked(splits.all()), stream);
  }
  leave_first_sides(scratch, rows, stay, stream);
}

}  // namespace pith::cuda
