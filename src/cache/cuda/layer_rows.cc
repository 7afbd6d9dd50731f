#include "cache/cuda/layer_rows.h"

#include <algorithm>

#include "rows/cuda/dense_store.h"

namespace pith::cuda {
namespace {

/// The moves of one run: others of the layer are not of its shape.
void take(LateWork& late, cudaStream_t stream) {
  late.judge(stream);
  for (const BodyMove& move : late.moves) move.body->take({&move, 1});
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

LayerRows::LayerRows(std::vector<HeadRun> runs, const LayerSite& site)
    : site_(site),
      runs_(std::move(runs)),
      token_(*site.memory, MemoryKind::kScratch, {2, 2 * site.dim}, site.stream) {
  if (!alone()) token_.renew(site.heads);
}

size_t LayerRows::spans() const {
  size_t most = 0;
  for (const HeadRun& run : runs_) most = std::max(most, run.stores->spans());
  return most;
}

size_t LayerRows::notes() const {
  size_t all = 0;
  for (const HeadRun& run : runs_) all += run.stores->notes();
  return all;
}

RowTarget LayerRows::begin_token(const TokenSlots& slots) {
  if (alone()) return only().begin_token(slots);
  TokenSlots mine = slots;
  for (HeadRun& run : runs_) {
    mine.note->target = run.stores->begin_token(mine);
    mine.spans += run.stores->heads() * run.stores->spans();
    mine.note += run.stores->notes();
  }
  return {token_.at(0), token_.at(1), site_.dim, 0};
}

void LayerRows::write_spans(const TokenSlots& slots) {
  TokenSlots mine = slots;
  for (HeadRun& run : runs_) {
    run.stores->write_spans(mine);
    mine.spans += run.stores->heads() * run.stores->spans();
    mine.note += run.stores->notes();
  }
}

void LayerRows::attend_token(const TokenStep& step) const {
  if (alone()) return only().attend_token(step);
  const size_t group = site_.query_heads / site_.heads;
  const DeviceSpan* spans = step.call.spans;
  const TokenNote* note = step.note;
  for (const HeadRun& run : runs_) {
    const size_t query = run.first * group * site_.dim;
    TokenRowsCall rows{token_.at(0, run.first), token_.at(1, run.first), &note->target};
    rows.heads = static_cast<int>(run.stores->heads());
    rows.dim = static_cast<int>(site_.dim);
    if (!step.only_reads) copy_token_rows(rows, site_.stream);
    DecodeCall call = step.alone();
    call.shape.query_heads = static_cast<int>(run.stores->query_heads());
    call.shape.kv_heads = static_cast<int>(run.stores->heads());
    call.shape.spans = static_cast<int>(run.stores->spans());
    call.q = static_cast<const std::byte*>(call.q) + query * 2;
    call.spans = spans;
    call.out += query;
    call.log_sum += run.first * group;
    run.stores->attend_token({call, step.scratch, note, step.only_reads});
    spans += run.stores->heads() * run.stores->spans();
    note += run.stores->notes();
  }
}

bool LayerRows::begins_freely() const {
  return std::ranges::all_of(runs_, [](const HeadRun& run) { return run.stores->begins_freely(); });
}

void LayerRows::end_token(ChunkSpace& space, LateWork& late) {
  if (alone()) return only().end_token(space, late);
  for (HeadRun& run : runs_) {
    LateWork mine;
    run.stores->end_token(space, mine);
    take(mine, site_.stream);
    mine.run(space, site_.stream);
  }
}

LayerRows::Apart LayerRows::apart(size_t tokens, ChunkSpace& space) const {
  const size_t rows = 2 * site_.heads * tokens * site_.dim;           // bytes of one side
  const size_t queries = 2 * tokens * site_.query_heads * site_.dim;  // bytes
  std::byte* bytes = space.apart(2 * rows + 3 * queries);             // results: up to 4 bytes each
  return {
      {bytes, bytes + rows, tokens * site_.dim, 0}, bytes + 2 * rows, bytes + 2 * rows + queries};
}

RowTarget LayerRows::begin_chunk(size_t tokens, ChunkSpace& space) {
  if (alone()) return only().begin_chunk(tokens, space);
  return apart(tokens, space).rows;
}

void LayerRows::copy_rows(const RowTarget& to, const RowTarget& from, const HeadRun& run,
                          size_t tokens) const {
  const size_t at = static_cast<size_t>(to.row) * site_.dim * 2;
  const auto side = [&](void* target, const void* source) {
    copy(static_cast<std::byte*>(target) + at, to.head_stride * 2,
         {static_cast<const std::byte*>(source) + run.first * from.head_stride * 2,
          from.head_stride * 2, tokens * site_.dim * 2, run.stores->heads()},
         site_.stream);
  };
  side(to.k, from.k);
  side(to.v, from.v);
}

CausalCall LayerRows::call_of(const HeadRun& run, const CausalCall& all, const Apart& place) const {
  CausalCall call = all;
  const size_t group = site_.query_heads / site_.heads,
               width = run.stores->query_heads() * site_.dim;
  const auto* queries = static_cast<const std::byte*>(all.q) + run.first * group * site_.dim * 2;
  copy(place.queries, width * 2,
       {queries, site_.query_heads * site_.dim * 2, width * 2, static_cast<size_t>(all.tokens)},
       site_.stream);
  call.query_heads = static_cast<int>(run.stores->query_heads());
  call.kv_heads = static_cast<int>(run.stores->heads());
  call.q = place.queries;
  call.result = place.result;
  return call;
}

void LayerRows::attend_held(CausalCall& call, ChunkSpace& space) {
  if (alone()) return only().attend_held(call, space);
  const auto tokens = static_cast<size_t>(call.tokens);
  const Apart place = apart(tokens, space);
  const size_t group = site_.query_heads / site_.heads, all = site_.query_heads * site_.dim * 4;
  for (HeadRun& run : runs_) {
    const size_t first = run.first * group * site_.dim * 4,
                 width = run.stores->query_heads() * site_.dim * 4;
    CausalCall mine = call_of(run, call, place);
    run.stores->attend_held(mine, space);
    if (mine.first)
      check(cudaMemset2DAsync(place.result + first, all, 0, width, tokens, site_.stream),
            "no rows");
    else
      copy(place.result + first, all, {mine.out, width, width, tokens}, site_.stream);
  }
  call.out = reinterpret_cast<float*>(place.result);
  call.first = false;
}

void LayerRows::end_chunk(size_t tokens, ChunkSpace& space, LateWork& late) {
  if (alone()) only().end_chunk(tokens, space, late);
}

void LayerRows::append_chunk(size_t tokens, ChunkSpace& space, LateWork& late) {
  if (alone()) return only().append_chunk(tokens, space, late);
  const RowTarget rows = apart(tokens, space).rows;
  for (HeadRun& run : runs_) {
    copy_rows(run.stores->begin_chunk(tokens, space), rows, run, tokens);
    LateWork mine;
    run.stores->append_chunk(tokens, space, mine);
    take(mine, site_.stream);
  }
}

void LayerRows::attend_chunk(CausalCall call, ChunkSpace& space) {
  if (alone()) return only().attend_chunk(call, space);
  const auto tokens = static_cast<size_t>(call.tokens);
  const Apart place = apart(tokens, space);
  const size_t group = site_.query_heads / site_.heads, all = site_.query_heads * site_.dim;
  const size_t number = size_of(call.result_dtype);
  auto* result = static_cast<std::byte*>(call.result);
  for (HeadRun& run : runs_) {
    const size_t first = run.first * group * site_.dim,
                 width = run.stores->query_heads() * site_.dim;
    copy_rows(run.stores->begin_chunk(tokens, space), place.rows, run, tokens);
    run.stores->attend_chunk(call_of(run, call, place), space);
    copy(result + first * number, all * number,
         {place.result, width * number, width * number, tokens}, site_.stream);
    LateWork mine;
    run.stores->end_chunk(tokens, space, mine);
    take(mine, site_.stream);
  }
}

void LayerRows::end_prefill(ChunkSpace& space) {
  for (HeadRun& run : runs_) run.stores->end_prefill(space);
}

void LayerRows::protect(const ProtectedRows& rows) {
  for (HeadRun& run : runs_) run.stores->protect(rows);
}

const HeadRun& LayerRows::run_of(size_t head) const {
  return *std::ranges::find_if(
      runs_, [&](const HeadRun& run) { return head < run.first + run.stores->heads(); });
}

void LayerRows::add_rows(HeadRows& rows, size_t head) const {
  const HeadRun& run = run_of(head);
  run.stores->add_rows(rows, head - run.first);
}

void LayerRows::add_codes(std::vector<HeadCodes>& codes, size_t head) const {
  const HeadRun& run = run_of(head);
  run.stores->add_codes(codes, head - run.first);
}

std::span<const DeviceSpan> LayerRows::spans_of(const DeviceSpan* spans, size_t head) const {
  const HeadRun& of_head = run_of(head);
  for (const HeadRun& run : runs_) {
    const size_t each = run.stores->spans();
    if (&run == &of_head) return {spans + (head - run.first) * each, each};
    spans += run.stores->heads() * each;
  }
  return {};
}

void LayerRows::archive(Archive& a, const SeenStream& seen) {
  for (HeadRun& run : runs_) run.stores->archive(a, seen);
}

void LayerRows::add_to(Ledger& ledger) const {
  for (const HeadRun& run : runs_) run.stores->add_to(ledger);
}

}  // namespace pith::cuda
