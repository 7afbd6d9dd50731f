// Rows that flow out of the window, into a body or away: see head_stores.h.

#include <algorithm>

#include "cache/cuda/head_stores.h"
#include "kernels/cuda/turn.h"

namespace pith::cuda {

// Distances are all that RoPE tells: keys that go up are a query that goes back.
RowTarget HeadStores::seen_sink() const {
  RowTarget sink = sink_.begin();
  if (layer_.cache_positions) sink.k = turned_.at();
  return sink;
}

void HeadStores::turn_sink(int64_t steps, const int64_t* steps_at) const {
  if (!layer_.cache_positions) return;
  TurnRowsCall call;
  call.dtype = layer_.dtype;
  call.from = sink_.keys();
  call.to = turned_.at();
  call.frequencies = site_.rope->device.data();
  call.rows = static_cast<int>(site_.heads * layer_.schedule.sink);
  call.dim = static_cast<int>(site_.dim);
  call.steps = steps;
  call.steps_at = steps_at;
  turn_rows(call, site_.stream);
}

void HeadStores::hide() {
  if (body_ && layer_.seen > 0 && open() >= layer_.seen)
    body_->hide_first(open() + 1 - layer_.seen);
}

// A move's position is the ordinal of its first row until then.
void HeadStores::name_positions(BodyMove& move, ChunkSpace& space) const {
  if (!protected_.any() || !body_->keeps_positions()) return;
  if (move.rows == 1) {
    move.position = protected_.position_of(move.position);
    return;
  }
  int32_t* positions = space.staged_positions(move.rows);
  protected_.write_positions({positions, 0, 1, static_cast<int>(move.rows), move.position});
  move.positions = positions;
  move.staged = true;
}

size_t HeadStores::flow(const RowTarget& from, size_t rows, ChunkSpace& space,
                        std::vector<BodyMove>& moves) {
  const size_t leave = rows - plan_.state().at(Zone::kWindow);
  if (!body_ || leave == 0) return leave;
  if (leave < body_->least()) return 0;
  body_->announce(leave);
  moves.push_back({body_.get(), from, leave, static_cast<int64_t>(open() - rows)});
  name_positions(moves.back(), space);
  return leave;
}

void HeadStores::end_staged(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) {
  const auto copy = [&](const RowTarget& to, const RowTarget& from, size_t count) {
    copy_rows({to, from, count, site_.heads, site_.dim}, site_.stream);
  };
  const size_t before = rows_.rows();
  RowTarget from = space.staging(before + tokens);
  tokens -= protected_.take({from + before}, plan_.append(tokens));
  const size_t to_sink = sink() - sink_.rows(), rows = before + tokens - to_sink;
  copy(sink_.end(), from, to_sink);
  sink_.add(to_sink);
  from = from + to_sink;
  const size_t gone = flow(from, rows, space, moves);
  rows_.clear();  // its own have left it for the staging memory
  rows_.reserve_more(rows - gone);
  copy(rows_.begin(), from + gone, rows - gone);
  rows_.add(rows - gone);
}

}  // namespace pith::cuda
