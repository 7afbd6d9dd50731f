#include "cache/cuda/layer_rows.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "cache/cuda/head_attention.h"
#include "cache/cuda/head_passes.h"

namespace pith::cuda {
namespace {

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
  make_forms();
}

LayerRows::LayerRows(const LayerRows&) = default;
LayerRows::~LayerRows() = default;

size_t LayerRows::tokens() const { return only().tokens(); }

void LayerRows::make_forms() {
  forms_.clear();
  std::map<std::string, size_t> named;
  for (size_t i = 0; i < runs_.size(); ++i) {
    HeadRun& run = runs_[i];
    const std::string name = run.stores->form();
    run.joins = alone() || !name.empty();
    const auto found = named.find(name);
    if (found == named.end() || name.empty()) {
      named[name] = forms_.size();
      forms_.push_back({{}, run.first});
    }
    HeadForm& form = name.empty() ? forms_.back() : forms_[named[name]];
    form.runs.push_back(i);
    form.heads = run.first + run.stores->heads() - form.first;
    form.spans = std::max(form.spans, HeadAttention(*run.stores).spans());
  }
  size_t spans = 0, notes = 0;
  for (HeadForm& form : forms_) {
    form.first_span = std::exchange(spans, spans + form.heads * form.spans);
    form.first_note = notes;
    notes += notes_of(form);
  }
}

size_t LayerRows::notes_of(const HeadForm& form) const {
  return form.by_head() ? form.heads : HeadAttention(*runs_[form.runs.front()].stores).notes();
}

size_t LayerRows::spans() const {
  const HeadForm& last = forms_.back();
  return last.first_span + last.heads * last.spans;
}

size_t LayerRows::notes() const {
  const HeadForm& last = forms_.back();
  return last.first_note + notes_of(last);
}

void LayerRows::mark_spans(DeviceSpan* spans) const {
  for (const HeadForm& form : forms_) {
    for (size_t head = form.first; head < form.first + form.heads; ++head) {
      const auto has = [&](size_t run) { return &runs_[run] == &run_of(head); };
      if (std::ranges::none_of(form.runs, has))
        spans[form.first_span + (head - form.first) * form.spans].rows = DeviceSpan::kElsewhere;
    }
  }
}

DecodePlace LayerRows::place_of(size_t call, const DecodePlace& whole,
                                const RowTarget* targets) const {
  DecodePlace place = whole;
  if (call == forms_.size()) {
    place.q = token_.at();
    place.note = targets;
    return place;
  }
  const HeadForm& form = forms_[call];
  const size_t query = form.first * (site_.query_heads / site_.heads);
  place.q = static_cast<const std::byte*>(whole.q) + query * site_.dim * 2;
  place.spans += form.first_span;
  place.out += query * site_.dim;
  place.log_sum += query;
  place.note = static_cast<const TokenNote*>(whole.note) + form.first_note;
  return place;
}

template <class F>
void LayerRows::for_slots(const TokenSlots& slots, const F& f) {
  for (const HeadForm& form : forms_) {
    for (const size_t i : form.runs) {
      HeadRun& run = runs_[i];
      TokenSlots mine = slots;
      mine.spans_apart = form.spans;
      mine.spans += form.first_span + (run.first - form.first) * form.spans;
      mine.note += form.first_note;
      if (form.by_head()) mine.note += run.first - form.first;
      f(run, mine);
      if (!form.by_head()) continue;
      mine.note->mass.first_head = static_cast<int32_t>(run.first - form.first);
      std::fill_n(mine.note + 1, run.stores->heads() - 1, *mine.note);
    }
  }
}

RowTarget LayerRows::begin_token(const TokenSlots& slots) {
  RowTarget target;
  for_slots(slots, [&](HeadRun& run, const TokenSlots& mine) {
    target = HeadPasses(*run.stores).begin_token(mine);
    if (alone()) return;
    const size_t apart = 2 * target.head_stride;  // bytes
    for (size_t g = 0; g < run.stores->heads(); ++g) {
      slots.targets[run.first + g] = {static_cast<std::byte*>(target.k) + g * apart,
                                      static_cast<std::byte*>(target.v) + g * apart, 0, target.row};
    }
  });
  return alone() ? target : RowTarget{token_.at(0), token_.at(1), site_.dim, 0};
}

void LayerRows::write_spans(const TokenSlots& slots) {
  for_slots(slots, [](HeadRun& run, const TokenSlots& mine) {
    HeadPasses(*run.stores).write_spans(mine);
  });
}

void LayerRows::copy_token(const TokenStep& step) const {
  TokenRowsCall rows{place_of(forms_.size(), step.call, step.targets)};
  rows.heads = static_cast<int>(site_.heads);
  rows.dim = static_cast<int>(site_.dim);
  rows.batch = step.call.company;
  rows.batch.place += forms_.size() * rows.batch.places_apart;
  copy_token_rows(rows, site_.stream);
}

void LayerRows::attend_token(const TokenStep& step) const {
  if (!alone() && !step.only_reads) copy_token(step);
  const size_t group = site_.query_heads / site_.heads;
  for (size_t i = 0; i < forms_.size(); ++i) {
    const HeadForm& form = forms_[i];
    TokenStep mine = step;
    DecodeCall& call = mine.call;
    static_cast<DecodePlace&>(call) = place_of(i, step.call, step.targets);
    call.shape.query_heads = static_cast<int>(form.heads * group);
    call.shape.kv_heads = static_cast<int>(form.heads);
    call.shape.spans = static_cast<int>(form.spans);
    call.company.place += i * call.company.places_apart;
    mine.note = step.note + form.first_note;
    mine.note_by_head = form.by_head();
    HeadAttention(*runs_[form.runs.front()].stores).attend_token(mine);
  }
}

size_t LayerRows::layers_together() const {
  size_t most = 1;
  for (const HeadRun& run : runs_) {
    if (run.joins) most = std::max(most, run.stores->layers_together());
  }
  return most;
}

// Codecs with tables of these heads alone: another range's work of the same name is not theirs.
template <class End>
void LayerRows::end_run(HeadRun& run, ChunkSpace& space, LateWork& late, const End& end) {
  if (run.joins) return end(late);
  LateWork mine;
  end(mine);
  mine.select_heavy(site_.stream);
  for (const BodyMove& move : mine.moves) move.body->take({&move, 1});
  mine.moves.clear();
  mine.run(space, site_.stream);
}

void LayerRows::end_token(ChunkSpace& space, LateWork& late, const Named& named) {
  for (HeadRun& run : runs_) {
    end_run(run, space, late,
            [&](LateWork& own) { HeadPasses(*run.stores).end_token(space, own); });
    named();
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
  if (alone()) return HeadPasses(only()).begin_chunk(tokens, space);
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
  if (alone()) {
    only().hide();
    return HeadAttention(only()).attend_held(call, space);
  }
  const auto tokens = static_cast<size_t>(call.tokens);
  const Apart place = apart(tokens, space);
  const size_t group = site_.query_heads / site_.heads, all = site_.query_heads * site_.dim * 4;
  for (HeadRun& run : runs_) {
    const size_t first = run.first * group * site_.dim * 4,
                 width = run.stores->query_heads() * site_.dim * 4;
    CausalCall mine = call_of(run, call, place);
    run.stores->hide();
    HeadAttention(*run.stores).attend_held(mine, space);
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
  if (alone()) HeadPasses(only()).end_chunk(tokens, space, late);
}

void LayerRows::append_chunk(size_t tokens, ChunkSpace& space, LateWork& late, const Named& named) {
  if (alone()) return HeadPasses(only()).append_chunk(tokens, space, late);
  const RowTarget rows = apart(tokens, space).rows;
  for (HeadRun& run : runs_) {
    HeadPasses passes(*run.stores);
    copy_rows(passes.begin_chunk(tokens, space), rows, run, tokens);
    end_run(run, space, late, [&](LateWork& own) { passes.append_chunk(tokens, space, own); });
    named();
  }
}

void LayerRows::attend_chunk(CausalCall call, ChunkSpace& space, LateWork& late,
                             const Named& named) {
  if (alone()) return HeadAttention(only()).attend_chunk(call, space);
  const auto tokens = static_cast<size_t>(call.tokens);
  const Apart place = apart(tokens, space);
  const size_t group = site_.query_heads / site_.heads, all = site_.query_heads * site_.dim;
  const size_t number = size_of(call.result_dtype);
  auto* result = static_cast<std::byte*>(call.result);
  for (HeadRun& run : runs_) {
    const size_t first = run.first * group * site_.dim,
                 width = run.stores->query_heads() * site_.dim;
    HeadPasses passes(*run.stores);
    copy_rows(passes.begin_chunk(tokens, space), place.rows, run, tokens);
    HeadAttention(*run.stores).attend_chunk(call_of(run, call, place), space);
    copy(result + first * number, all * number,
         {place.result, width * number, width * number, tokens}, site_.stream);
    end_run(run, space, late, [&](LateWork& own) { passes.end_chunk(tokens, space, own); });
    named();
  }
}

void LayerRows::protect(const ProtectedRows& rows) {
  for (HeadRun& run : runs_) run.stores->protect(rows);
  make_forms();  // rows that are protected are a span more
}

const HeadRun& LayerRows::run_of(size_t head) const {
  return *std::ranges::find_if(
      runs_, [&](const HeadRun& run) { return head < run.first + run.stores->heads(); });
}

std::span<const DeviceSpan> LayerRows::spans_of(const DeviceSpan* spans, size_t head) const {
  const auto run = static_cast<size_t>(&run_of(head) - runs_.data());
  const HeadForm& form = *std::ranges::find_if(
      forms_, [&](const HeadForm& f) { return std::ranges::find(f.runs, run) != f.runs.end(); });
  return {spans + form.first_span + (head - form.first) * form.spans, form.spans};
}

}  // namespace pith::cuda
