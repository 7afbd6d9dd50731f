// Rows and scores of a layer's cache, read back.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "layer/test_layer.h"
#include "pith/error.h"
#include "session/test_refused.h"

namespace pith {
namespace {

using test::options_of;
using test::refused;
using test::Rows;
using test::Shape;
using Layer = test::LayerUnderTest;

constexpr size_t kTokens = 200;

// Codecs before and after RoPE, rows that moved, protected and windowed ones.
TEST(LayerCache, ReadsRowsAsTheyCame) {
  const Shape shape;
  const Rows rows(shape, kTokens, 21);
  struct Case {
    const char* policy;
    double error;
  };
  for (const Case& c :
       {Case{"exact+f32", 0}, Case{"exact", 1e-3},
        Case{"knorm(budget=40,interval=8)+f32,sink=2,window=16", 0},
        Case{"balancekv(heavy=0,rate=0.25)+f32,window=16", 0}, Case{"exact+int8,window=16", 2e-2},
        Case{"exact+kvquant(bits=4,calibrate=32)", 0.3}, Case{"exact+kvtc(bits=6)", 0.2},
        Case{"exact+int8(center=32,pre_rope=true),window=16", 2e-2},
        Case{"keydiff(budget=64,interval=32)+int8,window=20", 2e-2}}) {
    Layer layer(shape, c.policy);
    LayerCacheOptions o = options_of(shape, c.policy);
    o.protect = {{60, 63}};
    layer.cache = LayerCache(layer.runtime, o);
    layer.step(rows, 0, kTokens, 50);
    layer.cache.end_prompt();
    for (int g = 0; g < shape.kv_heads; ++g) {
      const HeadRows held = layer.cache.rows(g);
      const size_t n = held.positions.size();
      std::vector<float> k(n * layer.dim), v(n * layer.dim);
      layer.cache.read_rows(g, k.data(), v.data());
      double wrong = 0, size = 0;
      for (size_t i = 0; i < n; ++i)
        for (size_t d = 0; d < layer.dim; ++d) {
          const size_t at = static_cast<size_t>(held.positions[i]) * shape.kv_size() +
                            static_cast<size_t>(g) * layer.dim + d;
          wrong += std::pow(k[i * layer.dim + d] - rows.k[at], 2) +
                   std::pow(v[i * layer.dim + d] - rows.v[at], 2);
          size += std::pow(rows.k[at], 2) + std::pow(rows.v[at], 2);
        }
      EXPECT_LE(std::sqrt(wrong / size), c.error) << c.policy << ", head " << g;
      EXPECT_LE(n, kTokens);
    }
  }
}

TEST(LayerCache, ScoresSayWhichRowsWouldStay) {
  const Shape shape;
  const Rows rows(shape, kTokens, 22);
  for (const std::string name :
       {"knorm", "keydiff", "snapkv", "h2o", "tova", "expected_attention"}) {
    const std::string exact_rows = ",interval=1000)+f32,sink=0,window=8";
    Layer all(shape, name + "(budget=1000" + exact_rows),
        few(shape, name + "(budget=50" + exact_rows);
    all.step(rows, 0, kTokens, kTokens);
    few.step(rows, 0, kTokens, kTokens);
    few.cache.end_prompt();
    for (int g = 0; g < shape.kv_heads; ++g) {
      const std::vector<double> scores = all.cache.scores(g);
      ASSERT_EQ(scores.size(), kTokens) << name;
      std::vector<int64_t> order(kTokens - 8);
      std::iota(order.begin(), order.end(), 0);
      for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(std::isinf(scores[kTokens - 1 - i]));
      std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        const double x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
        return x != y ? x > y : a > b;
      });
      order.resize(50);
      for (size_t i = kTokens - 8; i < kTokens; ++i) order.push_back(static_cast<int64_t>(i));
      std::sort(order.begin(), order.end());
      EXPECT_EQ(few.cache.rows(g).positions, order) << name;
    }
  }
  Layer sampled(shape, "uniform(budget=32)");
  sampled.step(rows, 0, kTokens, kTokens);
  refused(ErrorCode::kUnsupported, "does not score", [&] { sampled.cache.scores(0); });
  refused(ErrorCode::kInvalidArgument, "KV head 9", [&] { sampled.cache.scores(9); });
}

// methods() and the cache of each selector agree.
TEST(MethodInfo, SaysWhetherRowsHaveWeightsAndScores) {
  const Shape shape;
  const Rows rows(shape, kTokens, 23);
  for (const MethodInfo& info : methods()) {
    if (!info.is_selector) continue;
    std::string policy = info.name;
    if (!info.size_parameter.empty()) policy += "(" + info.size_parameter + "=32)";
    Layer layer(shape, policy);
    layer.step(rows, 0, kTokens, 50);
    layer.cache.end_prompt();
    bool weighted = false;
    for (int g = 0; g < shape.kv_heads; ++g) {
      const HeadRows held = layer.cache.rows(g);
      weighted |= std::ranges::any_of(held.log_weights, [](float w) { return w != 0; });
    }
    EXPECT_EQ(info.weighted, weighted) << info.name;
    LayerCacheOptions o = options_of(shape, policy);
    o.rope_theta = 0;
    const auto without = [&] { LayerCache(layer.runtime, o); };
    if (info.needs_rope)
      refused(ErrorCode::kUnsupported, "RoPE", without);
    else
      EXPECT_NO_THROW(without()) << info.name;
  }
}

// methods() and the rows of each codec agree.
TEST(MethodInfo, SaysWhatCodecsOffer) {
  const Shape shape;
  const Rows rows(shape, kTokens, 23);
  size_t codecs = 0, shared = 0, unturned = 0;
  for (const MethodInfo& info : methods()) {
    EXPECT_EQ(info.is_selector, info.offers.empty()) << info.name;
    EXPECT_EQ(info.is_selector, !info.needs.empty()) << info.name;
    EXPECT_EQ(info.is_selector, info.block_rows == 0) << info.name;
    if (info.is_selector) continue;
    ++codecs, shared += info.shares, unturned += info.keys_before_rope;
    EXPECT_EQ(info.needs_rope, info.keys_before_rope) << info.name;
    EXPECT_TRUE(!info.shares || info.block_rows > 1) << info.name << ": with whom?";
    const std::string policy = "exact+" + info.name;
    LayerCacheOptions o = options_of(shape, policy);
    o.rope_theta = 0;
    const auto runtime = std::make_shared<Runtime>();
    const auto without = [&] { LayerCache(runtime, o); };
    if (info.needs_rope)
      refused(ErrorCode::kUnsupported, "RoPE", without);
    else
      EXPECT_NO_THROW(without()) << info.name;
  }
  EXPECT_GT(codecs, 10u);
  EXPECT_GT(shared, 2u);
  EXPECT_GT(unturned, 0u);
}

}  // namespace
}  // namespace pith
