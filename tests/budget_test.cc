// A budget in bytes is a promise: at every step of a long stream a cache holds at most what was
// asked, everything included, and much of it is used.

#include <gtest/gtest.h>

#include <tuple>

#include "cache_harness.h"
#include "pith/error.h"

namespace pith {
namespace {

using test::Harness;
using test::Rows;
using test::Shape;

constexpr size_t kTokens = 10000, kPrompt = 1000, kBytes = 160 * 1024;

Shape small() {
  Shape s;
  s.head_dim = 64;
  s.group = 1;
  s.kv_heads = 1;
  s.layers = 2;
  s.context = kTokens;
  return s;
}

/// Of the second layer nothing is asked but its share: pyramids differ between layers.
const Rows& stream() {
  static const Rows rows(small(), kTokens, 5);
  return rows;
}

class Promise : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  /// Prefill, its end, and then token by token; `check` after every step.
  template <class F>
  void run(Harness& h, F&& check) {
    const Rows& rows = stream();
    for (size_t t = 0; t < kTokens;) {
      const size_t n = t < kPrompt ? 100 : 1;
      for (int layer = 0; layer < small().layers; ++layer) h.step(rows, t, t + n, n, layer);
      t += n;
      check(h.cache().ledger());
      if (t == kPrompt) h.cache().end_prefill();
      if (HasFatalFailure()) FAIL() << "at token " << t;
    }
  }
  std::string policy(const std::string& budget) const {
    Policy p = Policy::parse(std::get<0>(GetParam()) + "+" + std::get<1>(GetParam()));
    p.set_budget(budget);
    return p.to_string();
  }
};

TEST_P(Promise, BytesHoldAtEveryStep) {
  Harness h(small(), policy(std::to_string(kBytes / 1024) + "KiB"));
  EXPECT_LE(h.cache().estimate(kTokens).cache_bytes(), kBytes) << "inspect says what is asked";
  size_t most = 0;
  run(h, [&](const Ledger& ledger) {
    ASSERT_LE(ledger.cache_bytes(), kBytes) << ledger.tokens;
    most = std::max(most, ledger.cache_bytes());
  });
  RecordProperty("share", std::to_string(100 * most / kBytes));
  // Coresets and halvings come in powers of two; KIVI's groups may each be down to one row.
  EXPECT_GT(most, kBytes / 5);
}

std::vector<std::string> sized_selectors() {
  std::vector<std::string> names;
  for (const SelectorRow& row : selector_rows())
    if (!row.info.size_parameter.empty()) names.push_back(row.info.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Promise,
                         testing::Combine(testing::ValuesIn(sized_selectors()),
                                          testing::Values("f16", "int4", "kivi")),
                         [](const auto& i) {
                           return std::get<0>(i.param) + "_" + std::get<1>(i.param);
                         });

TEST(Budget, RowsHoldAtEveryStepUnlessAnIntervalIsGiven) {
  for (const char* name : {"h2o", "snapkv", "tova", "keydiff", "knorm", "uniform"}) {
    Harness h(small(), std::string(name) + "(budget=100),sink=4,window=16");
    const Rows& rows = stream();
    size_t most = 0;
    for (size_t t = 0; t < 2000; t += t < kPrompt ? 100 : 1) {
      const size_t n = t < kPrompt ? 100 : 1;
      for (int layer = 0; layer < small().layers; ++layer) h.step(rows, t, t + n, n, layer);
      if (t + n == kPrompt) h.cache().end_prefill();
      most = std::max(most, h.cache().rows(0, 0).positions.size());
    }
    EXPECT_EQ(most, 120u) << name;
  }
}

TEST(Budget, IntervalsAreCountedInBytes) {
  Harness rows(small(), "knorm(budget=100,interval=30),sink=0,window=8");
  EXPECT_EQ(rows.cache().estimate(kTokens).rows_kept, 2u * 138) << "rows: beyond the budget";
  Harness bytes(small(), "knorm(budget=160KiB,interval=30),sink=0,window=8");
  EXPECT_LE(bytes.cache().estimate(kTokens).cache_bytes(), kBytes) << "bytes: within it";
  EXPECT_THROW(Harness(small(), "knorm(budget=10KiB,interval=3000),sink=0,window=8"), Error);
}

TEST(Budget, HeavyRowsAreCountedInBytes) {
  for (const char* selector : {"uniform", "express", "balancekv"}) {
    const std::string policy = std::string(selector) +
                               (std::string(selector) == "express" ? "(s=" : "(budget=") +
                               "160KiB,heavy=50,heavy_interval=20)";
    Harness h(small(), policy);
    EXPECT_LE(h.cache().estimate(kTokens).cache_bytes(), kBytes) << policy;
  }
}

}  // namespace
}  // namespace pith
