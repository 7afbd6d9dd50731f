#include "cache/cuda/run_codes.h"

#include <algorithm>

#include "kernels/cuda/grouped_layout.h"
#include "pith/error.h"

namespace pith::cuda {

KeepCall RunCodes::rows_of(size_t first, size_t count) const {
  const size_t row = s_.in_sink() + first - std::min(first, s_.packed());  // in the dense run
  const size_t named = std::min(s_.known() - std::min(s_.known(), first), count);
  KeepCall call;
  CandidateRows& from = call.rows;
  from.dtype = s_.layer.dtype;
  from.heads = static_cast<int>(s_.site.heads);
  from.dim = static_cast<int>(s_.site.dim);
  from.k = s_.rows.keys() + row * s_.site.dim * 2;
  from.v = s_.rows.values() + row * s_.site.dim * 2;
  from.head_stride = s_.rows.head_stride();
  s_.sides.add_sides(from, s_.settled() + first, s_.in_sink() + first);
  from.known = static_cast<int>(named);
  from.first_position = static_cast<int64_t>(s_.open() - (s_.unsettled() - first - named));
  from.rows = static_cast<int>(count);
  call.after = static_cast<int>(s_.unsettled() - first - count);
  return call;
}

RowPositions RunCodes::positions_of(CandidateRows& rows) const {
  if (!s_.layer.before_rope) return rows.first_position;
  s_.protected_rows.name(rows);
  if (rows.known == 0) return rows.first_position;
  if (rows.known < rows.rows) {
    throw Error(ErrorCode::kInternal, "rows are coded of which some have no position yet");
  }
  return {rows.positions, rows.side_stride, static_cast<size_t>(rows.rows)};
}

// A body that learnt from the rows that the heavy ones leave would need kernels with two tables.
void RunCodes::share_tables() {
  if (const auto codec = s_.body && s_.codes ? s_.codes->learnt() : nullptr) s_.body->follow(codec);
}

void RunCodes::pack(size_t count, LateCodes* late) {
  if (count <= s_.packed() || count < s_.codes->least_appended()) return;
  const size_t fresh = count - s_.packed();
  KeepCall call = rows_of(s_.packed(), fresh);
  const RowTarget from = s_.rows.begin() + s_.in_sink();
  const size_t waiting = late ? late->works.size() : 0;
  s_.codes->append({from, fresh, positions_of(call.rows), s_.layer.dtype},
                   late ? &late->works : nullptr);
  share_tables();
  if (late && late->works.size() > waiting) {
    late->behind.push_back(call);
  } else {
    move_rows(call, s_.site.stream);
  }
  s_.rows.drop(fresh);
}

void RunCodes::pack_blocks(LateCodes* late) { pack(s_.between() / kBlockRows * kBlockRows, late); }

// Positions of codes lie before those of dense rows: they stay where they are.
void RunCodes::settle() {
  const size_t group = s_.codes->codec().block_rows();
  const size_t count = (s_.chooser->settled(s_.plan.state()) - s_.settled()) / group * group;
  if (count == 0) return;
  KeepCall call = rows_of(0, count);
  const RowTarget from = s_.rows.begin() + s_.in_sink();
  if (s_.layer.before_rope) {  // they do not follow each other any more
    if (count < s_.codes->least_appended()) return;
    s_.codes->append({from, count, positions_of(call.rows), s_.layer.dtype});
  } else {
    const BodyMove move{s_.codes.get(), from, count};
    s_.codes->announce(count);
    s_.codes->take({&move, 1});
  }
  keep_rows(call, s_.site.stream);
  s_.rows.drop(count);
}

// Where they would get no more room than they have, no memory is asked for, which begins as zeros.
void RunCodes::keep(const Kept& kept, ChunkSpace& space) {
  CodedStore& codes = *s_.codes;
  if (kept.first > 0)
    return codes.blocks().keep_from(kept.first, kept.rows, kept.stride, kept.count);
  if (!codes.blocks().keeps_in_place())
    return codes.blocks().keep(kept.rows, kept.stride, kept.count);
  MoveCodesCall move = codes.blocks().keep_later(kept.count);
  move.kept = kept.rows;
  move.kept_stride = kept.stride;
  std::byte* memory = space.codes(keep_bytes(codes.codec(), {&move, 1}));
  keep_through(memory, codes.codec(), {&move, 1}, s_.site.stream);
}

void RunCodes::unpack(CandidateRows& rows, size_t first, DType dtype, ChunkSpace& space) const {
  const size_t block = first / kBlockRows, skipped = first % kBlockRows;
  const size_t count = skipped + static_cast<size_t>(rows.rows);
  const RowTarget to = space.unpacked(count);
  rows.dtype = dtype;
  s_.codes->blocks().calls().unpack(to, {block, (count + kBlockRows - 1) / kBlockRows, rows.dtype});
  rows.k = static_cast<std::byte*>(to.k) + skipped * s_.site.dim * 2;
  rows.v = static_cast<std::byte*>(to.v) + skipped * s_.site.dim * 2;
  rows.head_stride = to.head_stride;
}

}  // namespace pith::cuda
