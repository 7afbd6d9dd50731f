#include "cache/cuda/head_passes.h"

#include "cache/cuda/head_attention.h"
#include "cache/cuda/head_mass.h"
#include "cache/cuda/step_executor.h"

namespace pith::cuda {

bool HeadPasses::begins_freely() const {
  if (s_.body && s_.layer.seen > 0) return false;  // rows are hidden
  if (s_.protected_rows.covers(s_.tokens())) return s_.protected_rows.has_room();
  if (flows() && s_.in_sink() < s_.layer.schedule.sink) return true;
  return s_.has_room();
}

RowTarget HeadPasses::begin_token(const TokenSlots& slots) {
  NewRows fresh;
  const bool is_protected = s_.protected_rows.covers(s_.tokens());
  const bool to_sink = s_.in_sink() < s_.layer.schedule.sink;
  (is_protected ? fresh.of_protected : to_sink ? fresh.sink : fresh.run) = 1;
  const bool apart = flows() && fresh.sink > 0;
  if (!is_protected && !apart) s_.reserve(1);
  const RowTarget target = is_protected ? s_.protected_rows.begin_token()
                           : apart      ? s_.sink.end()
                                        : s_.rows.end();
  s_.hide();
  HeadAttention(s_).write_spans(slots, fresh);
  HeadMass(s_).write(slots, fresh);
  return target;
}

void HeadPasses::write_spans(const TokenSlots& slots) {
  s_.hide();
  HeadAttention(s_).write_spans(slots, {});
}

void HeadPasses::end_token(ChunkSpace& space, LateWork& late) {
  const std::span<const Step> steps = s_.plan.append(1);
  if (steps.front().to == Zone::kProtected) return s_.protected_rows.add_token();
  if (flows() && steps.front().to == Zone::kSink) return s_.sink.add(1);
  s_.rows.add(1);
  if (flows()) {
    s_.rows.drop_front(flow(s_.rows.begin(), s_.rows.rows(), space, late.moves));
  } else {
    StepExecutor(s_, space).carry_out(steps, false, late);
  }
}

// Where rows flow the window's and the chunk's lie side by side while the chunk is worked on: one
// span for attention, and one run of rows to be cut into blocks.
RowTarget HeadPasses::begin_chunk(size_t tokens, ChunkSpace& space) {
  s_.hide();
  if (!flows()) {
    s_.reserve(tokens);
    return s_.rows.end();
  }
  s_.rows.reshape(s_.run_shape());
  const size_t held = s_.rows.rows();
  const RowTarget to = space.staging(held + tokens);
  copy_rows({to, s_.rows.begin(), held, s_.heads(), s_.site.dim}, s_.site.stream);
  return to + held;
}

void HeadPasses::end_chunk(size_t tokens, ChunkSpace& space, LateWork& late) {
  if (flows()) return end_staged(tokens, space, late.moves);
  const ProtectedStore::Chunk chunk{s_.rows.end(), s_.sides.mass(s_.beside_rows().with_mass),
                                    s_.sides.capacity()};
  s_.rows.add(tokens);
  const std::span<const Step> steps = s_.plan.append(tokens);
  s_.rows.drop(s_.protected_rows.take(chunk, steps));
  StepExecutor(s_, space).carry_out(steps, true, late);
}

// Nobody attended to the chunk's rows: they have no mass yet.
void HeadPasses::append_chunk(size_t tokens, ChunkSpace& space, LateWork& late) {
  s_.sides.clear_mass(s_.beside_rows().with_mass, tokens);
  end_chunk(tokens, space, late);
}

void HeadPasses::end_prefill(ChunkSpace& space) {
  if (flows()) return s_.hide();
  LateWork none;
  StepExecutor(s_, space).carry_out(s_.plan.end_prompt(), true, none);
  s_.shrink();
}

// A move's position is the ordinal of its first row until then.
void HeadPasses::name_positions(BodyMove& move, ChunkSpace& space) const {
  const ProtectedStore& others = s_.protected_rows;
  if (!others.any() || !s_.body->keeps_positions()) return;
  if (move.rows == 1) {
    move.position = others.position_of(move.position);
    return;
  }
  int32_t* positions = space.staged_positions(move.rows);
  others.write_positions({positions, 0, 1, static_cast<int>(move.rows), move.position});
  move.positions = positions;
  move.staged = true;
}

size_t HeadPasses::flow(const RowTarget& from, size_t rows, ChunkSpace& space,
                        std::vector<BodyMove>& moves) {
  const size_t leave = rows - s_.plan.state().at(Zone::kWindow);
  if (!s_.body || leave == 0) return leave;
  if (leave < s_.body->least()) return 0;
  s_.body->announce(leave);
  moves.push_back({s_.body.get(), from, leave, static_cast<int64_t>(s_.open() - rows)});
  name_positions(moves.back(), space);
  return leave;
}

void HeadPasses::end_staged(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) {
  const auto copy = [&](const RowTarget& to, const RowTarget& from, size_t count) {
    copy_rows({to, from, count, s_.heads(), s_.site.dim}, s_.site.stream);
  };
  const size_t before = s_.rows.rows();
  RowTarget from = space.staging(before + tokens);
  tokens -= s_.protected_rows.take({from + before}, s_.plan.append(tokens));
  const size_t to_sink = s_.in_sink() - s_.sink.rows(), rows = before + tokens - to_sink;
  copy(s_.sink.end(), from, to_sink);
  s_.sink.add(to_sink);
  from = from + to_sink;
  const size_t gone = flow(from, rows, space, moves);
  s_.rows.clear();  // its own have left it for the staging memory
  s_.rows.reserve_more(rows - gone);
  copy(s_.rows.begin(), from + gone, rows - gone);
  s_.rows.add(rows - gone);
}

}  // namespace pith::cuda
