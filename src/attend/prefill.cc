// Prefill: blocks of query rows against tiles of stored rows (FlashAttention's loop on a CPU). A
// task is one KV head and up to 384 query rows (tokens x the head's query group); it decodes each
// tile of 256 rows to f32 once, keys transposed, and spends 4 * D operations on each of its scores.
// The attention mass is a second pass over the keys with the final log-sums, cut by rows, so that
// each row's sum has one owner and one order. No attention matrix is stored.

#include <vector>

#include "attend/parts.h"
#include "core/allocation.h"

namespace pith {
namespace {

constexpr size_t kBlockRows = 384;  // query rows for which a tile is decoded once
constexpr size_t kStripRows = 48;   // query rows whose scores are at hand at a time
constexpr size_t kMinTasks = 32;
// A stride that is no power of two, so that a tile's columns do not fall into the same cache sets.
constexpr size_t kTransposedStride = kTileRows + 16;

/// Rows of one KV head: a span, or the chunk's own (span = nullptr).
struct Source {
  const Span* span = nullptr;
  size_t head = 0;
  size_t first = 0, count = 0;
};

/// Query rows [first, first + count) of a KV head; row = token * group + query head in the group.
struct QueryRows {
  size_t head = 0;
  size_t first = 0, count = 0;
};

/// Query rows of a block: whole tokens; a group of more heads than a block has rows is a block.
size_t block_rows(size_t tokens, size_t group, size_t kv_heads) {
  size_t wanted = (tokens * group * kv_heads + kMinTasks - 1) / kMinTasks;
  wanted = std::clamp(wanted, kStripRows, std::max(kBlockRows, group));
  return std::max<size_t>(1, wanted / group) * group;
}

/// Numbers of a worker's memory.
size_t worker_numbers(size_t block_rows, size_t dim) {
  const size_t n = std::max(block_rows, kStripRows) * (3 * dim + 2) + (kStripRows + 2) * kTileRows +
                   dim * (kTransposedStride + kTileRows);
  return (n + 15) / 16 * 16;
}

class Prefill {
 public:
  Prefill(const Context& context, const AttendCall& call, const Geometry& geometry)
      : context_(context), call_(call), geo_(geometry), rows_(geometry.tokens * geometry.group) {}

  void run();

 private:
  /// A worker's memory.
  struct Scratch {
    float* q;           // [kBlockRows, D], times scale
    float* turned;      // [kBlockRows, D], for spans with query_shift
    float* acc;         // [kBlockRows, D]
    float* max;         // [kBlockRows]
    float* sum;         // [kBlockRows]
    float* scores;      // [kStripRows, kTileRows]
    float* bias;        // [kTileRows]
    float* mass;        // [kTileRows]
    float* transposed;  // [D, kTransposedStride]
    float* values;      // [kTileRows, D]
    RopeCursor* cursor;
  };
  /// A decoded tile of rows [first, first + n) of a source.
  struct Tile {
    const Source& source;
    size_t first, n;
    const float* bias;  // null: none
  };

  void allocate();
  Scratch scratch(int worker);
  std::vector<Source> sources(size_t head, size_t first_token, size_t last_token) const;
  void run_block(const QueryRows& block, const Scratch& s);
  void run_source(const QueryRows& block, const Source& source, const Scratch& s);
  void load_queries(float* to, const QueryRows& rows) const;
  void turn_queries(float* to, const float* from, size_t count, int64_t shift) const;
  Tile load_keys(const Source& source, size_t first, size_t n, const Scratch& s) const;
  void load_values(const Tile& tile, const Scratch& s) const;
  size_t score(float* scores, const float* q, const QueryRows& strip, const Tile& tile,
               const Scratch& s) const;
  std::pair<size_t, size_t> mask(float* row, size_t token, const Tile& tile, size_t n) const;
  void add_mass();
  void add_tile_mass(const Source& source, size_t first, size_t n, const Scratch& s);

  const Context& context_;
  const AttendCall& call_;
  const Geometry& geo_;
  const size_t rows_;  // query rows of one KV head, T * group
  size_t block_rows_ = 0;
  Array<float> memory_;
  Array<float> log_sums_;  // [T, H], if mass is wanted and the caller keeps none
  float* log_sum_ = nullptr;
  size_t worker_size_ = 0;
  std::vector<RopeCursor> cursors_;  // [workers]
};

void Prefill::allocate() {
  block_rows_ = block_rows(geo_.tokens, geo_.group, geo_.kv_heads);
  bool turn_keys = false;
  for (const auto& list : call_.spans)
    for (const Span& span : list) turn_keys |= span.keys_before_rope;
  const size_t workers = static_cast<size_t>(context_.pool.size());
  if (turn_keys) cursors_.assign(workers, RopeCursor(*call_.rope));
  worker_size_ = worker_numbers(block_rows_, geo_.dim);
  memory_ = Array<float>(context_.memory, MemoryKind::kScratch);
  memory_.resize(workers * worker_size_);
  log_sum_ = call_.log_sum;
  if (log_sum_ || call_.mass_queries == 0) return;
  log_sums_ = Array<float>(context_.memory, MemoryKind::kScratch);
  log_sums_.resize(geo_.tokens * geo_.query_heads);
  log_sum_ = log_sums_.data();
}

Prefill::Scratch Prefill::scratch(int worker) {
  float* at = memory_.data() + static_cast<size_t>(worker) * worker_size_;
  const auto take = [&](size_t n) {
    float* p = at;
    at += n;
    return p;
  };
  const size_t rows = std::max(block_rows_, kStripRows), dim = geo_.dim;
  Scratch s;
  s.q = take(rows * dim);
  s.turned = take(rows * dim);
  s.acc = take(rows * dim);
  s.scores = take(kStripRows * kTileRows);
  s.bias = take(kTileRows);
  s.mass = take(kTileRows);
  s.transposed = take(dim * kTransposedStride);
  s.values = take(kTileRows * dim);
  s.max = take(rows);
  s.sum = take(rows);
  s.cursor = cursors_.empty() ? nullptr : &cursors_[worker];
  return s;
}

void Prefill::run() {
  allocate();
  const size_t blocks = (rows_ + block_rows_ - 1) / block_rows_;
  context_.pool.parallel_for(blocks * geo_.kv_heads, [&](size_t i, int worker) {
    // Last blocks first: they see most rows, and a long task at the end would leave workers idle.
    const size_t first = (blocks - 1 - i / geo_.kv_heads) * block_rows_;
    run_block(
        {.head = i % geo_.kv_heads, .first = first, .count = std::min(block_rows_, rows_ - first)},
        scratch(worker));
  });
  if (call_.mass_queries > 0) add_mass();
}

/// The rows of a KV head that tokens [first_token, last_token] see, in the order of merging. Tiles
/// begin where they do for every query, so that a result does not depend on the queries beside it.
std::vector<Source> Prefill::sources(size_t head, size_t first_token, size_t last_token) const {
  std::vector<Source> all;
  const int64_t oldest = oldest_visible(call_, first_token);
  const auto whole_tiles = [](size_t hidden) { return hidden / kTileRows * kTileRows; };
  if (!call_.spans.empty()) {
    for (const Span& span : call_.spans[head]) {
      size_t hidden = hidden_rows(span, oldest);
      if (hidden == span.count) continue;
      hidden = whole_tiles(hidden);
      all.push_back({&span, head, span.first + hidden, span.count - hidden});
    }
  }
  if (call_.k) {
    const size_t seen = geo_.before + last_token + 1;
    const size_t hidden = whole_tiles(hidden_rows(own_position(call_), seen, oldest));
    all.push_back({nullptr, head, hidden, seen - hidden});
  }
  return all;
}

void Prefill::load_queries(float* to, const QueryRows& rows) const {
  const size_t dim = geo_.dim;
  for (size_t i = 0; i < rows.count; ++i) {
    const size_t row = rows.first + i;
    const size_t at =
        row / geo_.group * geo_.query_heads + rows.head * geo_.group + row % geo_.group;
    std::copy_n(call_.q + at * dim, dim, to + i * dim);
  }
  context_.kernels.scale(to, geo_.scale, rows.count * dim);
}

void Prefill::turn_queries(float* to, const float* from, size_t count, int64_t shift) const {
  const size_t dim = geo_.dim;
  std::vector<float> cos(dim / 2), sin(dim / 2);
  call_.rope->angles(cos.data(), sin.data(), shift);
  std::copy_n(from, count * dim, to);
  for (size_t i = 0; i < count; ++i)
    context_.kernels.rotate(to + i * dim, cos.data(), sin.data(), dim);
}

Prefill::Tile Prefill::load_keys(const Source& source, size_t first, size_t n,
                                 const Scratch& s) const {
  const Kernels& kernels = context_.kernels;
  const size_t dim = geo_.dim;
  const DenseRows tile{s.values, DType::kF32, dim};  // free until the values are decoded
  if (!source.span) {
    for (size_t t = 0; t < n; ++t)
      std::copy_n(call_.k + ((first + t) * geo_.kv_heads + source.head) * dim, dim,
                  s.values + t * dim);
    kernels.transpose_rows(s.transposed, kTransposedStride, tile, n);
    return {source, first, n, nullptr};
  }
  const Span& span = *source.span;
  if (span.keys_before_rope) {
    span.keys->decode(s.values, first, n);
    s.cursor->rotate_rows(kernels, s.values, span.positions ? span.positions + first : nullptr,
                          span.first_position + static_cast<int64_t>(first - span.first), n);
    kernels.transpose_rows(s.transposed, kTransposedStride, tile, n);
  } else {
    span.keys->decode_transposed(s.transposed, kTransposedStride, first, n);
  }
  return {source, first, n, make_bias(s.bias, span, first, n) ? s.bias : nullptr};
}

void Prefill::load_values(const Tile& tile, const Scratch& s) const {
  if (tile.source.span) {
    tile.source.span->values->decode(s.values, tile.first, tile.n);
    return;
  }
  for (size_t t = 0; t < tile.n; ++t)
    std::copy_n(call_.v + ((tile.first + t) * geo_.kv_heads + tile.source.head) * geo_.dim,
                geo_.dim, s.values + t * geo_.dim);
}

/// Hides what the query of `token` does not see among a tile's first n rows. Scores outside the
/// range returned are not to be read; rows hidden inside it are -inf.
std::pair<size_t, size_t> Prefill::mask(float* row, size_t token, const Tile& tile,
                                        size_t n) const {
  const int64_t oldest = oldest_visible(call_, token);
  if (!tile.source.span) {
    const int64_t position = own_position(call_) + static_cast<int64_t>(tile.first);
    const size_t seen = own_seen(geo_, token, tile.first, n);
    return {std::min(seen, hidden_rows(position, n, oldest)), seen};
  }
  if (call_.sliding_window > 0) hide_old(row, *tile.source.span, tile.first, n, oldest);
  return {0, n};
}

/// Scores of a strip of query rows with the tile's first rows; returns how many any of them sees.
size_t Prefill::score(float* scores, const float* q, const QueryRows& strip, const Tile& tile,
                      const Scratch& s) const {
  size_t n = tile.n;
  if (!tile.source.span) {
    n = own_seen(geo_, (strip.first + strip.count - 1) / geo_.group, tile.first, n);
    if (n == 0) return 0;
  }
  context_.kernels.gemm({.c = scores,
                         .ldc = kTileRows,
                         .a = q,
                         .lda = geo_.dim,
                         .b = s.transposed,
                         .ldb = kTransposedStride,
                         .m = strip.count,
                         .n = n,
                         .k = geo_.dim});
  transform(context_.kernels, call_.shape.variant, scores, kTileRows, strip.count, n);
  if (tile.bias)
    for (size_t i = 0; i < strip.count; ++i)
      context_.kernels.add(scores + i * kTileRows, tile.bias, n);
  return n;
}

void Prefill::run_source(const QueryRows& block, const Source& source, const Scratch& s) {
  const size_t dim = geo_.dim;
  const Role role = source.span ? source.span->role : Role::kBoth;
  const float* q = s.q;
  if (source.span && source.span->query_shift != 0) {
    turn_queries(s.turned, s.q, block.count, source.span->query_shift);
    q = s.turned;
  }
  const size_t end = source.first + source.count;
  for (size_t first = source.first; first < end; first += kTileRows) {
    const Tile tile = load_keys(source, first, std::min(kTileRows, end - first), s);
    if (role != Role::kDenominator) load_values(tile, s);
    for (size_t i = 0; i < block.count; i += kStripRows) {
      const QueryRows strip{block.head, block.first + i, std::min(kStripRows, block.count - i)};
      const size_t n = score(s.scores, q + i * dim, strip, tile, s);
      if (n == 0) continue;
      for (size_t r = 0; r < strip.count; ++r) {
        float* row = s.scores + r * kTileRows;
        const auto [from, to] = mask(row, (strip.first + r) / geo_.group, tile, n);
        std::fill_n(row, from, 0.0f);
        std::fill(row + to, row + n, 0.0f);
        fold(context_.kernels, row + from, to - from, role,
             {s.max[i + r], s.sum[i + r], s.acc + (i + r) * dim, dim});
      }
      if (role == Role::kDenominator) continue;
      context_.kernels.gemm({.c = s.acc + i * dim,
                             .ldc = dim,
                             .a = s.scores,
                             .lda = kTileRows,
                             .b = s.values,
                             .ldb = dim,
                             .m = strip.count,
                             .n = dim,
                             .k = n,
                             .accumulate = true});
    }
  }
}

void Prefill::run_block(const QueryRows& block, const Scratch& s) {
  const size_t dim = geo_.dim;
  load_queries(s.q, block);
  std::fill_n(s.acc, block.count * dim, 0.0f);
  std::fill_n(s.max, block.count, kMinusInf);
  std::fill_n(s.sum, block.count, 0.0f);
  const size_t first_token = block.first / geo_.group;
  const size_t last_token = (block.first + block.count - 1) / geo_.group;
  for (const Source& source : sources(block.head, first_token, last_token))
    run_source(block, source, s);
  for (size_t i = 0; i < block.count; ++i) {
    const size_t row = block.first + i;
    const size_t query_head = block.head * geo_.group + row % geo_.group;
    const size_t at = row / geo_.group * geo_.query_heads + query_head;
    const Running all{s.max[i], s.sum[i], s.acc + i * dim, dim};
    add_sink(context_.kernels, call_.shape.variant, query_head, all);
    write_result(context_.kernels, call_.out + at * dim, log_sum_ ? log_sum_ + at : nullptr, all);
  }
}

void Prefill::add_mass() {
  struct Task {
    Source source;
    size_t first, n;
  };
  std::vector<std::vector<Source>> heads(geo_.kv_heads);
  size_t most = 0;
  for (size_t g = 0; g < geo_.kv_heads; ++g) {
    const size_t asked = asked_tokens(call_, g);
    if (asked == 0) continue;
    heads[g] = sources(g, geo_.tokens - asked, geo_.tokens - 1);
    most = std::max(most, heads[g].size());
  }
  // Spans of one head may share rows and their mass, so they go one by one; heads share nothing.
  for (size_t nth = 0; nth < most; ++nth) {
    std::vector<Task> tasks;
    for (const auto& all : heads) {
      if (nth >= all.size()) continue;
      const Source& source = all[nth];
      if (!(source.span ? source.span->mass : call_.chunk_mass)) continue;
      for (size_t t = 0; t < source.count; t += kTileRows)
        tasks.push_back({source, source.first + t, std::min(kTileRows, source.count - t)});
    }
    context_.pool.parallel_for(tasks.size(), [&](size_t i, int worker) {
      add_tile_mass(tasks[i].source, tasks[i].first, tasks[i].n, scratch(worker));
    });
  }
}

void Prefill::add_tile_mass(const Source& source, size_t first, size_t n, const Scratch& s) {
  const Kernels& kernels = context_.kernels;
  const Tile tile = load_keys(source, first, n, s);
  const size_t asked = asked_tokens(call_, source.head) * geo_.group;
  float* mass = (source.span ? source.span->mass : own_mass(call_, source.head)) + first;
  for (size_t begin = rows_ - asked; begin < rows_; begin += kStripRows) {
    const QueryRows strip{source.head, begin, std::min(kStripRows, rows_ - begin)};
    load_queries(s.q, strip);
    const float* q = s.q;
    if (source.span && source.span->query_shift != 0) {
      turn_queries(s.turned, s.q, strip.count, source.span->query_shift);
      q = s.turned;
    }
    const size_t seen = score(s.scores, q, strip, tile, s);
    if (seen == 0) continue;
    // Summed by strips first: a row's mass may have many thousand terms.
    std::fill_n(s.mass, seen, 0.0f);
    for (size_t r = 0; r < strip.count; ++r) {
      const size_t row = strip.first + r, token = row / geo_.group;
      const float log_sum =
          log_sum_[token * geo_.query_heads + source.head * geo_.group + row % geo_.group];
      if (log_sum == kMinusInf) continue;
      float* scores = s.scores + r * kTileRows;
      const auto [from, to] = mask(scores, token, tile, seen);
      kernels.exp_sum(scores + from, log_sum, to - from);
      kernels.add(s.mass + from, scores + from, to - from);
    }
    kernels.add(mass, s.mass, seen);
  }
}

}  // namespace

size_t prefill_scratch(const AttendRoom& room, size_t workers) {
  const size_t block = block_rows(room.tokens, room.query_heads / room.kv_heads, room.kv_heads);
  const size_t sums = room.mass ? room.tokens * room.query_heads : 0;
  return grown_bytes(workers * worker_numbers(block, room.head_dim) * sizeof(float)) +
         grown_bytes(sums * sizeof(float));
}

void attend_prefill(const Context& context, const AttendCall& call, const Geometry& geometry) {
  Prefill(context, call, geometry).run();
}

}  // namespace pith
