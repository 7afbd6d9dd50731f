// The probe against attention in double over the rows that a cache says it holds, and what must
// hold of it whatever the policy.

#include "tools/eval/probe.h"
#include "paths.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "cache_harness.h"
#include "pith/error.h"

namespace pith {
namespace {

using test::Harness;
using test::Rows;
using test::Shape;

constexpr size_t kTokens = 400, kQueries = 5;

struct Setting {
  Shape shape;
  Rows rows{shape, kTokens, 11};
  ProbeOptions options;

  explicit Setting(std::vector<std::string> policies) {
    for (const std::string& p : policies) options.policies.push_back(Policy::parse(p));
    options.queries = kQueries;
    options.chunk = 128;
  }
  LayerStep step() const { return {0, rows.q.data(), rows.k.data(), rows.v.data(), kTokens}; }
  ProbeReport run(int threads = 2, const Rope* rope = nullptr) const {
    Harness h(shape, "exact", 1, threads);
    Probe probe(h.context(), {1, shape.query_heads(), shape.kv_heads, shape.head_dim, {}, kTokens},
                rope, options);
    EXPECT_TRUE(probe.measure(step()));
    return probe.report();
  }
};

// Answers [kQueries, H, D] of queries that see `held` and, causally, their own rows.
std::vector<double> answers(const Setting& s, const std::vector<HeadRows>& held) {
  std::vector<double> out;
  for (size_t t = kTokens - kQueries; t < kTokens; ++t) {
    std::vector<HeadRows> seen = held;
    for (HeadRows& head : seen)
      for (size_t own = kTokens - kQueries; own <= t; ++own) {
        head.positions.push_back(static_cast<int64_t>(own));
        head.log_weights.push_back(0);
        head.roles.push_back(Role::kBoth);
      }
    const auto one = test::oracle_all(s.shape, s.rows, t, t + 1, seen);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

// |got - exact| / |exact| of one KV head.
double head_error(const Shape& shape, const std::vector<double>& got,
                  const std::vector<double>& exact, size_t head) {
  const auto group = static_cast<size_t>(shape.group * shape.head_dim);
  std::vector<double> a, b;
  for (size_t i = 0; i < got.size(); ++i) {
    if (i / group % static_cast<size_t>(shape.kv_heads) != head) continue;
    a.push_back(got[i]);
    b.push_back(exact[i]);
  }
  return test::relative_error(a, b);
}

TEST(Probe, ErrorsAreThoseOfAttentionInDouble) {
  for (const char* policy :
       {"uniform(budget=60)+f32,sink=4,window=16", "streaming_llm(window=90)+f32",
        "knorm(budget=40)+f32", "uniform(budget=60)+f32,window=8;heads=1:local(window=33)+f32"}) {
    const Setting s({policy});
    const ProbeReport report = s.run();
    Harness h(s.shape, policy, s.options.seed + 1);
    h.append(s.rows, 0, kTokens - kQueries, 77);
    h.cache().end_prefill();
    const auto held = test::held_rows(h.cache(), s.shape);
    const std::vector<HeadRows> all(2, test::all_rows(kTokens - kQueries));
    const auto exact = answers(s, all), got = answers(s, held);
    const ProbeTrial& trial = report.policies[0].layers[0][1];
    for (size_t g = 0; g < 2; ++g) {
      EXPECT_NEAR(trial.errors[g], head_error(s.shape, got, exact, g), 1e-5) << policy;
      EXPECT_GT(trial.errors[g], 0.01) << "a test that sees nothing proves nothing";
      EXPECT_EQ(trial.rows[g], held[g].positions.size()) << policy;
    }
    EXPECT_EQ(trial.ledger.rows_kept, held[0].positions.size() + held[1].positions.size());
  }
}

TEST(Probe, ExactRowsHaveNoErrorAndNothingBesideThem) {
  const ProbeReport report = Setting({"exact+f32", "exact"}).run();
  EXPECT_EQ(report.null_error, 0);
  for (const ProbeTrial& t : report.policies[0].layers[0]) {
    EXPECT_EQ(t.errors, (std::vector<double>{0, 0}));
    EXPECT_TRUE(t.uniform.empty());
    EXPECT_NEAR(t.ledger.effective_bits(), 32, 0.01);
  }
  const double rounding = report.policies[1].layers[0][0].errors[0];
  EXPECT_GT(rounding, 1e-6);
  EXPECT_LT(rounding, 1e-3);
  EXPECT_FALSE(report.policies[1].random);
}

TEST(Probe, TheSampleBesideAPolicyHoldsAsManyRows) {
  // uniform beside itself is itself; rows, sink and window are taken over.
  const ProbeReport self = Setting({"uniform(budget=60),sink=3,window=17"}).run();
  EXPECT_TRUE(self.policies[0].random);
  for (const ProbeTrial& t : self.policies[0].layers[0]) EXPECT_EQ(t.errors, t.uniform);

  // A policy that keeps only the newest is set against uniform with its default sink and window.
  const ProbeReport local = Setting({"local(window=100)", "uniform(budget=32)"}).run();
  for (size_t s = 0; s < 3; ++s)
    EXPECT_EQ(local.policies[0].layers[0][s].uniform, local.policies[1].layers[0][s].errors);
  EXPECT_TRUE(Setting({"local(window=68)"}).run().policies[0].layers[0][0].uniform.empty());

  // A head that keeps all its rows keeps them in the sample too.
  const ProbeReport mixed = Setting({"uniform(budget=60)+f32;heads=1:exact+f32"}).run();
  const ProbeTrial& t = mixed.policies[0].layers[0][0];
  EXPECT_EQ(t.rows, (std::vector<size_t>{128, kTokens - kQueries}));
  EXPECT_LT(t.uniform[1], 1e-6);
  EXPECT_GT(t.uniform[0], 0.01);
}

TEST(Probe, ThreadsChangeNothingAndSeedsOnlyWhatIsRandom) {
  const Setting s(
      {"h2o(budget=50)", "express(heavy=0,s=64),sink=4,window=16", "snapkv(budget=50)"});
  const ProbeReport one = s.run(1), three = s.run(3);
  for (size_t p = 0; p < 3; ++p)
    for (size_t i = 0; i < 3; ++i) {
      const ProbeTrial &a = one.policies[p].layers[0][i], &b = three.policies[p].layers[0][i];
      EXPECT_EQ(a.errors, b.errors) << p;
      EXPECT_EQ(a.uniform, b.uniform) << p;
    }
  EXPECT_FALSE(one.policies[0].random);
  EXPECT_TRUE(one.policies[1].random);
  const auto& h2o = one.policies[0].layers[0];
  EXPECT_EQ(h2o[0].errors, h2o[2].errors);
  EXPECT_NE(h2o[0].uniform, h2o[2].uniform);
}

TEST(Probe, EveryMethodAndItsCompositionsCanBeProbed) {
  std::vector<std::string> selectors, policies;
  for (const SelectorRow& row : selector_rows()) {
    Policy policy = Policy::parse(row.info.name);
    if (!row.info.size_parameter.empty()) policy.set_budget("128");
    selectors.push_back(policy.to_string());
  }
  for (const CodecRow& row : codec_rows())
    for (const std::string& selector : selectors)
      policies.push_back(selector + "+" + row.info.name);
  Setting s(policies);
  s.options.seeds = 1;
  const Rope rope(static_cast<size_t>(s.shape.head_dim), 10000.0);
  const ProbeReport report = s.run(2, &rope);
  for (const ProbePolicy& p : report.policies) {
    const ProbeTrial& t = p.layers[0][0];
    for (size_t g = 0; g < 2; ++g) {
      EXPECT_LT(t.errors[g], 3) << p.policy;  // false for NaN too
      EXPECT_LE(t.rows[g], kTokens - kQueries) << p.policy;
      EXPECT_EQ(t.uniform.empty(), t.rows[g] == kTokens - kQueries) << p.policy;
    }
    EXPECT_GT(t.ledger.effective_bits(), 0) << p.policy;
    EXPECT_EQ(t.ledger.rows_kept, t.rows[0] + t.rows[1]) << p.policy;
  }
}

TEST(Probe, RefusesWhatCannotBeMeasured) {
  Setting s({"exact"});
  s.options.queries = kTokens;
  EXPECT_THROW(s.run(), Error);
  s.options.queries = 0;
  EXPECT_THROW(s.run(), Error);
  s.options.queries = kQueries;
  s.options.seeds = 0;
  EXPECT_THROW(s.run(), Error);
  EXPECT_THROW(Setting({"streaming_llm(rope=cache)"}).run(), Error) << "no RoPE is known";
}

TEST(Probe, EveryLayerOfAModelIsMeasuredUntilSomebodyStopsIt) {
  const auto model = Model::load(repo_dir() / "models/demo", false);
  std::vector<int32_t> tokens(200);
  std::iota(tokens.begin(), tokens.end(), 100);
  Harness h(Shape{}, "exact", 1, 2);
  ProbeOptions options;
  options.policies = {Policy::parse("exact"),
                      Policy::parse("pyramidkv(budget=60,beta=2),window=8")};
  options.queries = 40;
  size_t last = 0, end = 0;
  const auto report =
      probe_model(h.context(), *model, tokens, options, [&](size_t done, size_t total) {
        EXPECT_GE(done, last);
        last = done;
        end = total;
        return true;
      });
  ASSERT_TRUE(report);
  EXPECT_EQ(report->null_error, 0);
  EXPECT_EQ(end, 8u * (2 * 3 + 1));
  for (const auto& layer : report->policies[0].layers) {
    ASSERT_EQ(layer.size(), 3u);
    for (double e : layer[0].errors) EXPECT_LT(e, 1e-3);
  }
  const auto& pyramid = report->policies[1].layers;
  EXPECT_GT(pyramid[0][0].rows[0], pyramid[7][0].rows[0]) << "the layer's number reaches selectors";
  EXPECT_FALSE(
      probe_model(h.context(), *model, tokens, options, [](size_t, size_t) { return false; }));
}

}  // namespace
}  // namespace pith
