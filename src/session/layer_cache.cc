#include "pith/layer_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "cache/kv_cache.h"
#include "core/archive.h"
#include "core/digest.h"
#include "pith/error.h"
#include "session/check_threads.h"
#include "session/session_key.h"

namespace pith {

struct Compute::State {
  explicit State(const ComputeOptions& o)
      : pool(o.threads), memory(o.memory_limit), kernels(kernels_for(o.isa)) {}
  ThreadPool pool;
  MemoryCounter memory;
  const Kernels& kernels;
};

namespace {

const ComputeOptions& checked(const ComputeOptions& o) {
  check_threads(o.threads);
  return o;
}

const LayerCacheOptions& checked(const LayerCacheOptions& o) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "a layer's cache: " + why);
  };
  if (o.kv_heads <= 0 || o.query_heads <= 0 || o.query_heads % o.kv_heads != 0)
    refuse(fmt::format("{} query heads and {} KV heads; the former are a multiple of the latter",
                       o.query_heads, o.kv_heads));
  if (o.head_dim <= 0 || o.head_dim % 16 != 0)
    refuse(fmt::format("head_dim {}; it is a multiple of 16", o.head_dim));
  if (o.layers <= 0 || o.layer < 0 || o.layer >= o.layers)
    refuse(fmt::format("layer {} of {}", o.layer, o.layers));
  if (o.context == 0) refuse("a context of 0 tokens; say how many there will be at most");
  if (o.sliding_window < 0) refuse(fmt::format("a sliding window of {}", o.sliding_window));
  if (!(o.scale >= 0) || !std::isfinite(o.scale))
    refuse(fmt::format("a scale of {}; it is positive, or 0 for 1/sqrt(D)", o.scale));
  if (o.error_probe.rows > 0 && o.sliding_window > 0)
    throw Error(
        ErrorCode::kUnsupported,
        "a layer's cache: an error probe and a sliding window; the probe watches layers that "
        "see everything");
  return o;
}

CacheShape shape_of(const LayerCacheOptions& o) {
  CacheShape shape{o.layers, o.query_heads, o.kv_heads, o.head_dim, {}, o.context};
  if (o.sliding_window > 0)
    shape.sliding_window.assign(static_cast<size_t>(o.layers), o.sliding_window);
  return shape;
}

}  // namespace

struct LayerCache::State {
  State(std::shared_ptr<Compute> c, const LayerCacheOptions& o)
      : compute(std::move(c)),
        query_heads(static_cast<size_t>(o.query_heads)),
        kv_heads(static_cast<size_t>(o.kv_heads)),
        dim(static_cast<size_t>(o.head_dim)),
        options(o),
        query_factor(o.scale == 0 ? 1.0f
                                  : static_cast<float>(
                                        o.scale * std::sqrt(static_cast<double>(o.head_dim)))) {
    if (o.rope_theta != 0) rope = std::make_shared<const Rope>(dim, o.rope_theta);
    Compute::State& all = *compute->state_;
    cache = std::make_unique<KvCache>(Context{all.pool, all.memory, all.kernels},
                                      ResolvedPolicy(o.policy, shape_of(o), o.seed, Device::kCpu),
                                      rope.get(), o.layer);
    cache->protect(o.protect);
    if (o.error_probe.rows > 0) cache->start_error_probe(o.error_probe, o.seed);
  }
  State(const State& o)
      : compute(o.compute),
        query_heads(o.query_heads),
        kv_heads(o.kv_heads),
        dim(o.dim),
        options(o.options),
        query_factor(o.query_factor),
        rope(o.rope),
        cache(o.cache->clone()) {}

  std::shared_ptr<Compute> compute;
  size_t query_heads, kv_heads, dim;  // H, G, D
  LayerCacheOptions options;
  /// What queries are multiplied by, so that scores over sqrt(D), which is all that selectors, the
  /// probe and attention know, have the caller's scale.
  float query_factor;
  std::shared_ptr<const Rope> rope;
  std::unique_ptr<KvCache> cache;

  MemoryCounter& memory() const { return compute->state_->memory; }
  const Kernels& kernels() const { return compute->state_->kernels; }
  /// Throws unless `tokens` more can come.
  void check_room(size_t tokens) const;
  void check(const void* data, size_t tokens, const char* what) const;
  /// Whether rows lie as the engine takes them: f32 [T, heads, D] without gaps.
  template <class View>
  bool plain(const View& x, size_t heads) const {
    return x.dtype == DType::kF32 && x.head_stride == static_cast<ptrdiff_t>(dim) &&
           x.token_stride == static_cast<ptrdiff_t>(heads * dim);
  }
  /// The rows as f32 [T, heads, D]: where they are, or in `room`.
  const float* read(const RowsView& x, size_t heads, size_t tokens, Array<float>& room) const;
  /// The same for queries, at the caller's scale.
  const float* read_queries(const RowsView& q, size_t tokens, Array<float>& room) const;
  /// What must be the same for save()'s bytes to go on.
  SessionKey key() const;
  /// What save()'s bytes have behind the key.
  void archive(Archive& a) const {
    cache->archive(a);
    cache->archive_layer(options.layer, a);
  }
  void write(const RowsOut& out, const float* x, size_t tokens) const;
  /// Calls f(to) with a place for answers f32 [T, H, D]: where they go, or room that is written out
  /// from there.
  template <class F>
  void answer(const RowsOut& out, size_t tokens, const F& f) const {
    if (plain(out, query_heads)) return f(static_cast<float*>(out.data));
    Array<float> answers = room();
    answers.resize(tokens * query_heads * dim);
    f(answers.data());
    write(out, answers.data(), tokens);
  }
  Array<float> room() const { return {memory(), MemoryKind::kScratch}; }
};

void LayerCache::State::check_room(size_t tokens) const {
  const size_t seen = cache->tokens(options.layer);
  if (tokens > options.context - seen)
    throw Error(ErrorCode::kContextFull,
                fmt::format("{} tokens after the {} already seen pass the context of {} that this "
                            "layer's cache was made for",
                            tokens, seen, options.context));
}

void LayerCache::State::check(const void* data, size_t tokens, const char* what) const {
  if (tokens == 0) throw Error(ErrorCode::kInvalidArgument, "a pass of no tokens");
  if (data == nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is null; give a tensor of {} tokens", what, tokens));
}

const float* LayerCache::State::read(const RowsView& x, size_t heads, size_t tokens,
                                     Array<float>& room) const {
  if (plain(x, heads)) return static_cast<const float*>(x.data);
  room.resize(tokens * heads * dim);
  const auto* bytes = static_cast<const std::byte*>(x.data);
  const auto size = static_cast<ptrdiff_t>(size_of(x.dtype));
  for (size_t t = 0; t < tokens; ++t)
    for (size_t h = 0; h < heads; ++h) {
      const ptrdiff_t at =
          static_cast<ptrdiff_t>(t) * x.token_stride + static_cast<ptrdiff_t>(h) * x.head_stride;
      kernels().to_f32(room.data() + (t * heads + h) * dim, bytes + at * size, x.dtype, dim);
    }
  return room.data();
}

const float* LayerCache::State::read_queries(const RowsView& q, size_t tokens,
                                             Array<float>& room) const {
  const float* rows = read(q, query_heads, tokens, room);
  if (query_factor == 1) return rows;
  if (room.empty()) {
    room.resize(tokens * query_heads * dim);
    std::copy_n(rows, room.size(), room.data());
  }
  kernels().scale(room.data(), query_factor, room.size());
  return room.data();
}

SessionKey LayerCache::State::key() const {
  const LayerCacheOptions& o = options;
  return {{"policy", ResolvedPolicy(o.policy, shape_of(o), o.seed, Device::kCpu).describe()},
          {"shape", fmt::format("{} query heads, {} KV heads, head_dim {}", o.query_heads,
                                o.kv_heads, o.head_dim)},
          {"layer", fmt::format("{} of {}", o.layer, o.layers)},
          {"context", std::to_string(o.context)},
          {"sliding window", std::to_string(o.sliding_window)},
          {"seed", std::to_string(o.seed)},
          {"rope_theta", fmt::format("{}", o.rope_theta)},
          {"scale", fmt::format("{}", o.scale)},
          {"error probe",
           fmt::format("{} rows every {} steps", o.error_probe.rows, o.error_probe.every)},
          {"isa", kernels().isa}};
}

void LayerCache::State::write(const RowsOut& out, const float* x, size_t tokens) const {
  auto* bytes = static_cast<std::byte*>(out.data);
  const auto size = static_cast<ptrdiff_t>(size_of(out.dtype));
  for (size_t t = 0; t < tokens; ++t)
    for (size_t h = 0; h < query_heads; ++h) {
      const ptrdiff_t at = static_cast<ptrdiff_t>(t) * out.token_stride +
                           static_cast<ptrdiff_t>(h) * out.head_stride;
      kernels().from_f32(bytes + at * size, x + (t * query_heads + h) * dim, out.dtype, dim);
    }
}

Compute::Compute(const ComputeOptions& options)
    : state_(std::make_unique<State>(checked(options))) {}
Compute::~Compute() = default;
size_t Compute::bytes_in_use() const { return state_->memory.total(); }

LayerCache::LayerCache(std::shared_ptr<Compute> compute, const LayerCacheOptions& options)
    : state_(std::make_unique<State>(std::move(compute), checked(options))) {}
LayerCache::LayerCache(std::unique_ptr<State> state) : state_(std::move(state)) {}
LayerCache::~LayerCache() = default;
LayerCache::LayerCache(LayerCache&&) noexcept = default;
LayerCache& LayerCache::operator=(LayerCache&&) noexcept = default;

void LayerCache::step(const RowsOut& out, const RowsView& q, const RowsView& k, const RowsView& v,
                      size_t tokens) {
  State& s = *state_;
  s.check(out.data, tokens, "out");
  s.check(q.data, tokens, "q");
  s.check(k.data, tokens, "k");
  s.check(v.data, tokens, "v");
  s.check_room(tokens);
  Array<float> q_room = s.room(), k_room = s.room(), v_room = s.room();
  s.answer(out, tokens, [&](float* to) {
    s.cache->step(s.options.layer, to, s.read_queries(q, tokens, q_room),
                  s.read(k, s.kv_heads, tokens, k_room), s.read(v, s.kv_heads, tokens, v_room),
                  tokens);
  });
}

void LayerCache::append(const RowsView& k, const RowsView& v, size_t tokens) {
  State& s = *state_;
  s.check(k.data, tokens, "k");
  s.check(v.data, tokens, "v");
  s.check_room(tokens);
  Array<float> k_room = s.room(), v_room = s.room();
  s.cache->append(s.options.layer, s.read(k, s.kv_heads, tokens, k_room),
                  s.read(v, s.kv_heads, tokens, v_room), tokens);
}

void LayerCache::attend(const RowsOut& out, const RowsView& q, size_t tokens) {
  State& s = *state_;
  s.check(out.data, tokens, "out");
  s.check(q.data, tokens, "q");
  if (s.cache->tokens(s.options.layer) == 0)
    throw Error(ErrorCode::kInvalidArgument, "nothing is stored yet that queries could attend to");
  Array<float> q_room = s.room();
  s.answer(out, tokens, [&](float* to) {
    s.cache->attend_only(s.options.layer, to, s.read_queries(q, tokens, q_room), tokens);
  });
}

namespace {

constexpr std::string_view kMagic = "PITHLAY1";

void archive_text(Archive& a, std::string& text) {
  constexpr uint32_t kMost = 1 << 20;
  auto size = static_cast<uint32_t>(text.size());
  a.number(size, kMost, "a text is too long");
  a.check_left(size, 1);
  text.resize(size);
  a.raw(text.data(), size);
}

/// What save()'s bytes begin with: kMagic, the key, the digest of the rest.
void archive_head(Archive& a, SessionKey& key, Digest& digest) {
  std::string magic(kMagic);
  a.raw(magic.data(), magic.size());
  a.need(magic == kMagic, "these are no bytes of a layer's cache");
  auto fields = static_cast<uint32_t>(key.size());
  a.number(fields, uint32_t{64}, "a key of too many fields");
  key.resize(fields);
  for (auto& [name, value] : key) archive_text(a, name), archive_text(a, value);
  a.raw(&digest, sizeof(digest));
}

}  // namespace

std::vector<std::byte> LayerCache::save() const {
  const State& s = *state_;
  std::vector<std::byte> state, all;
  const auto into = [](std::vector<std::byte>& to) {
    return [&to](std::span<const std::byte> x) { to.insert(to.end(), x.begin(), x.end()); };
  };
  Archive body(into(state));
  s.archive(body);
  SessionKey key = s.key();
  Digest digest = digest_of(state);
  Archive head(into(all));
  archive_head(head, key, digest);
  all.insert(all.end(), state.begin(), state.end());
  return all;
}

LayerCache LayerCache::restore(std::shared_ptr<Compute> compute, const LayerCacheOptions& options,
                               std::span<const std::byte> bytes) {
  LayerCacheOptions fresh = options;
  fresh.protect.clear();  // the saved ones come with their rows
  LayerCache restored(std::move(compute), fresh);
  State& s = *restored.state_;
  SessionKey saved;
  Digest digest;
  Archive head(bytes, "a saved layer");
  archive_head(head, saved, digest);
  check_key("a saved layer", saved, s.key(), "a cache goes on under what it began with alone");
  const auto state = bytes.subspan(head.bytes());
  if (digest_of(state) != digest)
    throw Error(ErrorCode::kCorrupt, "a saved layer: its bytes are damaged; save it again");
  Archive body(state, "a saved layer");
  s.archive(body);
  body.end();
  s.options.protect = s.cache->protected_tokens();
  check_protected("a saved layer", s.options.protect, options.protect);
  return restored;
}

void LayerCache::protect(std::span<const TokenRange> ranges) {
  state_->cache->protect(ranges);
  auto& all = state_->options.protect;
  all.insert(all.end(), ranges.begin(), ranges.end());
}

std::optional<AttentionError> LayerCache::attention_error() const {
  const auto all = state_->cache->attention_errors();
  return all.empty() ? std::nullopt : std::optional(all.front());
}

void LayerCache::end_prompt() { state_->cache->end_prefill(); }
size_t LayerCache::tokens() const { return state_->cache->tokens(state_->options.layer); }
HeadRows LayerCache::rows(int head) const {
  return state_->cache->rows(state_->options.layer, head);
}
Ledger LayerCache::ledger() const { return state_->cache->ledger(state_->options.layer); }
std::string LayerCache::describe() const { return state_->cache->describe(); }
LayerCache LayerCache::clone() const { return LayerCache(std::make_unique<State>(*state_)); }

}  // namespace pith
