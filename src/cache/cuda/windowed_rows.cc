#include "cache/cuda/windowed_rows.h"

#include <algorithm>

namespace pith::cuda {

WindowedRows::WindowedRows(const LayerPlan& plan, const LayerSite& site)
    : plan_(plan),
      site_(site),
      ring_capacity_(((plan.schedule.window + plan.schedule.block) * (plan.codec ? 2 : 1) + 31) /
                     32 * 32),
      sink_(*site.memory, MemoryKind::kPayload),
      ring_(*site.memory, MemoryKind::kPayload) {
  sink_.allocate(4 * site.heads * plan.schedule.sink * site.dim, site.stream);
  ring_.allocate(4 * site.heads * ring_capacity_ * site.dim, site.stream);
  if (plan.codec) body_.emplace(plan.codec, plan.dtype, site);
}

WindowedRows::WindowedRows(const WindowedRows& o)
    : plan_(o.plan_),
      site_(o.site_),
      ring_capacity_(o.ring_capacity_),
      sink_(*o.site_.memory, MemoryKind::kPayload),
      ring_(*o.site_.memory, MemoryKind::kPayload),
      body_(o.body_),
      tokens_(o.tokens_),
      front_(o.front_),
      count_(o.count_) {
  const auto copy_of = [&](DeviceBuffer& to, const DeviceBuffer& from) {
    to.allocate(from.size(), site_.stream);
    if (from.size() == 0) return;
    check(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDeviceToDevice,
                          site_.stream),
          "a copy of the cache");
  };
  copy_of(sink_, o.sink_);
  copy_of(ring_, o.ring_);
}

std::unique_ptr<LayerRows> WindowedRows::clone() const {
  return std::make_unique<WindowedRows>(*this);
}

RowTarget WindowedRows::sink_at(size_t row) const {
  auto* bytes = static_cast<std::byte*>(sink_.data());
  return {bytes, bytes + sink_.size() / 2, plan_.schedule.sink * site_.dim,
          static_cast<int64_t>(row)};
}

RowTarget WindowedRows::ring_at(size_t row) const {
  auto* bytes = static_cast<std::byte*>(ring_.data());
  return {bytes, bytes + ring_.size() / 2, ring_capacity_ * site_.dim,
          static_cast<int64_t>(row % ring_capacity_)};
}

size_t WindowedRows::body_rows() const { return body_ ? body_->rows() : 0; }

DeviceSpan WindowedRows::dense_span(const RowTarget& rows, size_t head, size_t count) const {
  DeviceSpan span;
  span.rows = static_cast<int32_t>(count);
  span.row_stride = static_cast<int32_t>(site_.dim);
  if (count == 0) return span;
  const size_t at = (head * rows.head_stride + static_cast<size_t>(rows.row) * site_.dim) * 2;
  span.keys = static_cast<std::byte*>(rows.k) + at;
  span.values = static_cast<std::byte*>(rows.v) + at;
  return span;
}

void WindowedRows::make_room() {
  if (!body_ || front_ + count_ < ring_capacity_) return;
  copy(ring_at(0), ring_at(front_), count_);  // apart: the ring holds twice as many
  front_ = 0;
}

RowTarget WindowedRows::begin_token(DeviceSpan* spans) {
  const bool to_sink = tokens_ < plan_.schedule.sink;
  if (!to_sink) make_room();
  const size_t sink = std::min(tokens_ + 1, plan_.schedule.sink);
  const size_t ring = count_ + (to_sink ? 0 : 1);
  const size_t straight = std::min(ring, ring_capacity_ - front_);
  for (size_t g = 0; g < site_.heads; ++g) {
    if (plan_.schedule.sink > 0) *spans++ = dense_span(sink_at(0), g, sink);
    *spans++ = body_ ? body_->span(g) : dense_span(ring_at(0), g, ring - straight);
    *spans++ = dense_span(ring_at(front_), g, straight);
  }
  return to_sink ? sink_at(tokens_) : ring_at(front_ + count_);
}

void WindowedRows::attend_token(const DecodeCall& call, const DecodeScratch& scratch) const {
  if (body_) {
    plan_.codec->attend(call, scratch, site_.stream);
  } else {
    decode_dense(call, scratch, site_.stream);
  }
}

void WindowedRows::end_token(std::vector<CodeMove>& moves) {
  if (tokens_++ < plan_.schedule.sink) return;
  ++count_;
  // One token completes one block at most.
  if (count_ < plan_.schedule.window + plan_.schedule.block) return;
  if (body_) moves.push_back(body_->begin_append(ring_at(front_), 1));
  front_ = (front_ + plan_.schedule.block) % ring_capacity_;
  count_ -= plan_.schedule.block;
}

void WindowedRows::copy(const RowTarget& to, const RowTarget& from, size_t count) {
  if (count == 0) return;
  const size_t row_bytes = site_.dim * 2;
  const auto side = [&](void* target, const void* source) {
    check(cudaMemcpy2DAsync(
              static_cast<std::byte*>(target) + static_cast<size_t>(to.row) * row_bytes,
              to.head_stride * 2,
              static_cast<const std::byte*>(source) + static_cast<size_t>(from.row) * row_bytes,
              from.head_stride * 2, count * row_bytes, site_.heads, cudaMemcpyDeviceToDevice,
              site_.stream),
          "moving rows of the cache");
  };
  side(to.k, from.k);
  side(to.v, from.v);
}

// The window's rows and the chunk's lie side by side while the chunk is worked on: one span for
// attention, and one run of rows to be cut into blocks.
RowTarget WindowedRows::begin_chunk(size_t tokens, ChunkSpace& space) {
  RowTarget to = space.staging(count_ + tokens);
  const size_t straight = std::min(count_, ring_capacity_ - front_);
  copy(to, ring_at(front_), straight);
  to.row = static_cast<int64_t>(straight);
  copy(to, ring_at(0), count_ - straight);
  to.row = static_cast<int64_t>(count_);
  return to;
}

void WindowedRows::attend_chunk(CausalCall call, ChunkSpace& space) {
  space.lend_partials(call);
  const auto attend = [&](const RowTarget& rows, size_t count) {
    call.span = {rows.k, rows.v, rows.head_stride, static_cast<int64_t>(count), -1, 0};
    call.last = false;
    cuda::attend_chunk(call, site_.stream);
    call.first = false;
  };
  const size_t sink = std::min(tokens_, plan_.schedule.sink);
  if (sink > 0) attend(sink_at(0), sink);
  for (size_t first = 0; first < body_rows(); first += ChunkSpace::kPieceRows) {
    const size_t count = std::min(ChunkSpace::kPieceRows, body_rows() - first);
    const RowTarget piece = space.piece();
    body_->unpack(piece, first / 32, count / 32);
    attend(piece, count);
  }
  const RowTarget own = space.staging(count_ + static_cast<size_t>(call.tokens));
  const auto before = static_cast<int64_t>(count_);
  call.span = {own.k, own.v, own.head_stride, before + call.tokens, before, 0};
  call.last = true;
  cuda::attend_chunk(call, site_.stream);
}

void WindowedRows::end_chunk(size_t tokens, ChunkSpace& space) {
  RowTarget from = space.staging(count_ + tokens);
  const size_t to_sink =
      std::min(tokens, plan_.schedule.sink - std::min(tokens_, plan_.schedule.sink));
  copy(sink_at(tokens_), from, to_sink);
  from.row += static_cast<int64_t>(to_sink);
  const size_t leave =
      count_ + tokens - to_sink - occupancy(plan_.schedule, tokens_ + tokens).window;
  if (body_) body_->append(from, leave / 32);
  from.row += static_cast<int64_t>(leave);
  tokens_ += tokens;
  front_ = 0;
  count_ = occupancy(plan_.schedule, tokens_).window;
  copy(ring_at(0), from, count_);
}

std::vector<int64_t> WindowedRows::positions() const {
  std::vector<int64_t> all;
  const auto end = static_cast<int64_t>(tokens_);
  const auto exact = static_cast<int64_t>(std::min(tokens_, plan_.schedule.sink) + body_rows());
  for (int64_t p = 0; p < exact; ++p) all.push_back(p);
  for (int64_t p = end - static_cast<int64_t>(count_); p < end; ++p) all.push_back(p);
  return all;
}

void WindowedRows::add_to(Ledger& ledger) const {
  const size_t rows = std::min(tokens_, plan_.schedule.sink) + count_;
  const size_t held = 4 * site_.heads * rows * site_.dim;
  ledger.payload += held;
  ledger.slack += sink_.size() + ring_.size() - held;
  ledger.rows_kept += rows * site_.heads;
  if (body_) body_->add_to(ledger);
}

}  // namespace pith::cuda
