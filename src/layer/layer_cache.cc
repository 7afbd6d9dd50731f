#include "pith/layer_cache.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "core/digest.h"
#include "layer/layer_backend.h"
#include "pith/error.h"
#include "session/check_threads.h"
#include "session/session_key.h"

namespace pith {

struct Compute::State {
  explicit State(std::unique_ptr<ComputeBackend> b) : backend(std::move(b)) {}
  std::unique_ptr<ComputeBackend> backend;
};

namespace {

std::unique_ptr<ComputeBackend> make_compute(const ComputeOptions& o) {
  check_threads(o.threads);
  return o.device == Device::kCuda ? make_cuda_compute(o) : make_cpu_compute(o);
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

}  // namespace

CacheShape shape_of(const LayerCacheOptions& o) {
  CacheShape shape{o.layers, o.query_heads, o.kv_heads, o.head_dim, {}, o.context};
  if (o.sliding_window > 0)
    shape.sliding_window.assign(static_cast<size_t>(o.layers), o.sliding_window);
  return shape;
}

LayerSite::LayerSite(const LayerCacheOptions& o)
    : layer(o.layer),
      query_heads(static_cast<size_t>(o.query_heads)),
      kv_heads(static_cast<size_t>(o.kv_heads)),
      dim(static_cast<size_t>(o.head_dim)),
      query_factor(o.scale == 0
                       ? 1
                       : static_cast<float>(o.scale * std::sqrt(static_cast<double>(o.head_dim)))) {
  if (o.rope_theta != 0) rope = std::make_shared<const Rope>(dim, o.rope_theta);
}

struct LayerCache::State {
  State(std::shared_ptr<Compute> c, const LayerCacheOptions& o)
      : compute(std::move(c)), options(o), layer(compute->state_->backend->make_layer(o)) {}
  State(const State& o) : compute(o.compute), options(o.options), layer(o.layer->clone()) {}

  std::shared_ptr<Compute> compute;
  LayerCacheOptions options;
  std::unique_ptr<LayerBackend> layer;

  const ComputeBackend& backend() const { return *compute->state_->backend; }
  /// Throws unless `tokens` more can come.
  void check_room(size_t tokens) const;
  void check(const void* data, size_t tokens, const char* what) const;
  /// What must be the same for save()'s bytes to go on.
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

void LayerCache::State::check(const void* data, size_t tokens, const char* what) const {
  if (tokens == 0) throw Error(ErrorCode::kInvalidArgument, "a pass of no tokens");
  if (data == nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is null; give a tensor of {} tokens", what, tokens));
}

SessionKey LayerCache::State::key() const {
  const LayerCacheOptions& o = options;
  const Device device = backend().device();
  return {{"device", device == Device::kCuda ? "cuda" : "cpu"},
          {"policy", ResolvedPolicy(o.policy, shape_of(o), o.seed, device).describe()},
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
          {"isa", backend().bits()}};
}

Compute::Compute(const ComputeOptions& options)
    : state_(std::make_unique<State>(make_compute(options))) {}
Compute::~Compute() = default;
size_t Compute::bytes_in_use() const { return state_->backend->bytes_in_use(); }
Device Compute::device() const { return state_->backend->device(); }

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
  s.layer->step(out, q, k, v, tokens);
}

void LayerCache::append(const RowsView& k, const RowsView& v, size_t tokens) {
  State& s = *state_;
  s.check(k.data, tokens, "k");
  s.check(v.data, tokens, "v");
  s.check_room(tokens);
  s.layer->append(k, v, tokens);
}

void LayerCache::attend(const RowsOut& out, const RowsView& q, size_t tokens) {
  State& s = *state_;
  s.check(out.data, tokens, "out");
  s.check(q.data, tokens, "q");
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
  s.layer->archive(body);
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
  s.layer->archive(body);
  body.end();
  s.options.protect = s.layer->protected_tokens();
  check_protected("a saved layer", s.options.protect, options.protect);
  return restored;
}

void LayerCache::protect(std::span<const TokenRange> ranges) {
  state_->layer->protect(ranges);
  auto& all = state_->options.protect;
  all.insert(all.end(), ranges.begin(), ranges.end());
}

void LayerCache::use_stream(void* stream) { state_->layer->use_stream(stream); }
void LayerCache::end_prompt() { state_->layer->end_prompt(); }
size_t LayerCache::tokens() const { return state_->layer->tokens(); }
HeadRows LayerCache::rows(int head) const { return state_->layer->rows(head); }
Ledger LayerCache::ledger() const { return state_->layer->ledger(); }
std::string LayerCache::describe() const { return state_->layer->describe(); }
std::optional<AttentionError> LayerCache::attention_error() const {
  return state_->layer->attention_error();
}
LayerCache LayerCache::clone() const { return LayerCache(std::make_unique<State>(*state_)); }

}  // namespace pith
