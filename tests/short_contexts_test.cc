// A share is never refused for being small: every policy that this program carries, tuned ones too,
// works from the first token on, at every length and while a text grows beyond what its shares are
// of.

#include <gtest/gtest.h>

#include <cmath>

#include "cache_harness.h"
#include "pith/error.h"
#include "pith/presets.h"
#include "pith/session.h"
#include "session/presets_table.h"

namespace pith {
namespace {

/// SmolLM2's, whose layers and heads the tuned policies name.
test::Shape shape_of() {
  test::Shape s;
  s.layers = 30, s.kv_heads = 3, s.group = 3;
  return s;
}

std::vector<std::string> all_policies() {
  std::vector<std::string> all{"express(s=1%)",
                               "balancekv(budget=1%)",
                               "balancekv(budget=1%,heavy=0)",
                               "buzz(T=1%)",
                               "snapkv(budget=1%,interval=64)",
                               "h2o(budget=1%)",
                               "pyramidkv(budget=1%)",
                               "adakv(budget=1%)",
                               "uniform(budget=1%)",
                               "uniform(budget=1%,heavy=1%)",
                               "streaming_llm(window=1%)",
                               "local(window=1%)"};
  for (const auto* texts : {&kPresetsForAny, &kPresetsOfModels})
    for (const std::string_view text : *texts) {
      const Presets presets = Presets::parse(text, "t");
      for (const Preset& p : presets.all())
        if (p.policy.find("csr") == std::string::npos) all.push_back(p.policy);  // needs a file
    }
  return all;
}

/// Reads `tokens` in a prompt of half of them and then one by one.
void read(const std::string& policy, size_t percent_of, size_t context, size_t tokens) {
  SCOPED_TRACE(policy + " of " + std::to_string(percent_of) + " in " + std::to_string(context));
  const test::Shape s = shape_of();
  static const test::Rows rows(s, 160, 5);
  static const Rope rope(static_cast<size_t>(s.head_dim), 10000.0);
  ThreadPool pool(1);
  MemoryCounter memory;
  const Context place{pool, memory, kernels_for()};
  CacheShape shape{s.layers, s.query_heads(), s.kv_heads, s.head_dim, {}, context};
  shape.percent_of = percent_of;
  try {
    KvCache cache(place, shape, Policy::parse(policy), 1, &rope);
    std::vector<float> out(tokens * s.q_size());
    const size_t prompt = (tokens + 1) / 2;
    for (size_t t = 0, n = prompt; t < tokens; t += n, n = 1)
      for (int layer = 0; layer < s.layers; ++layer)
        cache.step(layer, out.data() + t * s.q_size(), rows.q.data() + t * s.q_size(),
                   rows.k.data() + t * s.kv_size(), rows.v.data() + t * s.kv_size(), n);
    for (const float x : out) ASSERT_TRUE(std::isfinite(x));
  } catch (const Error& e) {
    FAIL() << e.what();
  }
}

TEST(ShortContexts, EveryPolicyReadsEveryLength) {
  for (const std::string& policy : all_policies())
    for (const size_t tokens : {1, 2, 7, 34}) read(policy, 0, tokens, tokens);
}

TEST(ShortContexts, TextsGrowBeyondWhatSharesAreOf) {
  for (const std::string& policy : all_policies()) read(policy, 1, 4096, 100);
}

TEST(ShortContexts, CostsAreKnownAtEveryLength) {
  ModelConfig c;
  c.layers = 30, c.hidden = 576, c.query_heads = 9, c.kv_heads = 3, c.head_dim = 64, c.vocab = 10;
  c.context = 8192, c.sliding_window.assign(30, 0);
  for (const std::string& policy : all_policies()) {
    StandaloneOptions o;
    o.policy = Policy::parse(policy);
    size_t before = 0;
    for (const size_t context : {1, 2, 3, 5, 16, 63, 100, 255, 256, 300, 479, 480, 1000, 8192}) {
      o.context = context;
      try {
        const size_t bytes = estimate_ledger(c, o, context).cache_bytes();
        if (context < 256) continue;
        EXPECT_GE(2 * bytes, before) << policy << " at " << context;
        before = bytes;
      } catch (const Error& e) {
        ADD_FAILURE() << policy << " at " << context << ": " << e.what();
      }
    }
  }
}

}  // namespace
}  // namespace pith
