#include "pith/layer_cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <optional>

#include "core/digest.h"
#include "layer/layer_backend.h"
#include "pith/error.h"
#include "runtime/runtime.h"
#include "session/session_key.h"

namespace pith {

namespace {

constexpr double kLeastSoftCap = 1e-3;  // below it scores over the cap overflow

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "a layer's cache: " + why);
}

void check_rope(const LayerCacheOptions& o) {
  if (!(o.rope_theta >= 0) || !std::isfinite(o.rope_theta))
    refuse(fmt::format("rope_theta {}; it is positive, or 0 if none is known", o.rope_theta));
  if (o.rope_frequencies.empty()) return;
  if (o.rope_theta != 0) refuse("both rope_theta and rope_frequencies; give one");
  if (o.rope_frequencies.size() != static_cast<size_t>(o.head_dim) / 2)
    refuse(fmt::format("{} rope_frequencies; head_dim {} has {} pairs of channels",
                       o.rope_frequencies.size(), o.head_dim, o.head_dim / 2));
}

void check_variant(const LayerCacheOptions& o) {
  if (!(o.soft_cap >= 0) || !std::isfinite(static_cast<float>(o.soft_cap)))
    refuse(fmt::format("a soft cap of {}; it is positive, or 0 for none", o.soft_cap));
  if (o.soft_cap > 0 && o.soft_cap < kLeastSoftCap)
    refuse(fmt::format("a soft cap of {}; from {} on, or 0 for none", o.soft_cap, kLeastSoftCap));
  if (o.sink_logits.empty()) return;
  if (o.sink_logits.size() != static_cast<size_t>(o.query_heads))
    refuse(fmt::format("{} sink logits for {} query heads; give one each, or none",
                       o.sink_logits.size(), o.query_heads));
  for (const float logit : o.sink_logits)
    if (!std::isfinite(logit)) refuse(fmt::format("a sink logit of {}; all are finite", logit));
}

const LayerCacheOptions& checked(const LayerCacheOptions& o) {
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
  check_rope(o);
  check_variant(o);
  if (o.policy.prompt != PromptReading::kChunks)
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("a layer's cache: prompt={} is of sessions; the rows of one step attend "
                    "to each other exactly here: leave it out and give a prompt in one step",
                    to_string(o.policy.prompt)));
  if (o.error_probe.rows > 0 && o.sliding_window > 0)
    throw Error(
        ErrorCode::kUnsupported,
        "a layer's cache: an error probe and a sliding window; the probe watches layers that "
        "see everything");
  return o;
}

}  // namespace

CacheShape shape_of(const LayerCacheOptions& o) {
  CacheShape shape{.layers = o.layers,
                   .query_heads = o.query_heads,
                   .kv_heads = o.kv_heads,
                   .head_dim = o.head_dim,
                   .context = o.context,
                   .percent_of = o.percent_of};
  // Of so many layers that the shape is refused, the windows are not made.
  if (o.sliding_window > 0 && o.layers <= 1 << 20)
    shape.sliding_window.assign(static_cast<size_t>(o.layers), o.sliding_window);
  shape.soft_cap = static_cast<float>(o.soft_cap);
  if (!o.sink_logits.empty() && o.layers <= 1 << 20) {
    shape.sinks.resize(static_cast<size_t>(o.layers));
    shape.sinks[static_cast<size_t>(o.layer)] = o.sink_logits;
  }
  return shape;
}

std::vector<double> LayerBackend::scores(int) const {
  throw Error(ErrorCode::kUnsupported,
              "scores of a layer's cache on the GPU cannot be read; those of Device::kCpu's can");
}

LayerSite::LayerSite(const LayerCacheOptions& o)
    : layer(o.layer),
      query_heads(static_cast<size_t>(o.query_heads)),
      kv_heads(static_cast<size_t>(o.kv_heads)),
      dim(static_cast<size_t>(o.head_dim)),
      query_factor(o.scale == 0
                       ? 1
                       : static_cast<float>(o.scale * std::sqrt(static_cast<double>(o.head_dim)))) {
  if (!o.rope_frequencies.empty()) rope = std::make_shared<const Rope>(o.rope_frequencies);
  if (o.rope_theta != 0) rope = std::make_shared<const Rope>(dim, o.rope_theta);
}

struct LayerCache::State {
  State(std::shared_ptr<Runtime> r, const LayerCacheOptions& o)
      : runtime(std::move(r)), options(o) {
    if (!runtime) refuse("no Runtime was given; make one with std::make_shared<Runtime>()");
    checked(options);
    runtime->state_->check_process();
    if (options.rope_theta == 0 && options.rope_frequencies.empty())
      ResolvedPolicy(options.policy, shape_of(options), options.seed, runtime->device())
          .check_without_rope(options.layer);
    RuntimeBackend& with = *runtime->state_->backend;
    layer = runtime->device() == Device::kCuda ? make_cuda_layer(with, options)
                                               : make_cpu_layer(with, options);
  }
  State(const State& o) : runtime(o.runtime), options(o.options), layer(o.layer->clone()) {}

  std::shared_ptr<Runtime> runtime;
  LayerCacheOptions options;
  std::unique_ptr<LayerBackend> layer;

  /// The state at the beginning of a call. Throws for objects that were moved from, and in a forked
  /// process.
  static State& live(const std::unique_ptr<State>& state) {
    if (!state) refuse("it was moved from; use the cache that it was moved to");
    state->runtime->state_->check_process();
    return *state;
  }
  /// Throws unless `tokens` more can come.
  void check_room(size_t tokens) const;
  /// Throws for a view that is none.
  template <class View>
  void check(const View& x, size_t tokens, const char* what) const;
  void check_out(const RowsOut& out, size_t tokens) const;
  /// Throws unless it can be run; nothing has changed then.
  void check_step(const LayerStep& given) const;
  /// The fields that must be the same to continue from save()'s bytes.
  SessionKey key() const;
};

void LayerCache::State::check_room(size_t tokens) const {
  const size_t seen = layer->tokens();
  if (tokens > options.context - seen)
    throw Error(ErrorCode::kContextFull,
                fmt::format("{} tokens after the {} already seen pass the context of {} that this "
                            "layer's cache was made for",
                            tokens, seen, options.context));
}

template <class View>
void LayerCache::State::check(const View& x, size_t tokens, const char* what) const {
  if (tokens == 0) throw Error(ErrorCode::kInvalidArgument, "a pass of no tokens");
  if (x.data == nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is null; give a tensor of {} tokens", what, tokens));
  if (x.dtype != DType::kF32 && x.dtype != DType::kF16 && x.dtype != DType::kBF16)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} has dtype {}, which is none; there are f32 (0), f16 (1) and bf16 (2)", what,
                    static_cast<int>(x.dtype)));
}

// Rows that overlap would be written over each other.
void LayerCache::State::check_out(const RowsOut& out, size_t tokens) const {
  check(out, tokens, "out");
  const auto size = [](ptrdiff_t stride) {
    return static_cast<size_t>(stride < 0 ? -stride : stride);
  };
  const auto heads = static_cast<size_t>(options.query_heads);
  const auto dim = static_cast<size_t>(options.head_dim);
  const size_t token = size(out.token_stride), head = size(out.head_stride);
  const bool by_token = head >= dim && (tokens == 1 || token >= (heads - 1) * head + dim);
  const bool by_head = token >= dim && (heads == 1 || head >= (tokens - 1) * token + dim);
  if (heads * tokens > 1 && !by_token && !by_head)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("out's rows overlap: token_stride {} and head_stride {} for {} tokens, "
                    "{} heads of {} numbers; [T, H, D] without gaps has {} and {}",
                    out.token_stride, out.head_stride, tokens, heads, dim, heads * dim, dim));
}

void LayerCache::State::check_step(const LayerStep& given) const {
  check_out(given.out, given.tokens);
  check(given.q, given.tokens, "q");
  check(given.k, given.tokens, "k");
  check(given.v, given.tokens, "v");
  check_room(given.tokens);
}

SessionKey LayerCache::State::key() const {
  const LayerCacheOptions& o = options;
  const Device device = runtime->device();
  SessionKey key{{"device", device == Device::kCuda ? "cuda" : "cpu"},
                 {"policy", ResolvedPolicy(o.policy, shape_of(o), o.seed, device).describe()},
                 {"shape", fmt::format("{} query heads, {} KV heads, head_dim {}", o.query_heads,
                                       o.kv_heads, o.head_dim)},
                 {"layer", fmt::format("{} of {}", o.layer, o.layers)},
                 {"context", std::to_string(o.context)},
                 {"per cent of", std::to_string(o.percent_of)},
                 {"sliding window", std::to_string(o.sliding_window)},
                 {"seed", std::to_string(o.seed)},
                 {"rope_theta", o.rope_frequencies.empty()
                                    ? fmt::format("{}", o.rope_theta)
                                    : fmt::format("{}", fmt::join(o.rope_frequencies, " "))},
                 {"scale", fmt::format("{}", o.scale)},
                 {"error probe",
                  fmt::format("{} rows every {} steps", o.error_probe.rows, o.error_probe.every)},
                 {"isa", layer->bits()}};
  if (o.soft_cap > 0) key.emplace_back("soft cap", fmt::format("{}", o.soft_cap));
  if (!o.sink_logits.empty())
    key.emplace_back("sink logits", fmt::format("{}", fmt::join(o.sink_logits, " ")));
  return key;
}

LayerCache::LayerCache(std::shared_ptr<Runtime> runtime, const LayerCacheOptions& options)
    : state_(std::make_unique<State>(std::move(runtime), options)) {}
LayerCache::LayerCache(std::unique_ptr<State> state) : state_(std::move(state)) {}
LayerCache::~LayerCache() = default;
LayerCache::LayerCache(LayerCache&&) noexcept = default;
LayerCache& LayerCache::operator=(LayerCache&&) noexcept = default;

void LayerCache::step(const RowsOut& out, const RowsView& q, const RowsView& k, const RowsView& v,
                      size_t tokens) {
  State& s = State::live(state_);
  const LayerStep given{this, out, q, k, v, tokens};
  s.check_step(given);
  BackendStep{s.layer.get(), &given}.run();
}

void Runtime::step(std::span<const LayerStep> steps) {
  std::vector<BackendStep> checked;
  std::vector<const LayerCache*> caches;
  for (size_t i = 0; i < steps.size(); ++i) {
    const LayerStep& given = steps[i];
    try {
      if (given.cache == nullptr) refuse("it is null");
      LayerCache::State& s = LayerCache::State::live(given.cache->state_);
      if (s.runtime.get() != this) refuse("it was made with another Runtime");
      s.check_step(given);
      checked.push_back({s.layer.get(), &given});
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("step {} of {}: {}", i, steps.size(), error.what()));
    }
    caches.push_back(given.cache);
  }
  std::ranges::sort(caches);
  if (std::ranges::adjacent_find(caches) != caches.end())
    refuse("a cache is in two steps of one call; give its tokens in one step or in two calls");
  if (checked.empty()) return;
  auto* cpu = dynamic_cast<CpuRuntime*>(state_->backend.get());
  if (!cpu) return step_cuda_layers(checked);
  // Fewer steps than threads share all threads, head by head.
  if (checked.size() >= static_cast<size_t>(cpu->pool.size()))
    cpu->pool.parallel_for(checked.size(), [&](size_t i, int) { checked[i].run(); });
  else
    for (const BackendStep& one : checked) one.run();
}

void LayerCache::append(const RowsView& k, const RowsView& v, size_t tokens) {
  State& s = State::live(state_);
  s.check(k, tokens, "k");
  s.check(v, tokens, "v");
  s.check_room(tokens);
  s.layer->append(k, v, tokens);
}

void LayerCache::attend(const RowsOut& out, const RowsView& q, size_t tokens) {
  State& s = State::live(state_);
  s.check_out(out, tokens);
  s.check(q, tokens, "q");
  if (s.layer->tokens() == 0)
    throw Error(ErrorCode::kInvalidArgument, "nothing is stored yet that queries could attend to");
  s.layer->attend(out, q, tokens);
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

/// The head of save()'s bytes: kMagic, the key, the digest of the rest.
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
  const State& s = State::live(state_);
  std::vector<std::byte> state, all;
  const auto into = [](std::vector<std::byte>& to) {
    return [&to](std::span<const std::byte> x) { to.insert(to.end(), x.begin(), x.end()); };
  };
  Archive body(into(state));
  s.layer->archive(body);
  SessionKey key = s.key();
  Digest digest = digest_of(state);
  Archive head(into(all));
  archive_head(head, key, digest);
  all.insert(all.end(), state.begin(), state.end());
  return all;
}

LayerCache LayerCache::restore(std::shared_ptr<Runtime> runtime, const LayerCacheOptions& options,
                               std::span<const std::byte> bytes) {
  LayerCacheOptions fresh = options;
  fresh.protect.clear();  // the saved ones come with their rows
  LayerCache restored(std::move(runtime), fresh);
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
  s.layer->archive(body);
  body.end();
  s.options.protect = s.layer->protected_tokens();
  check_protected("a saved layer", s.options.protect, options.protect);
  return restored;
}

void LayerCache::protect(std::span<const TokenRange> ranges) {
  State& s = State::live(state_);
  s.layer->protect(ranges);
  s.options.protect.insert(s.options.protect.end(), ranges.begin(), ranges.end());
}

void LayerCache::use_stream(void* stream) { State::live(state_).layer->use_stream(stream); }
void LayerCache::end_prompt() { State::live(state_).layer->end_prompt(); }
size_t LayerCache::tokens() const { return State::live(state_).layer->tokens(); }
HeadRows LayerCache::rows(int head) const { return State::live(state_).layer->rows(head); }
void LayerCache::read_rows(int head, float* k, float* v) const {
  const State& s = State::live(state_);
  if (k == nullptr || v == nullptr) refuse("read_rows into null; give room for rows(head)");
  s.layer->read_rows(head, k, v);
}
std::vector<double> LayerCache::scores(int head) const {
  const State& s = State::live(state_);
  std::vector<double> scores = s.layer->scores(head);
  if (scores.empty() && s.layer->tokens() > 0)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("policy '{}' does not score rows one by one; those that do: snapkv, "
                            "h2o, tova, keydiff, knorm, pyramidkv, adakv, expected_attention",
                            s.options.policy.to_string()));
  return scores;
}
Ledger LayerCache::ledger() const { return State::live(state_).layer->ledger(); }
std::string LayerCache::describe() const { return State::live(state_).layer->describe(); }
std::optional<AttentionError> LayerCache::attention_error() const {
  return State::live(state_).layer->attention_error();
}
LayerCache LayerCache::clone() const {
  return LayerCache(std::make_unique<State>(State::live(state_)));
}

}  // namespace pith
