#include "cache/cuda/protected_store.h"

namespace pith::cuda {

void ProtectedStore::protect(const ProtectedRows& rows, size_t sink) {
  ranges_ = rows.from(static_cast<int64_t>(sink));
  std::vector<OrdinalRun> runs{{0, 0}};
  int64_t before = 0;
  for (const TokenRange& range : ranges_.ranges()) {
    runs.push_back({range.first - before, range.last});
    before += range.last - range.first;
  }
  const auto on_device = std::make_shared<DeviceArray<OrdinalRun>>(
      memory_->root(), MemoryKind::kScratch, runs.size(), stream_);
  on_device->upload(runs.data(), runs.size(), stream_);
  runs_ = on_device;
}

void ProtectedStore::name(CandidateRows& rows) const {
  if (!any()) return;
  write_positions({rows.positions + rows.known, rows.side_stride, rows.heads,
                   rows.rows - rows.known, rows.first_position});
  rows.known = rows.rows;
}

RowTarget ProtectedStore::begin_token() {
  rows_.reserve_more(1);
  return rows_.end();
}

void ProtectedStore::attend_chunk(ChunkAttention& attention) const {
  if (rows() > 0) attention.add(causal_span(rows_.begin(), rows(), shape_.dim));
}

size_t ProtectedStore::take(const Chunk& chunk, std::span<const Step> steps) {
  size_t came = 0, done = 0, tokens = 0;
  for (const Step& step : steps) tokens += step.op == Op::kAppend ? step.rows : 0;
  for (const Step& step : steps) {
    if (step.op != Op::kAppend) continue;
    const size_t count = step.rows;
    done += count;
    if (step.to != Zone::kProtected) continue;
    rows_.reserve_more(count);
    const size_t behind = done - count - came;  // rows of the chunk
    const RowTarget from = chunk.from + behind;
    copy_rows({rows_.end(), from, count, shape_.heads, shape_.dim}, stream_);
    rows_.add(count);
    came += count;
    KeepCall call;  // none of these, and all behind them
    call.rows.dtype = dtype_;
    call.rows.heads = static_cast<int>(shape_.heads);
    call.rows.dim = static_cast<int>(shape_.dim);
    const size_t at = static_cast<size_t>(from.row) * shape_.dim * 2;
    call.rows.k = static_cast<std::byte*>(from.k) + at;
    call.rows.v = static_cast<std::byte*>(from.v) + at;
    call.rows.head_stride = chunk.from.head_stride;
    call.rows.mass = chunk.mass ? chunk.mass + behind : nullptr;
    call.rows.side_stride = chunk.mass_stride;
    call.rows.rows = static_cast<int>(count);
    call.after = static_cast<int>(tokens - done);
    move_rows(call, stream_);
    if (chunk.mass) move_sides(call, stream_);
  }
  return came;
}

void ProtectedStore::finish(HeadRows& out, size_t first) const {
  if (!any()) return;
  for (size_t i = first; i < out.positions.size(); ++i) {
    out.positions[i] = position_of(out.positions[i]);
  }
  size_t left = rows();
  for (const TokenRange& range : ranges_.ranges()) {
    for (int64_t p = range.first; p < range.last && left > 0; ++p, --left) {
      out.positions.push_back(p);
      out.log_weights.push_back(0);
    }
  }
}

}  // namespace pith::cuda
