// Decode: a few queries a KV head against all stored rows (split-K, as in Flash-Decoding). Every
// row's codes are read once for the whole query group; 2 * D * size_of(code) bytes per row.
// Each span is cut into at most 32 parts by its length alone; a part gives a partial softmax, and
// the partials of a KV head are merged in the order of the rows.

#include <atomic>
#include <deque>
#include <vector>

#include "attend/parts.h"
#include "core/allocation.h"

namespace pith {
namespace {

// Rows scored before keys and values alternate. Each turn restarts the memory streams, so tiles are
// long; scores of 16 queries still fit L2.
constexpr size_t kDecodeTile = 1024;
constexpr size_t kPartRows = kDecodeTile;
// Keys that are rotated when read are rebuilt as f32 rows: few enough that they stay in L1.
constexpr size_t kTurnRows = 64;
constexpr size_t kMaxParts = 32;

/// One span of one KV head, or the chunk's own rows (span = nullptr).
struct Segment {
  const Span* span = nullptr;
  size_t head = 0;              // KV head
  size_t first = 0, count = 0;  // rows that some query sees
  size_t part_rows = 0, parts = 0;
  size_t width = 0;     // W, of the accumulators
  size_t partials = 0;  // where its partials lie: [parts] of max [M], sum [M], acc [M, W]
  size_t prepared = 0, prepared_size = 0;
  size_t queries = 0;  // where its queries lie, [M, D], if in_place is null
  const float* in_place = nullptr;
  size_t scores = 0;  // where its scores are kept for the mass, [M, count]
};

size_t whole_lines(size_t numbers) { return (numbers + 15) / 16 * 16; }

/// Numbers of a worker's memory for `queries` of a head: scores and bias of a tile, then a tile of
/// keys to rotate, of the chunk's `own` rows, or two results.
size_t worker_numbers(size_t queries, size_t dim, size_t own, bool turn_keys) {
  const size_t tile = std::max(turn_keys ? kTurnRows : 0, std::min(kDecodeTile, own)) * dim;
  const size_t results = 2 * queries * (dim + 1);
  return (queries + 1) * kDecodeTile + whole_lines(std::max(tile, results));
}

class Decode {
 public:
  Decode(const Context& context, const AttendCall& call, const Geometry& geometry)
      : context_(context), call_(call), geo_(geometry), rows_(geometry.tokens * geometry.group) {}

  /// Then all parts run, in any order and on any threads; then all heads end likewise.
  void begin() {
    plan();
    allocate();
    prepare();
  }
  size_t parts() const { return tasks_.size(); }
  void run_part(size_t i, int worker) {
    run_part(segments_[tasks_[i].first], tasks_[i].second, worker);
  }
  size_t heads() const { return geo_.kv_heads; }
  void end_head(size_t g, int worker) {
    merge_head(g, worker);
    if (call_.mass_queries > 0) add_mass(g);
  }

 private:
  size_t partial_size(const Segment& s) const { return rows_ * (s.width + 2); }
  Running partial(const Segment& s, size_t part, size_t row) {
    float* p = memory_.data() + s.partials + part * partial_size(s);
    return {p[row], p[rows_ + row], p + 2 * rows_ + row * s.width, s.width};
  }
  float* worker_memory(int worker) {
    return memory_.data() + worker_first_ + static_cast<size_t>(worker) * worker_size_;
  }

  void plan();
  void add_segment(Segment segment);
  void allocate();
  void prepare();
  void prepare_segment(const Segment& s);
  void run_part(const Segment& s, size_t part, int worker);
  void score_span(float* out, size_t ld, const Segment& s, size_t first, size_t n, int worker);
  void score_turned(float* out, size_t ld, const float* q, const Span& span, size_t first, size_t n,
                    int worker);
  void score_chunk(float* out, size_t ld, const Segment& s, size_t first, size_t n, int worker);
  void add_values(float* acc, const float* p, const Segment& s, size_t first, size_t n, int worker);
  void merge_head(size_t head, int worker);
  void add_mass(size_t head);

  const Context& context_;
  const AttendCall& call_;
  const Geometry& geo_;
  const size_t rows_;                             // M: queries of one KV head, [T, group]
  std::vector<Segment> segments_;                 // by KV head, then as given
  std::vector<std::pair<size_t, size_t>> tasks_;  // (segment, part)
  std::vector<RopeCursor> cursors_;               // [workers]
  Array<float> memory_;
  size_t used_ = 0;      // numbers of memory_ that are given out
  size_t log_sums_ = 0;  // [G, M]
  size_t worker_first_ = 0, worker_size_ = 0;
  bool turn_keys_ = false, prepare_any_ = false;
};

void Decode::add_segment(Segment s) {
  if (s.count == 0) return;
  const auto take = [&](size_t n) {
    const size_t at = used_;
    used_ += whole_lines(n);
    return at;
  };
  const size_t longest = std::max(kPartRows, (s.count + kMaxParts - 1) / kMaxParts);
  s.part_rows = (longest + kTileRows - 1) / kTileRows * kTileRows;
  s.parts = (s.count + s.part_rows - 1) / s.part_rows;
  s.partials = take(s.parts * partial_size(s));
  const bool turned = s.span && s.span->query_shift != 0;
  if (geo_.tokens == 1 && !turned)
    s.in_place = call_.q + s.head * rows_ * geo_.dim;
  else
    s.queries = take(rows_ * geo_.dim);
  if (s.span) s.prepared_size = s.span->keys->prepared_size(rows_);
  s.prepared = take(s.prepared_size);
  if (call_.mass_queries > 0 && (s.span ? s.span->mass : call_.chunk_mass))
    s.scores = take(rows_ * s.count);
  prepare_any_ |= !s.in_place || s.prepared_size > 0;
  turn_keys_ |= s.span && s.span->keys_before_rope;
  for (size_t part = 0; part < s.parts; ++part) tasks_.emplace_back(segments_.size(), part);
  segments_.push_back(s);
}

void Decode::plan() {
  const int64_t oldest = oldest_visible(call_, 0);
  for (size_t g = 0; g < geo_.kv_heads; ++g) {
    if (!call_.spans.empty()) {
      for (const Span& span : call_.spans[g]) {
        const size_t hidden = hidden_rows(span, oldest);
        if (span.count == hidden) continue;
        const bool summed = span.role != Role::kDenominator;
        add_segment({.span = &span,
                     .head = g,
                     .first = span.first + hidden,
                     .count = span.count - hidden,
                     .width = summed ? span.values->accumulator_width() : 0});
      }
    }
    if (call_.k) add_segment({.head = g, .count = geo_.own(), .width = geo_.dim});
  }
}

void Decode::allocate() {
  log_sums_ = used_;
  worker_first_ = log_sums_ + whole_lines(geo_.kv_heads * rows_);
  worker_size_ = worker_numbers(rows_, geo_.dim, geo_.own(), turn_keys_);
  memory_ = Array<float>(context_.memory, MemoryKind::kScratch);
  memory_.resize(worker_first_ + worker_size_ * static_cast<size_t>(context_.pool.size()));
  if (turn_keys_) cursors_.assign(context_.pool.size(), RopeCursor(*call_.rope));
}

void Decode::prepare() {
  if (!prepare_any_) return;
  context_.pool.parallel_for(segments_.size(),
                             [&](size_t i, int) { prepare_segment(segments_[i]); });
}

void Decode::prepare_segment(const Segment& s) {
  const float* q = s.in_place;
  if (!q) {
    float* to = memory_.data() + s.queries;
    const size_t span = geo_.group * geo_.dim;
    for (size_t t = 0; t < geo_.tokens; ++t)
      std::copy_n(call_.q + (t * geo_.query_heads + s.head * geo_.group) * geo_.dim, span,
                  to + t * span);
    if (s.span && s.span->query_shift != 0)
      for (size_t m = 0; m < rows_; ++m)
        call_.rope->rotate(context_.kernels, to + m * geo_.dim, s.span->query_shift);
    q = to;
  }
  if (s.prepared_size > 0) s.span->keys->prepare(memory_.data() + s.prepared, q, rows_);
}

void Decode::score_span(float* out, size_t ld, const Segment& s, size_t first, size_t n,
                        int worker) {
  const Kernels& kernels = context_.kernels;
  const Span& span = *s.span;
  const float* q = s.in_place ? s.in_place : memory_.data() + s.queries;
  float* bias = worker_memory(worker) + rows_ * kDecodeTile;
  if (span.keys_before_rope) {
    score_turned(out, ld, q, span, first, n, worker);
  } else {
    span.keys->scores(out, ld, q, memory_.data() + s.prepared, rows_, first, n, geo_.scale);
  }
  transform(kernels, call_.shape.variant, out, ld, rows_, n);
  if (make_bias(bias, span, first, n))
    for (size_t m = 0; m < rows_; ++m) kernels.add(out + m * ld, bias, n);
  if (call_.sliding_window == 0) return;
  for (size_t m = 0; m < rows_; ++m)
    hide_old(out + m * ld, span, first, n, oldest_visible(call_, m / geo_.group));
}

void Decode::score_turned(float* out, size_t ld, const float* q, const Span& span, size_t first,
                          size_t n, int worker) {
  float* tile = worker_memory(worker) + (rows_ + 1) * kDecodeTile;
  for (size_t t = 0; t < n; t += kTurnRows) {
    const size_t row = first + t, count = std::min(kTurnRows, n - t);
    span.keys->decode(tile, row, count);
    cursors_[worker].rotate_rows(
        context_.kernels, tile, span.positions ? span.positions + row : nullptr,
        span.first_position + static_cast<int64_t>(row - span.first), count);
    context_.kernels.dot_rows(out + t, ld, q, rows_, {tile, DType::kF32, geo_.dim}, count,
                              geo_.scale);
  }
}

void Decode::score_chunk(float* out, size_t ld, const Segment& s, size_t first, size_t n,
                         int worker) {
  const size_t dim = geo_.dim;
  const float* q = s.in_place ? s.in_place : memory_.data() + s.queries;
  float* tile = worker_memory(worker) + (rows_ + 1) * kDecodeTile;
  for (size_t t = 0; t < n; ++t)
    std::copy_n(call_.k + ((first + t) * geo_.kv_heads + s.head) * dim, dim, tile + t * dim);
  context_.kernels.dot_rows(out, ld, q, rows_, {tile, DType::kF32, dim}, n, geo_.scale);
  transform(context_.kernels, call_.shape.variant, out, ld, rows_, n);
  const int64_t position = own_position(call_) + static_cast<int64_t>(first);
  for (size_t m = 0; m < rows_; ++m) {
    const size_t token = m / geo_.group, seen = own_seen(geo_, token, first, n);
    std::fill_n(out + m * ld, hidden_rows(position, n, oldest_visible(call_, token)), kMinusInf);
    std::fill(out + m * ld + seen, out + m * ld + n, kMinusInf);
  }
}

void Decode::add_values(float* acc, const float* p, const Segment& s, size_t first, size_t n,
                        int worker) {
  if (s.width == 0) return;
  if (s.span) {
    s.span->values->accumulate(acc, p, kDecodeTile, rows_, first, n);
    return;
  }
  float* tile = worker_memory(worker) + (rows_ + 1) * kDecodeTile;
  for (size_t t = 0; t < n; ++t)
    std::copy_n(call_.v + ((first + t) * geo_.kv_heads + s.head) * geo_.dim, geo_.dim,
                tile + t * geo_.dim);
  context_.kernels.add_rows(acc, p, kDecodeTile, rows_, {tile, DType::kF32, geo_.dim}, n);
}

void Decode::run_part(const Segment& s, size_t part, int worker) {
  for (size_t m = 0; m < rows_; ++m) {
    Running to = partial(s, part, m);
    to.max = kMinusInf;
    to.sum = 0;
    std::fill_n(to.acc, s.width, 0.0f);
  }
  float* scores = worker_memory(worker);  // [M, kDecodeTile]
  const size_t begin = part * s.part_rows, end = std::min(s.count, begin + s.part_rows);
  for (size_t t = begin; t < end; t += kDecodeTile) {
    const size_t n = std::min(kDecodeTile, end - t), first = s.first + t;
    if (s.span)
      score_span(scores, kDecodeTile, s, first, n, worker);
    else
      score_chunk(scores, kDecodeTile, s, first, n, worker);
    const Role role = s.span ? s.span->role : Role::kBoth;
    for (size_t m = 0; m < rows_; ++m) {
      float* row = scores + m * kDecodeTile;
      if (s.scores) std::copy_n(row, n, memory_.data() + s.scores + m * s.count + t);
      fold(context_.kernels, row, n, role, partial(s, part, m));
    }
    add_values(partial(s, part, 0).acc, scores, s, first, n, worker);
  }
}

void Decode::merge_head(size_t head, int worker) {
  const Kernels& kernels = context_.kernels;
  const size_t dim = geo_.dim;
  float* total = worker_memory(worker) + (rows_ + 1) * kDecodeTile;  // [M, D]
  float* finished = total + rows_ * dim;                             // [M, D]
  float* maxima = finished + rows_ * dim;                            // [M]
  float* sums = maxima + rows_;                                      // [M]
  std::fill_n(total, rows_ * dim, 0.0f);
  std::fill_n(maxima, rows_, kMinusInf);
  std::fill_n(sums, rows_, 0.0f);
  for (const Segment& s : segments_) {
    if (s.head != head) continue;
    for (size_t part = 1; part < s.parts; ++part)
      for (size_t m = 0; m < rows_; ++m) merge(kernels, partial(s, 0, m), partial(s, part, m));
    const float* acc = partial(s, 0, 0).acc;
    std::fill_n(finished, rows_ * dim, 0.0f);
    if (s.span && s.width > 0)
      s.span->values->finish(finished, acc, rows_);
    else if (s.width > 0)
      std::copy_n(acc, rows_ * dim, finished);
    for (size_t m = 0; m < rows_; ++m) {
      const Running from = partial(s, 0, m);
      merge(kernels, {maxima[m], sums[m], total + m * dim, dim},
            {from.max, from.sum, finished + m * dim, dim});
    }
  }
  for (size_t m = 0; m < rows_; ++m) {
    const size_t query_head = head * geo_.group + m % geo_.group;
    const size_t at = m / geo_.group * geo_.query_heads + query_head;
    float& log_sum = memory_[log_sums_ + head * rows_ + m];
    const Running all{maxima[m], sums[m], total + m * dim, dim};
    add_sink(kernels, call_.shape.variant, query_head, all);
    write_result(kernels, call_.out + at * dim, &log_sum, all);
    if (call_.log_sum) call_.log_sum[at] = log_sum;
  }
}

void Decode::add_mass(size_t head) {
  const size_t asked = asked_tokens(call_, head) * geo_.group;
  for (const Segment& s : segments_) {
    if (s.head != head || !s.scores) continue;
    float* mass = s.span ? s.span->mass + s.first : own_mass(call_, head);
    for (size_t m = rows_ - asked; m < rows_; ++m) {
      const float log_sum = memory_[log_sums_ + head * rows_ + m];
      if (log_sum == kMinusInf) continue;
      float* scores = memory_.data() + s.scores + m * s.count;
      context_.kernels.exp_sum(scores, log_sum, s.count);
      context_.kernels.add(mass, scores, s.count);
    }
  }
}

}  // namespace

// A part has at least kPartRows rows, but for the last of its span.
size_t decode_scratch(const AttendRoom& room, size_t workers) {
  const size_t group = room.query_heads / room.kv_heads;
  const size_t queries = decode_queries(room.tokens, group);
  const size_t own = room.before + room.tokens, spans = room.spans + 1, rows = room.rows + own;
  const size_t parts = spans + rows / kPartRows;
  const size_t width = std::max(room.width, room.head_dim);
  const size_t of_span = queries * room.head_dim + room.prepared + 4 * whole_lines(1);
  const size_t of_head =
      parts * queries * (width + 2) + spans * of_span + (room.mass ? queries * rows : 0);
  const size_t all = room.kv_heads * of_head + whole_lines(room.kv_heads * queries) +
                     workers * worker_numbers(queries, room.head_dim, own, room.turned);
  return grown_bytes(all * sizeof(float));
}

namespace {

/// The loops of begun decodes, one after the other: loop(count, f) runs f(decode, index, worker)
/// for each of count(decode) indices.
template <class Loop>
void run_loops(const Loop& loop) {
  loop([](const Decode& d) { return d.parts(); },
       [](Decode& d, size_t i, int worker) { d.run_part(i, worker); });
  loop([](const Decode& d) { return d.heads(); },
       [](Decode& d, size_t g, int worker) { d.end_head(g, worker); });
}

/// One of several calls side by side.
struct Together {
  explicit Together(AttendWork& w)
      : work(&w), geometry(checked_geometry(*w.call)), decode(*w.context, *w.call, geometry) {}
  /// Runs f; a call that failed before, or fails now, is out.
  template <class F>
  void guard(const F& f) {
    if (failed) return;
    try {
      f(decode);
    } catch (...) {
      if (!failed.exchange(true)) work->failure = std::current_exception();
    }
  }

  AttendWork* work;
  Geometry geometry;
  Decode decode;
  std::atomic<bool> failed{false};
};

/// f(call, index) for each of count(call) indices of every call, as one loop.
template <class Count, class F>
void for_all(ThreadPool& pool, std::deque<Together>& calls, const Count& count, const F& f) {
  std::vector<std::pair<Together*, size_t>> tasks;
  for (Together& c : calls)
    for (size_t i = 0; !c.failed && i < count(c.decode); ++i) tasks.emplace_back(&c, i);
  pool.parallel_for(tasks.size(), [&](size_t t, int worker) {
    tasks[t].first->guard([&](Decode& d) { f(d, tasks[t].second, worker); });
  });
}

}  // namespace

void attend_decode(const Context& context, const AttendCall& call, const Geometry& geometry) {
  Decode decode(context, call, geometry);
  decode.begin();
  run_loops([&](const auto& count, const auto& f) {
    context.pool.parallel_for(count(decode), [&](size_t i, int worker) { f(decode, i, worker); });
  });
}

void attend_together(std::span<AttendWork> works) {
  std::deque<Together> calls;
  for (AttendWork& w : works) {
    try {
      calls.emplace_back(w);
    } catch (...) {
      w.failure = std::current_exception();
    }
  }
  if (calls.empty()) return;
  ThreadPool& pool = calls[0].work->context->pool;
  pool.parallel_for(calls.size(),
                    [&](size_t i, int) { calls[i].guard([](Decode& d) { d.begin(); }); });
  run_loops([&](const auto& count, const auto& f) { for_all(pool, calls, count, f); });
}

}  // namespace pith
