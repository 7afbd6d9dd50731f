#include "cache/cuda/head_attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "cache/cuda/head_mass.h"
#include "kernels/cuda/turn.h"

namespace pith::cuda {

// Tables, and numbers that choosers keep of queries, are of these heads alone.
std::string HeadAttention::form() const {
  const DeviceCodec* codec = s_.layer.codec.get();
  const bool tables = codec && (codec->shared_bytes() > 0 || codec->learns_from() > 0);
  if (tables || s_.queries.own() || s_.ragged || s_.layer.cache_positions) return {};
  return fmt::format("{}{}{}", codec ? s_.layer.codec_name : "dense",
                     s_.zones().packs() ? ", packed" : "",
                     s_.sides.has_mass() ? ", with mass" : "");
}

size_t HeadAttention::notes() const { return HeadMass(s_).notes(); }

bool HeadAttention::reads_notes() const {
  return s_.sides.has_mass() || s_.queries.own() || s_.layer.cache_positions;
}

size_t HeadAttention::spans() const {
  return most_parts(s_) + (s_.codes ? 1 : 0) + (s_.body ? s_.body->spans() : 0) +
         (s_.protected_rows.any() ? 1 : 0) + (s_.ragged ? 1 : 0);
}

void HeadAttention::write_spans(const TokenSlots& slots, const NewRows& fresh) const {
  DenseParts parts = parts_of(s_, fresh, s_.rows.begin());
  DensePart& last = parts.part[parts.count - 1];
  if (s_.layer.seen > 0) {  // by a row behind those held
    const size_t unseen = s_.rows.rows() + 1 - std::min(s_.rows.rows() + 1, s_.layer.seen);
    last = {last.at + unseen, last.rows - unseen};
  }
  StepSpans::Place place{slots.first_span, slots.spans_apart, s_.heads()};
  const auto put = [&](bool even, const auto& span_of) {
    slots.spans->add(place, even, span_of);
    ++place.at;
  };
  const auto put_between = [&](size_t n) {
    put(between()->even(), [&](size_t g) {
      DeviceSpan span = between()->span(g, n);
      if (s_.codes) span.log_weight = s_.coded_log_weight();
      if (s_.weighs_codes()) span.log_weights = s_.sides.weights();
      return span;
    });
  };
  for (size_t i = 0; i < parts.count; ++i) {
    const DensePart& part = parts.part[i];
    for (size_t n = 0; i == parts.behind && between() && n < between()->spans(); ++n)
      put_between(n);
    const bool newest = &part == &last, turns = i == 0 && s_.layer.cache_positions;
    const size_t coming = newest ? fresh.sink + fresh.run : fresh.sink;
    put(true, [&](size_t g) {
      DeviceSpan span = dense_span(part.at, g, part.rows, s_.site.dim);
      span.log_weight = part.log_weight;
      span.log_weights = part.apart ? s_.sides.weights() : nullptr;
      span.ready_rows = turns ? 0 : static_cast<int32_t>(part.rows - std::min(part.rows, coming));
      return span;
    });
  }
  for (size_t n = 0; beside() && n < beside()->spans(); ++n)
    put(beside()->even(), [&](size_t g) { return beside()->span(g, n); });
  if (s_.protected_rows.any()) {
    const size_t rows = s_.protected_rows.rows() + fresh.of_protected;
    put(true, [&](size_t g) { return s_.protected_rows.span(g, rows); });
  }
  if (s_.ragged) put(false, [&](size_t g) { return s_.ragged->span(g); });
  slots.note->evicted = static_cast<int64_t>(s_.plan.state().gone());
  slots.note->queries = query_note(1);
}

// Distances are all that RoPE tells: keys that go up are a query that goes back.
void HeadAttention::turn_sink(int64_t steps, const int64_t* steps_at) const {
  if (!s_.layer.cache_positions) return;
  TurnRowsCall call;
  call.dtype = s_.layer.dtype;
  call.from = s_.sink.keys();
  call.to = s_.turned.at();
  call.frequencies = s_.site.rope->device.data();
  call.rows = static_cast<int>(s_.heads() * s_.layer.schedule.sink);
  call.dim = static_cast<int>(s_.site.dim);
  call.steps = steps;
  call.steps_at = steps_at;
  turn_rows(call, s_.site.stream);
}

bool HeadAttention::watches_queries() const {
  const DeviceCodec* codec = between() ? between()->learning() : nullptr;
  const size_t asked = codec ? codec->first_queries() : 0;
  return asked > 0 && s_.tokens() < s_.layer.schedule.sink + asked;
}

void HeadAttention::show_queries(const void* q, size_t tokens) const {
  if (!watches_queries()) return;
  const DeviceCodec& codec = *between()->learning();
  const size_t at = s_.tokens(), sink = s_.layer.schedule.sink, first = std::max(at, sink);
  const size_t end = std::min(at + tokens, sink + codec.first_queries());
  if (end <= first) return;
  const size_t skipped = 2 * (first - at) * s_.query_heads() * s_.site.dim;  // bytes
  codec.see_queries({static_cast<const std::byte*>(q) + skipped, s_.layer.dtype,
                     static_cast<int>(end - first), static_cast<int>(s_.query_heads())},
                    s_.site.stream);
}

void HeadAttention::attend_token(const TokenStep& step) const {
  if (!step.only_reads) show_queries(step.call.q, 1);
  turn_sink(0, &step.note->evicted);
  const DecodeCall call = s_.queries.begin_token(step);
  if (between()) {
    between()->attend_token(call, step.scratch);
  } else {
    decode_dense(call, step.scratch, s_.site.stream);
  }
  if (s_.sides.has_mass() && !step.only_reads) HeadMass(s_).add_token(step, call);
}

void HeadAttention::attend_chunk(CausalCall call, ChunkSpace& space) const {
  const auto tokens = static_cast<size_t>(call.tokens);
  show_queries(call.q, tokens);
  const RowTarget run =
      s_.zones().flows() ? space.staging(s_.rows.rows() + tokens) : s_.rows.begin();
  const DenseParts parts = parts_of_chunk(s_, tokens, run);
  const size_t apart = s_.protected_rows.rows() + (s_.body ? s_.body->rows() : 0) + s_.shared();
  const bool alone = parts.count == 1 && apart == 0;
  if (s_.sides.has_mass() || !alone || s_.queries.kept()) space.give_partials(call);
  s_.queries.observe_chunk(call, query_note(tokens));
  s_.queries.scale_chunk(call, query_note(tokens), space);
  ChunkAttention attention(call, s_.site.stream);
  attend_beside(attention, space);
  attend_run(attention, parts, tokens, space);
  attention.finish();
  if (s_.sides.has_mass()) HeadMass(s_).add_chunk(call, space);
}

void HeadAttention::attend_held(CausalCall& call, ChunkSpace& space) const {
  space.give_partials(call);
  s_.queries.scale_chunk(call, query_note(static_cast<size_t>(call.tokens)), space);
  ChunkAttention attention(call, s_.site.stream);
  attend_beside(attention, space);
  attend_run(attention, parts_of_chunk(s_, 0, s_.rows.begin()), 0, space);
  call.first = attention.none();
  attention.flush();
}

void HeadAttention::attend_body(ChunkAttention& attention, const BodyStore* body,
                                const CausalSpan& as, ChunkSpace& space) {
  if (!body || body->rows() == 0) return;
  body->attend_chunk(attention, as, [&] {
    attention.flush();
    return space.piece();
  });
}

void HeadAttention::attend_beside(ChunkAttention& attention, ChunkSpace& space) const {
  if (s_.ragged) s_.ragged->attend_chunk(attention);
  attend_body(attention, beside(), {}, space);
  s_.protected_rows.attend_chunk(attention);
}

void HeadAttention::attend_run(ChunkAttention& attention, const DenseParts& parts, size_t own,
                               ChunkSpace& space) const {
  const auto seen = static_cast<int64_t>(s_.layer.seen);
  if (s_.in_sink() > 0) turn_sink(static_cast<int64_t>(s_.plan.state().gone()), nullptr);
  CausalSpan as;
  if (seen > 0) as.from = static_cast<int64_t>(s_.open() + 1) - seen;
  if (s_.codes) as.log_weight = s_.coded_log_weight();
  if (s_.weighs_codes()) as.log_weights = s_.sides.weights();
  attend_body(attention, between(), as, space);  // first: it may need what was added attended to
  for (const DensePart& part : parts.all()) {
    const bool newest = &part == &parts.all().back();
    if (part.rows == 0) continue;
    CausalSpan span = causal_span(part.at, part.rows, s_.site.dim);
    const auto before = static_cast<int64_t>(part.rows - own);
    if (newest && own > 0) span.before = before;
    if (newest && seen > 0) span.from = before + 1 - seen;
    span.log_weight = part.log_weight;
    if (part.apart) span.log_weights = s_.sides.weights();
    attention.add(span);
  }
}

}  // namespace pith::cuda
