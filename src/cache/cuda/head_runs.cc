#include "cache/cuda/head_runs.h"

#include <algorithm>

#include "attend/cuda/device_rows.h"

namespace pith::cuda {
namespace {

/// The moves of one run: others of the layer are not of its shape.
void take(const std::vector<BodyMove>& moves) {
  for (const BodyMove& move : moves) move.body->take({&move, 1});
}

/// Columns [offset, offset + width) of `rows` rows, bytes.
struct Columns {
  const void* from = nullptr;
  size_t from_pitch = 0, width = 0, rows = 0;
};
void copy(void* to, size_t to_pitch, const Columns& c, cudaStream_t stream) {
  check(cudaMemcpy2DAsync(to, to_pitch, c.from, c.from_pitch, c.width, c.rows,
                          cudaMemcpyDeviceToDevice, stream),
        "rows and queries of single heads");
}

}  // namespace

HeadRuns::HeadRuns(std::vector<HeadRun> runs, const LayerSite& site)
    : site_(site), runs_(std::move(runs)), token_(*site.memory, MemoryKind::kScratch) {
  token_.allocate(4 * site.heads * site.dim, site.stream);
}

HeadRuns::HeadRuns(const HeadRuns& other) : HeadRuns({}, LayerSite(other.site_)) {
  for (const HeadRun& run : other.runs_) {
    runs_.push_back({run.first, run.site, run.rows->clone()});
  }
}

size_t HeadRuns::spans() const {
  size_t most = 0;
  for (const HeadRun& run : runs_) most = std::max(most, run.rows->spans());
  return most;
}

RowTarget HeadRuns::begin_token(const TokenSlots& slots) {
  TokenSlots mine = slots;
  for (HeadRun& run : runs_) {
    mine.note->target = run.rows->begin_token(mine);
    mine.spans += run.site.heads * run.rows->spans();
    ++mine.note;
  }
  return rows_in(token_, 1, site_.dim);
}

void HeadRuns::write_spans(const TokenSlots& slots) {
  TokenSlots mine = slots;
  for (HeadRun& run : runs_) {
    run.rows->write_spans(mine);
    mine.spans += run.site.heads * run.rows->spans();
    ++mine.note;
  }
}

void HeadRuns::attend_token(const TokenStep& step) const {
  const auto* bytes = static_cast<const std::byte*>(token_.data());
  const size_t group = site_.query_heads / site_.heads;
  const DeviceSpan* spans = step.call.spans;
  const TokenNote* note = step.note;
  for (const HeadRun& run : runs_) {
    const size_t at = run.first * site_.dim, query = at * group;
    TokenRowsCall rows{bytes + at * 2, bytes + token_.size() / 2 + at * 2, &note->target};
    rows.heads = static_cast<int>(run.site.heads);
    rows.dim = static_cast<int>(site_.dim);
    if (!step.only_reads) copy_token_rows(rows, site_.stream);
    DecodeCall call = step.alone();
    call.shape.query_heads = static_cast<int>(run.site.query_heads);
    call.shape.kv_heads = static_cast<int>(run.site.heads);
    call.shape.spans = static_cast<int>(run.rows->spans());
    call.q = static_cast<const std::byte*>(call.q) + query * 2;
    call.spans = spans;
    call.out += query;
    call.log_sum += run.first * group;
    run.rows->attend_token({call, step.scratch, note, step.only_reads});
    spans += run.site.heads * run.rows->spans();
    ++note;
  }
}

bool HeadRuns::begins_freely() const {
  return std::ranges::all_of(runs_, [](const HeadRun& run) { return run.rows->begins_freely(); });
}

void HeadRuns::end_token(ChunkSpace& space, LateWork&) {
  for (HeadRun& run : runs_) {
    LateWork mine;
    run.rows->end_token(space, mine);
    take(mine.moves);
    mine.run(site_.stream);
  }
}

HeadRuns::Apart HeadRuns::apart(size_t tokens, ChunkSpace& space) const {
  const size_t rows = 2 * site_.heads * tokens * site_.dim;           // bytes of one side
  const size_t queries = 2 * tokens * site_.query_heads * site_.dim;  // bytes
  std::byte* bytes = space.apart(2 * rows + 3 * queries);             // results: up to 4 bytes each
  return {
      {bytes, bytes + rows, tokens * site_.dim, 0}, bytes + 2 * rows, bytes + 2 * rows + queries};
}

RowTarget HeadRuns::begin_chunk(size_t tokens, ChunkSpace& space) {
  return apart(tokens, space).rows;
}

void HeadRuns::copy_rows(const RowTarget& to, const RowTarget& from, const HeadRun& run,
                         size_t tokens) const {
  const size_t at = static_cast<size_t>(to.row) * site_.dim * 2;
  const auto side = [&](void* target, const void* source) {
    copy(static_cast<std::byte*>(target) + at, to.head_stride * 2,
         {static_cast<const std::byte*>(source) + run.first * from.head_stride * 2,
          from.head_stride * 2, tokens * site_.dim * 2, run.site.heads},
         site_.stream);
  };
  side(to.k, from.k);
  side(to.v, from.v);
}

CausalCall HeadRuns::call_of(const HeadRun& run, const CausalCall& all, const Apart& place) const {
  CausalCall call = all;
  const size_t group = site_.query_heads / site_.heads, width = run.site.query_heads * site_.dim;
  const auto* queries = static_cast<const std::byte*>(all.q) + run.first * group * site_.dim * 2;
  copy(place.queries, width * 2,
       {queries, site_.query_heads * site_.dim * 2, width * 2, static_cast<size_t>(all.tokens)},
       site_.stream);
  call.query_heads = static_cast<int>(run.site.query_heads);
  call.kv_heads = static_cast<int>(run.site.heads);
  call.q = place.queries;
  call.result = place.result;
  return call;
}

void HeadRuns::attend_held(CausalCall& call, ChunkSpace& space) {
  const auto tokens = static_cast<size_t>(call.tokens);
  const Apart place = apart(tokens, space);
  const size_t group = site_.query_heads / site_.heads, all = site_.query_heads * site_.dim * 4;
  for (HeadRun& run : runs_) {
    const size_t first = run.first * group * site_.dim * 4,
                 width = run.site.query_heads * site_.dim * 4;
    CausalCall mine = call_of(run, call, place);
    run.rows->attend_held(mine, space);
    if (mine.first)
      check(cudaMemset2DAsync(place.result + first, all, 0, width, tokens, site_.stream),
            "no rows");
    else
      copy(place.result + first, all, {mine.out, width, width, tokens}, site_.stream);
  }
  call.out = reinterpret_cast<float*>(place.result);
  call.first = false;
}

void HeadRuns::append_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>&) {
  const RowTarget rows = apart(tokens, space).rows;
  for (HeadRun& run : runs_) {
    copy_rows(run.rows->begin_chunk(tokens, space), rows, run, tokens);
    std::vector<BodyMove> moves;
    run.rows->append_chunk(tokens, space, moves);
    take(moves);
  }
}

void HeadRuns::attend_chunk(CausalCall call, ChunkSpace& space) {
  const auto tokens = static_cast<size_t>(call.tokens);
  const Apart place = apart(tokens, space);
  const size_t group = site_.query_heads / site_.heads, all = site_.query_heads * site_.dim;
  const size_t number = size_of(call.result_dtype);
  auto* result = static_cast<std::byte*>(call.result);
  for (HeadRun& run : runs_) {
    const size_t first = run.first * group * site_.dim, width = run.site.query_heads * site_.dim;
    copy_rows(run.rows->begin_chunk(tokens, space), place.rows, run, tokens);
    run.rows->attend_chunk(call_of(run, call, place), space);
    copy(result + first * number, all * number,
         {place.result, width * number, width * number, tokens}, site_.stream);
    std::vector<BodyMove> moves;
    run.rows->end_chunk(tokens, space, moves);
    take(moves);
  }
}

void HeadRuns::end_prefill(ChunkSpace& space) {
  for (HeadRun& run : runs_) run.rows->end_prefill(space);
}

void HeadRuns::protect(const ProtectedRows& rows) {
  for (HeadRun& run : runs_) run.rows->protect(rows);
}

void HeadRuns::add_rows(HeadRows& rows, size_t head) const {
  for (const HeadRun& run : runs_) {
    if (head < run.first || head >= run.first + run.site.heads) continue;
    run.rows->add_rows(rows, head - run.first);
  }
}

void HeadRuns::add_codes(std::vector<HeadCodes>& codes, size_t head) const {
  for (const HeadRun& run : runs_) {
    if (head < run.first || head >= run.first + run.site.heads) continue;
    run.rows->add_codes(codes, head - run.first);
  }
}

std::span<const DeviceSpan> HeadRuns::spans_of(const DeviceSpan* spans, size_t head) const {
  for (const HeadRun& run : runs_) {
    if (head < run.first + run.site.heads) return run.rows->spans_of(spans, head - run.first);
    spans += run.site.heads * run.rows->spans();
  }
  return {};
}

void HeadRuns::add_to(Ledger& ledger) const {
  for (const HeadRun& run : runs_) run.rows->add_to(ledger);
}

}  // namespace pith::cuda
