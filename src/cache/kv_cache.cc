#include "cache/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "cache/kv_cache_impl.h"
#include "pith/error.h"

namespace pith {
namespace {

[[noreturn]] void refuse_head(int head, int heads) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("KV head {} of a cache with {}", head, heads));
}

}  // namespace

KvCache::KvCache(const Context& context, const CacheShape& shape, const Policy& policy,
                 uint64_t seed, const LayerRopes& ropes, HostTables* tables)
    : KvCache(context, ResolvedPolicy(policy, shape, seed, Device::kCpu), ropes, {}, tables) {}

KvCache::KvCache(const Context& context, ResolvedPolicy policy, const LayerRopes& ropes,
                 std::optional<int> only, HostTables* tables)
    : impl_(std::make_unique<Impl>(context, std::move(policy), ropes)) {
  impl_->notes.gathers = prompt() == PromptReading::kOnce;
  impl_->layers.resize(static_cast<size_t>(impl_->shape.layers));
  for (int l = 0; l < impl_->shape.layers; ++l) {
    if (only && l != *only) continue;
    CacheLayer& layer = impl_->layers[static_cast<size_t>(l)];
    layer.groups.reserve(impl_->policy->layer(l).size());
    for (const CohortPolicy& cohort : impl_->policy->layer(l))
      layer.groups.emplace_back(context, cohort, ropes.of(l), tables);
  }
}

KvCache::KvCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;

std::unique_ptr<KvCache> KvCache::clone() const {
  return std::unique_ptr<KvCache>(new KvCache(std::make_unique<Impl>(*impl_)));
}

std::pair<HeadGroup*, size_t> KvCache::Impl::group_of(int l, int head) {
  for (HeadGroup& group : layer(l).groups)
    for (size_t h = 0; h < group.heads().size(); ++h)
      if (group.heads()[h] == head) return {&group, h};
  refuse_head(head, shape.kv_heads);
}

std::vector<std::vector<Span>> KvCache::Impl::spans(CacheLayer& layer) const {
  std::vector<std::vector<Span>> lists(static_cast<size_t>(shape.kv_heads));
  for (HeadGroup& group : layer.groups)
    for (size_t h = 0; h < group.heads().size(); ++h)
      group.add_spans(h, lists[static_cast<size_t>(group.heads()[h])]);
  return lists;
}

void KvCache::Impl::probe(int l, const AttendCall& call) {
  CacheLayer& target = layer(l);
  const auto lists = spans(target);
  target.probe->measure({.q = call.q,
                         .k = call.k,
                         .v = call.v,
                         .policy = call.out,
                         .spans = lists,
                         .rope = ropes.of(l)});
}

void KvCache::Impl::append(int l, const LayerRows& rows, bool gathers) {
  CacheLayer& target = layer(l);
  Staging staging(context.memory.beside());
  for (HeadGroup& group : target.groups)
    group.append(rows, static_cast<size_t>(shape.kv_heads), staging, gathers);
  if (target.probe) target.probe->append(rows.k, rows.v, rows.tokens);
  target.tokens += rows.tokens;
}

void KvCache::read(int l, float* out, const PromptBlock& block) {
  AttendCall call;
  call.q = block.q;
  call.k = block.k;
  call.v = block.v;
  call.tokens = block.count;
  call.before = block.first;
  call.out = out;
  std::vector<size_t> asked;
  impl_->begin_step(l, call, block.tokens, asked);
  call.chunk_mass = block.mass;
  call.mass_stride = block.tokens;
  impl_->attend(l, call);
}

void KvCache::append(int l, const PromptRows& rows) {
  const bool once = prompt() == PromptReading::kOnce;
  const size_t before = impl_->layer(l).tokens;
  impl_->append(l, {rows.k, rows.v, rows.mass, rows.tokens}, once);
  if (!rows.ends) return;
  for (HeadGroup& group : impl_->layer(l).groups) group.end_prefill();
  if (l + 1 < impl_->shape.layers) return;
  impl_->notes.end_prompt(before + rows.tokens);
  if (once) impl_->notes.gathered.push_back(before);
}

PromptReading KvCache::prompt() const { return impl_->policy->prompt(); }

bool KvCache::asks_mass(int l) const {
  const auto& groups = impl_->layer(l).groups;
  return std::ranges::any_of(groups, [](const HeadGroup& g) { return g.carries_mass(); });
}

void KvCache::attend_only(int l, float* out, const float* q, size_t tokens) {
  AttendCall call;
  call.q = q;
  call.tokens = tokens;
  call.out = out;
  impl_->attend(l, call);
}

void KvCache::append(int l, const float* k, const float* v, size_t tokens) {
  check_chunk(prompt(), tokens);
  impl_->append(l, {k, v, nullptr, tokens});
}

void KvCache::protect(std::span<const TokenRange> ranges) {
  ProtectedRows all = impl_->notes.protected_rows;
  all.add(ranges, static_cast<int64_t>(impl_->seen()), static_cast<int64_t>(impl_->shape.context));
  impl_->notes.protected_rows = std::move(all);
  for (CacheLayer& layer : impl_->layers)
    for (HeadGroup& group : layer.groups) group.protect(impl_->notes.protected_rows);
}

void KvCache::start_error_probe(const ErrorProbeOptions& options, uint64_t seed) {
  check_error_probe(options);
  if (impl_->shape.varies()) refuse_variant();
  for (const CacheLayer& layer : impl_->layers)
    for (const HeadGroup& group : layer.groups)
      if (group.cache_positions()) refuse_cache_positions();
  const CacheShape& s = impl_->shape;
  const AttentionShape shape{static_cast<size_t>(s.query_heads), static_cast<size_t>(s.kv_heads),
                             static_cast<size_t>(s.head_dim), 0};
  for (size_t l = 0; l < impl_->layers.size(); ++l) {
    if (impl_->layers[l].groups.empty()) continue;  // of a cache of one layer, another
    if (!s.sliding_window.empty() && s.sliding_window[l] > 0) continue;
    const ErrorProbeSite site{{shape.kv_heads, static_cast<int>(l), seed, options.rows},
                              shape.query_heads / shape.kv_heads,
                              shape.head_dim};
    impl_->layers[l].probe.emplace(impl_->context, shape, site, options.every);
  }
}

std::vector<AttentionError> KvCache::attention_errors() const {
  std::vector<AttentionError> errors;
  for (const CacheLayer& layer : impl_->layers)
    if (layer.probe) errors.push_back(layer.probe->result());
  return errors;
}

void KvCache::end_prefill() {
  impl_->notes.end_prompt(impl_->seen());
  for (CacheLayer& layer : impl_->layers)
    for (HeadGroup& group : layer.groups) group.end_prefill();
}

const std::vector<TokenRange>& KvCache::protected_tokens() const {
  return impl_->notes.protected_rows.ranges();
}

void KvCache::archive(Archive& a) {
  uint64_t tokens = impl_->seen();
  impl_->notes.archive(a, tokens, impl_->shape.context,
                       [&](std::span<const TokenRange> ranges) { protect(ranges); });
  for (CacheLayer& layer : impl_->layers) {
    if (layer.groups.empty()) continue;  // of a cache of one layer, another
    a.need(a.loads() || layer.tokens == tokens, "layers that saw different tokens");
    if (a.loads()) layer.tokens = tokens;
  }
}

void KvCache::archive_layer(int l, Archive& a) {
  CacheLayer& layer = impl_->layer(l);
  for (HeadGroup& group : layer.groups) {
    a.at(fmt::format("layer {}, KV heads from {}", l, group.heads()[0]));
    group.archive(a, layer.tokens, impl_->notes);
  }
  if (layer.probe) layer.probe->archive(a, layer.tokens);
}

const LayerRopes& KvCache::ropes() const { return impl_->ropes; }
size_t KvCache::tokens(int layer) const { return impl_->layer(layer).tokens; }

HeadRows KvCache::rows(int layer, int head) const {
  const auto [group, h] = impl_->group_of(layer, head);
  return group->rows(h);
}

void KvCache::read_rows(int layer, int head, float* k, float* v) const {
  const auto [group, h] = impl_->group_of(layer, head);
  group->read_rows(h, k, v);
}

std::vector<double> KvCache::scores(int layer, int head) const {
  const auto [group, h] = impl_->group_of(layer, head);
  return group->scores(h);
}

Ledger KvCache::ledger() const {
  Ledger ledger;
  for (const CacheLayer& layer : impl_->layers)
    for (const HeadGroup& group : layer.groups) group.add_to(ledger);
  return ledger;
}

Ledger KvCache::ledger(int layer) const {
  Ledger ledger;
  for (const HeadGroup& group : impl_->layer(layer).groups) group.add_to(ledger);
  return ledger;
}

Occupancy KvCache::held(int layer, int head) const {
  const auto [group, h] = impl_->group_of(layer, head);
  return group->held(h);
}

Ledger KvCache::estimate(size_t tokens) const {
  return impl_->policy->estimate(tokens, impl_->notes.protected_rows);
}

PassRoom KvCache::room(size_t tokens, size_t at_once, bool as_prompt) const {
  const PassTokens pass{impl_->seen(), tokens, at_once, as_prompt};
  const auto group = static_cast<size_t>(impl_->shape.query_heads / impl_->shape.kv_heads);
  PassRoom most;
  size_t passing = 0;
  for (int l = 0; l < impl_->shape.layers; ++l) {
    const CacheLayer& layer = impl_->layers[static_cast<size_t>(l)];
    if (layer.groups.empty()) continue;  // of a cache of one layer, another
    LayerRoom room(*impl_->policy, pass, static_cast<size_t>(impl_->context.pool.size()));
    const auto cohorts = impl_->policy->layer(l);
    for (size_t i = 0; i < cohorts.size(); ++i)
      room.add(cohorts[i], impl_->notes.protected_rows,
               layer.groups[i].widths(decode_queries(at_once, group)));
    if (layer.probe) most.cache += layer.probe->most_bytes(pass.before + tokens);
    most.cache += room.held();
    passing = std::max(passing, room.passing());
    most.beside = std::max(most.beside, room.beside());
  }
  most.cache += passing;
  return most;
}

std::string KvCache::describe() const {
  return impl_->policy->describe(impl_->notes.protected_rows);
}

}  // namespace pith
