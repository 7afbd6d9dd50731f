// Steps of a cache: what attends to what, alone and side by side with other caches.

#include <algorithm>
#include <deque>
#include <optional>

#include "cache/kv_cache_impl.h"

namespace pith {

void KvCache::Impl::begin_step(int l, AttendCall& call, size_t all, std::vector<size_t>& asked) {
  CacheLayer& target = layer(l);
  const QueryBlock block{call.q, call.tokens, static_cast<size_t>(shape.query_heads),
                         static_cast<int64_t>(target.tokens + call.before), ropes.of(l)};
  asked.assign(static_cast<size_t>(shape.kv_heads), 0);
  for (HeadGroup& group : target.groups) {
    const size_t wanted = group.begin_step({block, call.before, all});
    for (int head : group.heads()) asked[static_cast<size_t>(head)] = wanted;
    call.mass_queries = std::max(call.mass_queries, wanted);
  }
  call.head_mass_queries = asked;
}

KvCache::Impl::Attending::Attending(Impl& cache, int l, const AttendCall& given)
    : step(cache.step_context()), call(given), scaled_(step.memory, MemoryKind::kScratch) {
  CacheLayer& target = cache.layer(l);
  const CacheShape& shape = cache.shape;
  lists_ = cache.spans(target);
  seen_.assign(lists_.begin(), lists_.end());
  call.shape = {static_cast<size_t>(shape.query_heads),
                static_cast<size_t>(shape.kv_heads),
                static_cast<size_t>(shape.head_dim),
                0,
                {shape.soft_cap, shape.sinks_of(l)}};
  call.first_position = static_cast<int64_t>(target.tokens + call.before);
  if (!shape.sliding_window.empty())
    call.sliding_window = shape.sliding_window[static_cast<size_t>(l)];
  call.spans = seen_;
  call.rope = cache.ropes.of(l);
  for (const HeadGroup& group : target.groups) {
    if (!group.scales_queries(call.before, call.tokens)) continue;
    if (scaled_.empty()) {
      scaled_.resize(call.tokens * call.shape.query_heads * call.shape.head_dim);
      std::copy_n(call.q, scaled_.size(), scaled_.data());
      call.q = scaled_.data();
    }
    group.scale_queries(scaled_.data(), call);
  }
}

void KvCache::Impl::attend(int l, const AttendCall& call) {
  const Attending attending(*this, l, call);
  pith::attend(attending.step, attending.call);
}

void KvCache::Impl::open(int l, OpenStep& step, float* out, const LayerRows& rows, const float* q) {
  step.call.q = q;
  step.call.k = rows.k;
  step.call.v = rows.v;
  step.call.tokens = rows.tokens;
  step.call.out = out;
  step.wanted = out != nullptr;
  begin_step(l, step.call, rows.tokens, step.asked);
  step.attends = step.wanted || step.call.mass_queries > 0;
  if (!step.attends) return;
  if (!step.wanted) {
    step.unwanted.resize(rows.tokens * static_cast<size_t>(shape.query_heads * shape.head_dim));
    step.call.out = step.unwanted.data();
  }
  if (step.call.mass_queries == 0) return;
  step.mass.resize(static_cast<size_t>(shape.kv_heads) * rows.tokens);
  std::ranges::fill(step.mass, 0.0f);
  step.call.chunk_mass = step.mass.data();
}

void KvCache::Impl::close(int l, const OpenStep& step, const LayerRows& rows) {
  CacheLayer& target = layer(l);
  if (target.probe && step.wanted && rows.tokens == 1 && target.probe->due()) probe(l, step.call);
  append(l, {rows.k, rows.v, step.call.chunk_mass, rows.tokens});
}

void KvCache::step(int l, float* out, const float* q, const float* k, const float* v,
                   size_t tokens) {
  check_chunk(prompt(), tokens);
  const LayerRows rows{k, v, nullptr, tokens};
  OpenStep step(impl_->step_context().memory);
  impl_->open(l, step, out, rows, q);
  if (step.attends) impl_->attend(l, step.call);
  impl_->close(l, step, rows);
}

void KvCache::step_together(int l, std::span<Token> tokens) {
  struct One {
    explicit One(Token& t) : token(&t), step(t.cache->impl_->step_context().memory) {}
    Token* token;
    OpenStep step;
    std::optional<Impl::Attending> attending;
    LayerRows rows() const { return {token->k, token->v, nullptr, 1}; }
  };
  std::deque<One> all;
  for (Token& t : tokens)
    if (!t.failure) all.emplace_back(t);
  if (all.empty()) return;
  ThreadPool& pool = all[0].token->cache->impl_->context.pool;
  const auto threads = static_cast<size_t>(pool.size());
  // Few caches go one after another, and what each does with its heads goes to all threads.
  const auto each = [&](const auto& f) {
    auto one = [&](size_t i, int) {
      if (all[i].token->failure) return;
      try {
        f(all[i], *all[i].token->cache->impl_);
      } catch (...) {
        all[i].token->failure = std::current_exception();
      }
    };
    if (2 * all.size() > threads) return pool.parallel_for(all.size(), one);
    for (size_t i = 0; i < all.size(); ++i) one(i, 0);
  };
  // A cache per thread runs alone on it. Fewer caches than threads split their KV heads, and parts
  // of these, over all threads. Neither changes a bit.
  if (all.size() >= threads) {
    return each([&](One& o, Impl&) {
      const Token& t = *o.token;
      t.cache->step(l, t.out, t.q, t.k, t.v, 1);
    });
  }
  each([&](One& o, Impl& cache) {
    cache.open(l, o.step, o.token->out, o.rows(), o.token->q);
    o.attending.emplace(cache, l, o.step.call);
  });
  std::vector<AttendWork> works;
  std::vector<Token*> of;
  for (One& o : all) {
    if (o.token->failure) continue;
    works.push_back({&o.attending->step, &o.attending->call});
    of.push_back(o.token);
  }
  attend_together(works);
  for (size_t i = 0; i < works.size(); ++i) of[i]->failure = works[i].failure;
  each([&](One& o, Impl& cache) {
    o.attending.reset();
    cache.close(l, o.step, o.rows());
  });
}

}  // namespace pith
