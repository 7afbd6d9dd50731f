#include "cache/cuda/layer_rows.h"

#include <algorithm>
#include <utility>

#include "cache/cuda/head_attention.h"
#include "cache/cuda/head_passes.h"
#include "cache/cuda/head_room.h"
#include "cache/cuda/range_chunk.h"

namespace pith::cuda {

LayerRows::LayerRows(std::vector<HeadRun> runs, const LayerSite& site)
    : site_(site),
      runs_(std::move(runs)),
      forms_(runs_, site),
      token_(*site.memory, MemoryKind::kScratch, {2, 2 * site.dim}, site.stream) {
  if (alone()) return;
  token_.renew(site.heads);
  for (HeadRun& run : runs_) run.joins = !HeadAttention(*run.stores).form().empty();
}

LayerRows::LayerRows(const LayerRows&) = default;
LayerRows::~LayerRows() = default;

size_t LayerRows::tokens() const { return only().tokens(); }

DecodePlace LayerRows::place_of(size_t call, const DecodePlace& whole,
                                const RowTarget* targets) const {
  if (call < forms_.size()) return forms_.place_of(call, whole);
  DecodePlace place = whole;
  place.q = token_.at();
  place.note = targets;
  return place;
}

RowTarget LayerRows::begin_token(const TokenSlots& slots) {
  RowTarget target;
  forms_.for_slots(slots, [&](size_t i, const TokenSlots& mine) {
    const HeadRun& run = runs_[i];
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

StoreRoom LayerRows::room(const ComingTokens& coming) const {
  StoreRoom room;
  for (const HeadRun& run : runs_) room += HeadRoom(*run.stores, coming).stores();
  return room;
}

SpaceAsked LayerRows::space_asked(const ComingTokens& coming, const ChunkSpace& space,
                                  size_t places) const {
  SpaceAsked asked;
  for (const HeadRun& run : runs_) asked.join(HeadRoom(*run.stores, coming).space(space, places));
  if (!alone() && coming.at_once > 1) asked.apart = RangeChunk::bytes(site_, coming.at_once);
  return asked;
}

void LayerRows::write_spans(const TokenSlots& slots) {
  forms_.for_slots(slots, [&](size_t i, const TokenSlots& mine) {
    HeadPasses(*runs_[i].stores).write_spans(mine);
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
  for (size_t i = 0; i < forms_.size(); ++i) {
    const HeadRun& first = runs_[forms_.all()[i].ranges.front().run];
    HeadAttention(*first.stores).attend_token(forms_.step_of(i, step));
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
  mine.select_heavy(space, site_.stream);
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

RowTarget LayerRows::begin_chunk(size_t tokens, ChunkSpace& space) {
  if (alone()) return HeadPasses(only()).begin_chunk(tokens, space);
  return RangeChunk(site_, tokens, space).rows();
}

void LayerRows::attend_held(CausalCall& call, ChunkSpace& space) {
  for (const HeadRun& run : runs_) run.stores->hide();
  if (alone()) return HeadAttention(only()).attend_held(call, space);
  const RangeChunk chunk(site_, static_cast<size_t>(call.tokens), space);
  auto* result = reinterpret_cast<float*>(chunk.result());
  for (const HeadRun& run : runs_) {
    CausalCall mine = chunk.call_of(run, call);
    HeadAttention(*run.stores).attend_held(mine, space);
    mine.first ? chunk.put_zeros(result, run) : chunk.put(result, mine.out, run, sizeof(float));
  }
  call.out = result;
  call.first = false;
}

void LayerRows::end_chunk(size_t tokens, ChunkSpace& space, LateWork& late) {
  if (alone()) HeadPasses(only()).end_chunk(tokens, space, late);
}

void LayerRows::append_chunk(size_t tokens, ChunkSpace& space, LateWork& late, const Named& named) {
  if (alone()) return HeadPasses(only()).append_chunk(tokens, space, late);
  const RangeChunk chunk(site_, tokens, space);
  for (HeadRun& run : runs_) {
    HeadPasses passes(*run.stores);
    chunk.copy_rows(passes.begin_chunk(tokens, space), run);
    end_run(run, space, late, [&](LateWork& own) { passes.append_chunk(tokens, space, own); });
    named();
  }
}

void LayerRows::attend_chunk(CausalCall call, ChunkSpace& space, LateWork& late,
                             const Named& named) {
  if (alone()) return HeadAttention(only()).attend_chunk(call, space);
  const auto tokens = static_cast<size_t>(call.tokens);
  const RangeChunk chunk(site_, tokens, space);
  for (HeadRun& run : runs_) {
    HeadPasses passes(*run.stores);
    chunk.copy_rows(passes.begin_chunk(tokens, space), run);
    HeadAttention(*run.stores).attend_chunk(chunk.call_of(run, call), space);
    chunk.put(call.result, chunk.result(), run, size_of(call.result_dtype));
    end_run(run, space, late, [&](LateWork& own) { passes.end_chunk(tokens, space, own); });
    named();
  }
}

void LayerRows::protect(const ProtectedRows& rows) {
  for (HeadRun& run : runs_) run.stores->protect(rows);
  forms_ = HeadForms(runs_, site_);  // rows that are protected are a span more
}

const HeadRun& LayerRows::run_of(size_t head) const {
  return *std::ranges::find_if(
      runs_, [&](const HeadRun& run) { return head < run.first + run.stores->heads(); });
}

}  // namespace pith::cuda
