#include "cache/cuda/windowed_rows.h"

#include <algorithm>
#include <vector>

#include "attend/cuda/coded_body.h"
#include "cache/cuda/aged_body.h"
#include "kernels/cuda/turn.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

std::unique_ptr<DeviceBody> make_body(const LayerPlan& plan, const LayerSite& site) {
  const BodySite body = body_site(plan, site);
  if (plan.selector.body) return plan.selector.body->make(body);
  if (plan.codec && plan.codec->aged()) return std::make_unique<AgedBody>(plan.codec, body);
  if (plan.codec) return std::make_unique<CodedBody>(plan.codec, body);
  return nullptr;
}

}  // namespace

WindowedRows::WindowedRows(const LayerPlan& layer, const LayerSite& site)
    : layer_(layer),
      site_(site),
      plan_(plan_of(layer)),
      sink_(*site.memory, MemoryKind::kPayload),
      turned_(*site.memory, MemoryKind::kScratch),
      body_(make_body(layer, site)),
      window_(*site.memory, window_shape(), site.stream),
      protected_(*site.memory, {site.heads, site.dim, 0}, layer.dtype, site.stream) {
  sink_.allocate(4 * site.heads * layer.schedule.sink * site.dim, site.stream);
  if (layer.cache_positions) {
    if (!site.rope) {
      throw Error(ErrorCode::kUnsupported,
                  "positions inside the cache (rope=cache) need the model's RoPE; none is known "
                  "here");
    }
    turned_.allocate(sink_.size() / 2, site.stream);
  }
}

WindowedRows::WindowedRows(const WindowedRows& o)
    : layer_(o.layer_),
      site_(o.site_),
      plan_(o.plan_),
      sink_(*site_.memory, MemoryKind::kPayload),
      turned_(*site_.memory, MemoryKind::kScratch),
      body_(o.body_ ? o.body_->clone() : nullptr),
      window_(o.window_),
      protected_(o.protected_) {
  copy_buffer(sink_, o.sink_, site_.stream);
  turned_.allocate(o.turned_.size(), site_.stream);
}

DeviceRowsShape WindowedRows::window_shape() const {
  const size_t waiting = body_ ? body_->least() : 0;
  const size_t rows = layer_.schedule.window + layer_.schedule.block + waiting;
  return DeviceRowsShape::window(site_.heads, site_.dim, rows, body_ != nullptr);
}

std::unique_ptr<LayerRows> WindowedRows::clone() const {
  return std::make_unique<WindowedRows>(*this);
}

// Distances are all that RoPE tells: keys that go up are a query that goes back.
RowTarget WindowedRows::seen_sink() const {
  RowTarget sink = sink_at(0);
  if (layer_.cache_positions) sink.k = turned_.data();
  return sink;
}

void WindowedRows::turn_sink(int64_t steps, const int64_t* steps_at) const {
  if (!layer_.cache_positions) return;
  TurnRowsCall call;
  call.dtype = layer_.dtype;
  call.from = sink_.data();
  call.to = turned_.data();
  call.frequencies = site_.rope->device.data();
  call.rows = static_cast<int>(site_.heads * layer_.schedule.sink);
  call.dim = static_cast<int>(site_.dim);
  call.steps = steps;
  call.steps_at = steps_at;
  turn_rows(call, site_.stream);
}

size_t WindowedRows::body_rows() const { return body_ ? body_->rows() : 0; }

void WindowedRows::protect(const ProtectedRows& rows) {
  const ProtectedRows behind_sink = rows.from(static_cast<int64_t>(layer_.schedule.sink));
  protected_.protect(rows, layer_.schedule.sink);
  plan_.protect(behind_sink);
  if (body_) body_->protect(behind_sink.ranges());
}

void WindowedRows::hide() {
  if (body_ && layer_.seen > 0 && open() >= layer_.seen)
    body_->hide_first(open() + 1 - layer_.seen);
}

bool WindowedRows::begins_freely() const {
  if (body_ && layer_.seen > 0) return false;  // rows are hidden
  if (protected_.covers(tokens())) return protected_.has_room();
  return sink() < layer_.schedule.sink ||
         (window_.has_shape(window_shape()) && window_.has_room(1));
}

RowTarget WindowedRows::begin_token(const TokenSlots& slots) {
  const bool is_protected = protected_.covers(tokens()), to_sink = sink() < layer_.schedule.sink;
  const RowTarget protected_target = is_protected ? protected_.begin_token() : RowTarget{};
  if (!to_sink && !is_protected) {
    window_.reshape(window_shape());
    window_.reserve_more(1);
  }
  hide();
  Fresh fresh;
  (is_protected ? fresh.of_protected : to_sink ? fresh.sink : fresh.window) = 1;
  write_spans(slots, fresh);
  if (is_protected) return protected_target;
  return to_sink ? sink_at(sink()) : window_.end();
}

void WindowedRows::write_spans(const TokenSlots& slots) {
  hide();
  write_spans(slots, {});
}

void WindowedRows::write_spans(const TokenSlots& slots, const Fresh& fresh) const {
  DeviceSpan* spans = slots.spans;
  const size_t held = window_.rows() + fresh.window, with_own = window_.rows() + 1;
  const size_t unseen = layer_.seen > 0 ? with_own - std::min(with_own, layer_.seen) : 0;
  for (size_t g = 0; g < site_.heads; ++g) {
    if (layer_.schedule.sink > 0)
      *spans++ = dense_span(seen_sink(), g, sink() + fresh.sink, site_.dim);
    for (size_t i = 0; body_ && i < body_->spans(); ++i) *spans++ = body_->span(g, i);
    DeviceSpan& span = *spans++;
    span = dense_span(window_.begin() + unseen, g, held - unseen, site_.dim);
    span.settled_rows = std::max(span.rows - 1, 0);  // the last may be the step's own
    if (protected_.any()) *spans++ = protected_.span(g, protected_.rows() + fresh.of_protected);
  }
  slots.note->evicted = static_cast<int64_t>(plan_.state().gone());
}

void WindowedRows::attend_token(const TokenStep& step) const {
  turn_sink(0, &step.note->evicted);
  if (body_) {
    body_->attend_token(step.call, step.scratch);
  } else {
    decode_dense(step.call, step.scratch, site_.stream);
  }
}

// A move's position is the ordinal of its first row until then.
void WindowedRows::name_positions(BodyMove& move, ChunkSpace& space) const {
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

size_t WindowedRows::leaving(size_t rows) const {
  const size_t leave = rows - plan_.state().at(Zone::kWindow);
  return body_ && leave < body_->least() ? 0 : leave;
}

void WindowedRows::end_token(ChunkSpace& space, LateWork& late) {
  const Zone to = plan_.append(1).front().to;
  if (to == Zone::kProtected) return protected_.add_token();
  if (to == Zone::kSink) return;
  window_.add(1);
  const size_t leave = leaving(window_.rows());
  if (leave == 0) return;
  if (body_) {
    body_->announce(leave);
    const auto first = static_cast<int64_t>(open() - window_.rows());
    late.moves.push_back({body_.get(), window_.begin(), leave, first});
    name_positions(late.moves.back(), space);
  }
  window_.drop_front(leave);
}

// The window's rows and the chunk's lie side by side while the chunk is worked on: one span for
// attention, and one run of rows to be cut into blocks.
RowTarget WindowedRows::begin_chunk(size_t tokens, ChunkSpace& space) {
  hide();
  window_.reshape(window_shape());
  const RowTarget to = space.staging(window_.rows() + tokens);
  copy(to, window_.begin(), window_.rows());
  return to + window_.rows();
}

void WindowedRows::attend_before_window(CausalCall& call, ChunkSpace& space) const {
  space.lend_partials(call);
  protected_.attend_chunk(call);
  call.last = false;
  if (sink() > 0) {
    turn_sink(static_cast<int64_t>(plan_.state().gone()), nullptr);
    call.span = causal_span(seen_sink(), sink(), site_.dim);
    cuda::attend_chunk(call, site_.stream);
    call.first = false;
  }
  call.span = {};
  if (layer_.seen > 0) call.span.from = static_cast<int64_t>(open() + 1) - seen();
  if (body_rows() > 0) body_->attend_chunk(call, [&] { return space.piece(); });
}

void WindowedRows::attend_held(CausalCall& call, ChunkSpace& space) {
  hide();
  attend_before_window(call, space);
  const size_t rows = window_.rows();
  if (rows == 0) return;
  call.span = causal_span(window_.begin(), rows, site_.dim);
  if (layer_.seen > 0) call.span.from = static_cast<int64_t>(rows + 1) - seen();
  cuda::attend_chunk(call, site_.stream);
  call.first = false;
}

void WindowedRows::attend_chunk(CausalCall call, ChunkSpace& space) {
  attend_before_window(call, space);
  const auto before = static_cast<int64_t>(window_.rows());
  const size_t all = window_.rows() + static_cast<size_t>(call.tokens);
  call.span = causal_span(space.staging(all), all, site_.dim);
  call.span.before = before;
  if (layer_.seen > 0) call.span.from = before + 1 - seen();
  call.last = true;
  cuda::attend_chunk(call, site_.stream);
}

void WindowedRows::end_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) {
  const size_t before = window_.rows();
  RowTarget from = space.staging(before + tokens);
  const ProtectedStore::Chunk chunk{from + before};
  const size_t first = sink();
  tokens -= protected_.take(chunk, plan_.append(tokens));
  const size_t to_sink = sink() - first, rows = before + tokens - to_sink, leave = leaving(rows);
  copy(sink_at(first), from, to_sink);
  from = from + to_sink;
  if (body_ && leave > 0) {
    body_->announce(leave);
    moves.push_back({body_.get(), from, leave, static_cast<int64_t>(open() - rows)});
    name_positions(moves.back(), space);
  }
  window_.clear();  // its own have left it for the staging memory
  window_.reserve_more(rows - leave);
  copy(window_.begin(), from + leave, rows - leave);
  window_.add(rows - leave);
}

void WindowedRows::add_rows(HeadRows& rows, size_t head) const {
  const auto add = [&](size_t first, size_t count) {
    for (size_t p = first; p < first + count; ++p) {
      rows.positions.push_back(static_cast<int64_t>(p));
      rows.log_weights.push_back(0);
    }
  };
  const bool named = body_rows() > 0 && body_->keeps_positions();
  add(0, sink());
  if (body_rows() > 0 && !named) body_->add_rows(rows, head, static_cast<int64_t>(sink()));
  add(open() - window_.rows(), window_.rows());
  protected_.finish(rows, 0);
  if (named) body_->add_rows(rows, head, 0);
}

void WindowedRows::add_codes(std::vector<HeadCodes>& codes, size_t head) const {
  if (body_rows() == 0) return;
  body_->add_codes(codes, head,
                   sink() + (body_->keeps_positions() ? window_.rows() + protected_.rows() : 0));
}

void WindowedRows::archive(Archive& a, const SeenStream& seen) {
  if (a.loads()) plan_.replay(seen.tokens, seen.prompt_ends);
  a.need(tokens() == seen.tokens, "layers that saw different tokens");
  const std::vector<size_t> first(site_.heads, sink());
  archive_rows(a, sink_at(0), first, {site_.dim, layer_.dtype, site_.stream});
  if (body_) body_->archive(a, seen.tokens);
  archive_window(a);
  protected_.archive(a, plan_.state().at(Zone::kProtected));
}

void WindowedRows::archive_window(Archive& a) {
  size_t count = window_.rows();
  a.number(count, open() - sink(), "more rows in the window than came");
  a.need(count >= plan_.state().at(Zone::kWindow),
         "another number of rows in the window than the policy keeps");
  window_.archive(a, count, layer_.dtype);
}

void WindowedRows::add_to(Ledger& ledger) const {
  const size_t held = 4 * site_.heads * sink() * site_.dim;
  ledger.payload += held;
  ledger.slack += sink_.size() - held;
  ledger.rows_kept += sink() * site_.heads;
  window_.add_to(ledger);
  protected_.add_to(ledger);
  if (body_) body_->add_to(ledger);
}

}  // namespace pith::cuda
