// One layer's cache over tensors of the caller's: against attention in double over the rows that it
// says it holds, and bit for bit against the cache of a session.

#include "pith/layer_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "core/digest.h"
#include "core/dtype.h"
#include "layer/test_layer.h"
#include "pith/error.h"
#include "session/test_refused.h"

namespace pith {
namespace {

using test::options_of;
using test::out_view;
using test::refused;
using test::Rows;
using test::Shape;
using test::view;
using Layer = test::LayerUnderTest;

constexpr size_t kTokens = 200;

const char* const kPolicies[] = {"exact+f32",
                                 "knorm(budget=40,interval=8)+f32,window=16",
                                 "express(heavy=0,s=32)+f32,window=8",
                                 "h2o(budget=40,interval=8)+f32,window=16",
                                 "uniform(budget=32)+f32,window=8",
                                 "exact+int4",
                                 "snapkv(budget=40,interval=8)+kivi,window=16",
                                 "exact+csr(s=8,online=64,collect=64)"};

TEST(LayerCache, AttendsToTheRowsThatItReports) {
  const Shape shape;
  const Rows rows(shape, kTokens + 3, 5);
  for (const char* policy : kPolicies) {
    Layer layer(shape, policy);
    layer.step(rows, 0, kTokens, 50);
    std::vector<HeadRows> held;
    for (int g = 0; g < shape.kv_heads; ++g) held.push_back(layer.cache.rows(g));
    const auto expected = test::oracle_all(shape, rows, kTokens, kTokens + 3, held);
    const bool coded = std::string(policy).find("f32") == std::string::npos;
    EXPECT_LT(test::relative_error(layer.attend(rows, kTokens, kTokens + 3), expected),
              coded ? 0.5 : 1e-5)
        << policy;
  }
}

// Sequences of different lengths and policies in one call: the bits of one after the other, for
// fewer and more steps than threads.
TEST(LayerCache, ManyStepsAtOnceAreThoseOfEachAlone) {
  const Shape shape;
  const size_t lengths[] = {60, 1, 33, 7, 200};
  for (const int threads : {1, 2, 8}) {
    const auto runtime = std::make_shared<Runtime>(RuntimeOptions{.threads = threads});
    for (const char* policy : kPolicies) {
      std::vector<Rows> rows;
      std::vector<LayerCache> alone, together;
      std::vector<std::vector<float>> expected, outs;
      for (size_t i = 0; i < std::size(lengths); ++i) {
        rows.emplace_back(shape, lengths[i] + 20, 7 + static_cast<uint32_t>(i));
        alone.emplace_back(runtime, options_of(shape, policy));
        together.emplace_back(runtime, options_of(shape, policy));
        expected.emplace_back(lengths[i] * shape.q_size());
        outs.emplace_back(lengths[i] * shape.q_size());
      }
      const auto heads = static_cast<size_t>(shape.query_heads());
      const auto kv_heads = static_cast<size_t>(shape.kv_heads);
      const auto dim = static_cast<size_t>(shape.head_dim);
      const auto step = [&](std::vector<LayerCache>& caches, std::vector<std::vector<float>>& to,
                            size_t i, size_t first, size_t tokens) {
        return LayerStep{&caches[i],
                         out_view(to[i].data(), heads, dim),
                         view(rows[i].q.data() + first * shape.q_size(), heads, dim),
                         view(rows[i].k.data() + first * shape.kv_size(), kv_heads, dim),
                         view(rows[i].v.data() + first * shape.kv_size(), kv_heads, dim),
                         tokens};
      };
      const auto run = [&](bool prompt, size_t token) {
        std::vector<LayerStep> works;
        for (size_t i = 0; i < rows.size(); ++i) {
          const size_t first = prompt ? 0 : lengths[i] + token;
          const size_t tokens = prompt ? lengths[i] : 1;
          works.push_back(step(together, outs, i, first, tokens));
          const LayerStep one = step(alone, expected, i, first, tokens);
          one.cache->step(one.out, one.q, one.k, one.v, one.tokens);
        }
        runtime->step(works);
        EXPECT_EQ(outs, expected) << policy << ", " << threads << " threads";
      };
      run(true, 0);
      for (size_t t = 0; t < 20; ++t) run(false, t);
      for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(together[i].save(), alone[i].save());
    }
  }
}

TEST(LayerCache, IsTheCacheOfASession) {
  const Shape shape;
  const Rows rows(shape, kTokens + 3, 6);
  const Rope rope(64, 10000);
  for (const char* policy : kPolicies) {
    Layer layer(shape, policy);
    test::Harness harness(shape, policy, 1, 1, "", &rope);
    EXPECT_EQ(layer.step(rows, 0, 100, 30), harness.step(rows, 0, 100, 30)) << policy;
    layer.cache.end_prompt();
    harness.cache().end_prefill();
    EXPECT_EQ(layer.step(rows, 100, 150, 1), harness.step(rows, 100, 150, 1)) << policy;
    layer.cache.append(layer.k(rows, 150), layer.v(rows, 150), 50);
    harness.append(rows, 150, 200, 50);
    EXPECT_EQ(layer.attend(rows, 200, 203), harness.attend(rows, 200, 203)) << policy;
    EXPECT_EQ(layer.cache.ledger().cache_bytes(), harness.cache().ledger().cache_bytes());
    EXPECT_EQ(layer.cache.tokens(), 200u);
  }
}

/// x [T, heads, D] as [heads, T + 1, D + 3] of `dtype`, with other numbers in the gaps.
template <class T>
struct Strided {
  std::vector<T> numbers;
  ptrdiff_t token_stride, head_stride;
  Strided(const std::vector<float>& x, size_t tokens, size_t heads, size_t dim, DType dtype)
      : numbers(heads * (tokens + 1) * (dim + 3), T(0x7e7e)),
        token_stride(static_cast<ptrdiff_t>(dim + 3)),
        head_stride(static_cast<ptrdiff_t>((tokens + 1) * (dim + 3))) {
    for (size_t t = 0; t < tokens; ++t)
      for (size_t h = 0; h < heads; ++h)
        kernels_for("scalar").from_f32(
            numbers.data() + h * (tokens + 1) * (dim + 3) + t * (dim + 3),
            x.data() + (t * heads + h) * dim, dtype, dim);
  }
  RowsView view(DType dtype) const { return {numbers.data(), dtype, token_stride, head_stride}; }
};

TEST(LayerCache, TakesStridedTensorsOfEveryType) {
  const Shape shape;
  const size_t n = 70;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Rows rows(shape, n, 8);
    for (auto* x : {&rows.q, &rows.k, &rows.v}) test::round_to(*x, dtype);
    Layer plain(shape, "exact+int8,window=16"), strided(shape, "exact+int8,window=16");
    std::vector<float> expected = plain.step(rows, 0, n, n);
    test::round_to(expected, dtype);
    const auto run = [&](auto number) {
      using T = decltype(number);
      const Strided<T> q(rows.q, n, plain.heads, plain.dim, dtype),
          k(rows.k, n, plain.kv_heads, plain.dim, dtype),
          v(rows.v, n, plain.kv_heads, plain.dim, dtype);
      Strided<T> out(std::vector<float>(n * shape.q_size()), n, plain.heads, plain.dim, dtype);
      strided.cache.step({out.numbers.data(), dtype, out.token_stride, out.head_stride},
                         q.view(dtype), k.view(dtype), v.view(dtype), n);
      const Strided<T> wanted(expected, n, plain.heads, plain.dim, dtype);
      EXPECT_EQ(out.numbers, wanted.numbers) << to_string(dtype);  // and the gaps as they were
    };
    if (dtype == DType::kF32)
      run(uint32_t{});
    else
      run(uint16_t{});
  }
}

TEST(LayerCache, AMiddleLayerOfAPolicyForManyAndClones) {
  const Shape shape;
  const Rows rows(shape, kTokens, 9);
  LayerCacheOptions o = options_of(shape, "exact;layers=2:knorm(budget=16,interval=4)");
  o.layers = 4;
  const auto runtime = std::make_shared<Runtime>(RuntimeOptions{.threads = 1});
  o.layer = 2;
  Layer small(shape, "exact");
  small.cache = LayerCache(runtime, o);
  o.layer = 1;
  Layer all(shape, "exact");
  all.cache = LayerCache(runtime, o);
  small.step(rows, 0, 150, 50);
  all.step(rows, 0, 150, 50);
  EXPECT_EQ(all.cache.rows(0).positions.size(), 150u);
  EXPECT_LT(small.cache.rows(0).positions.size(), 100u);
  EXPECT_GT(runtime->bytes_in_use(), 0u);

  LayerCache copy = small.cache.clone();
  const auto before = copy.rows(1).positions;
  const auto expected = small.step(rows, 150, kTokens, 1);
  EXPECT_EQ(copy.rows(1).positions, before);
  small.cache = std::move(copy);
  EXPECT_EQ(small.step(rows, 150, kTokens, 1), expected);
}

TEST(LayerCache, AScaleOfScoresIsTheCallersEverywhere) {
  const Shape shape;
  constexpr double kScale = 0.37;
  const Rows rows(shape, kTokens + 3, 10);
  Rows larger = rows;  // whose scores over sqrt(D) are those of `rows` at kScale
  for (float& x : larger.q) x *= static_cast<float>(kScale * 8);
  for (const char* policy : kPolicies) {
    Layer scaled(shape, policy), plain(shape, policy);
    LayerCacheOptions o = options_of(shape, policy);
    o.scale = kScale;
    scaled.cache = LayerCache(scaled.runtime, o);
    EXPECT_EQ(scaled.step(rows, 0, kTokens, 50), plain.step(larger, 0, kTokens, 50)) << policy;
    std::vector<HeadRows> held;
    for (int g = 0; g < shape.kv_heads; ++g) {
      held.push_back(scaled.cache.rows(g));
      EXPECT_EQ(held.back().positions, plain.cache.rows(g).positions) << policy;
    }
    if (std::string(policy).find("f32") == std::string::npos) continue;
    EXPECT_LT(test::relative_error(scaled.attend(rows, kTokens, kTokens + 3),
                                   test::oracle_all(shape, larger, kTokens, kTokens + 3, held)),
              1e-5)
        << policy;
    EXPECT_GT(test::relative_error(scaled.attend(rows, kTokens, kTokens + 3),
                                   test::oracle_all(shape, rows, kTokens, kTokens + 3, held)),
              1e-2)
        << policy;
  }
}

TEST(LayerCache, ProtectsRowsAndProbesAsASessionDoes) {
  const Shape shape;
  const Rows rows(shape, kTokens, 11);
  const char* policy = "knorm(budget=16,interval=8)+int4,sink=0,window=8";
  LayerCacheOptions o = options_of(shape, policy);
  o.protect = {{3, 6}};
  o.error_probe = {64, 2, 0};
  o.layers = 3, o.layer = 2;
  o.rope_theta = 0;  // no policy here rotates keys
  Layer layer(shape, policy);
  layer.cache = LayerCache(layer.runtime, o);
  EXPECT_FALSE(Layer(shape, policy).cache.attention_error());
  layer.step(rows, 0, 150, 30);
  const TokenRange more{150, 151};
  layer.cache.protect({&more, 1});
  EXPECT_THROW(layer.cache.protect({&more, 1}), Error);
  layer.step(rows, 150, kTokens, 1);
  const auto held = layer.cache.rows(1).positions;
  for (const int64_t p : {3, 4, 5, 150})
    EXPECT_TRUE(std::ranges::binary_search(held, p)) << p << " of " << held.size();
  EXPECT_LT(held.size(), 60u);

  Shape three = shape;
  three.layers = 3;
  test::Harness harness(three, policy);
  harness.cache().protect(o.protect);
  harness.cache().start_error_probe(o.error_probe, o.seed);
  for (int l = 0; l < 3; ++l) harness.step(rows, 0, 150, 30, l);
  harness.cache().protect({&more, 1});
  for (int l = 0; l < 3; ++l) harness.step(rows, 150, kTokens, 1, l);
  const AttentionError expected = harness.cache().attention_errors()[2];
  const auto found = layer.cache.attention_error();
  ASSERT_TRUE(found);
  EXPECT_GT(found->steps, 10u);
  EXPECT_EQ(found->steps, expected.steps);
  EXPECT_EQ(found->estimate, expected.estimate);
  EXPECT_EQ(found->high, expected.high);
}

/// A layer in the middle, with everything on.
LayerCacheOptions middle_layer(const Shape& shape, const std::string& policy) {
  LayerCacheOptions o = options_of(shape, policy);
  o.layers = 4, o.layer = 2;
  o.scale = 0.2;
  o.protect = {{3, 6}};
  o.error_probe = {64, 2, 0};
  return o;
}

TEST(LayerCache, SavedItGoesOnBitForBit) {
  const Shape shape;
  const Rows rows(shape, 300, 12);
  for (const char* policy : kPolicies)
    for (const size_t count : {0, 1, 63, 150}) {
      const LayerCacheOptions o = middle_layer(shape, policy);
      Layer layer(shape, policy), other(shape, policy);
      layer.cache = LayerCache(layer.runtime, o);
      layer.step(rows, 0, count / 2, 20);
      if (count > 0) layer.cache.end_prompt();
      layer.step(rows, count / 2, count, 1);
      const auto bytes = layer.cache.save();
      other.cache = LayerCache::restore(other.runtime, o, bytes);
      EXPECT_EQ(other.cache.tokens(), count);
      for (Layer* l : {&layer, &other}) {
        l->step(rows, count, count + 60, 20);
        l->cache.end_prompt();
      }
      EXPECT_EQ(other.step(rows, count + 60, 300, 1), layer.step(rows, count + 60, 300, 1))
          << policy << " after " << count;
      EXPECT_EQ(other.cache.save(), layer.cache.save()) << policy << " after " << count;
    }
}

TEST(LayerCache, SavedBytesAreRefusedOrHarmless) {
  const Shape shape;
  const Rows rows(shape, 120, 13);
  const char* policy = "express(heavy=0,s=16)+int4,window=8";
  const LayerCacheOptions good = middle_layer(shape, policy);
  Layer layer(shape, policy);
  layer.cache = LayerCache(layer.runtime, good);
  layer.step(rows, 0, 100, 20);
  const auto bytes = layer.cache.save();
  const std::vector<std::pair<std::string, std::function<void(LayerCacheOptions&)>>> changes = {
      {"policy", [](auto& o) { o.policy = Policy::parse("express(heavy=0,s=16)+int8,window=8"); }},
      {"shape", [](auto& o) { o.query_heads = 4; }},
      {"layer", [](auto& o) { o.layer = 1; }},
      {"context", [](auto& o) { o.context = 999; }},
      {"per cent of", [](auto& o) { o.percent_of = 500; }},
      {"seed", [](auto& o) { o.seed = 2; }},
      {"rope_theta", [](auto& o) { o.rope_theta = 0; }},
      {"scale", [](auto& o) { o.scale = 0; }},
      {"error probe", [](auto& o) { o.error_probe.every = 3; }},
      {"protected tokens", [](auto& o) {
         o.protect = {{3, 7}};
       }}};
  for (const auto& [name, change] : changes) {
    LayerCacheOptions o = good;
    change(o);
    refused(ErrorCode::kInvalidArgument, "its " + name,
            [&] { LayerCache::restore(layer.runtime, o, bytes); });
  }
  const size_t before = layer.runtime->bytes_in_use();
  size_t taken = 0, refusals = 0;
  const auto tried = [&](std::span<const std::byte> bad, bool may_pass) {
    try {
      LayerCache restored = LayerCache::restore(layer.runtime, good, bad);
      EXPECT_TRUE(may_pass);
      std::swap(layer.cache, restored);
      layer.step(rows, 100, 103, 1);
      std::swap(layer.cache, restored);
      ++taken;
    } catch (const Error& e) {
      EXPECT_NE(e.code(), ErrorCode::kInternal) << e.what();
      ++refusals;
    }
  };
  for (size_t at = 0; at < bytes.size(); at += at < 600 ? 1 : 41) {
    auto bad = bytes;
    bad[at] ^= std::byte{0x55};
    tried(bad, false);
    tried(std::span(bytes).first(at), false);
  }
  EXPECT_EQ(taken, 0u);
  // Digests made right again: what is wrong must be seen by its meaning, or do no harm.
  const auto head = [&] {
    const auto state_of = [&](size_t from) { return std::span(bytes).subspan(from); };
    for (size_t at = 16; at + 16 < bytes.size(); ++at) {
      const Digest digest = digest_of(state_of(at + 16));
      if (std::memcmp(bytes.data() + at, &digest, 16) == 0) return at;
    }
    return bytes.size();
  }();
  ASSERT_LT(head, bytes.size());
  for (size_t at = head + 16; at < bytes.size(); at += at < head + 200 ? 1 : 29) {
    auto bad = bytes;
    bad[at] ^= std::byte{0x55};
    const Digest digest = digest_of(std::span(bad).subspan(head + 16));
    std::memcpy(bad.data() + head, &digest, 16);
    tried(bad, true);
  }
  EXPECT_GT(taken, 20u);
  EXPECT_GT(refusals, 100u);
  EXPECT_EQ(layer.runtime->bytes_in_use(), before);
}

}  // namespace
}  // namespace pith
