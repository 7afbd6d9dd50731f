// A budget in bytes is a promise: at every step of a long stream a cache holds at most what was
// asked, everything included, and much of it is used.

#include <gtest/gtest.h>

#include <cctype>
#include <tuple>

#include "cache_harness.h"
#include "pith/error.h"
#include "policy/resolved.h"

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

/// A selector, perhaps with parameters, and a codec.
class Promise : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  /// Prefill, its end, and then token by token; `check` after every step.
  template <class F>
  void run(Harness& h, size_t tokens, F&& check) {
    const Rows& rows = stream();
    for (size_t t = 0; t < tokens;) {
      const size_t n = t < kPrompt ? 100 : 1;
      for (int layer = 0; layer < small().layers; ++layer) h.step(rows, t, t + n, n, layer);
      t += n;
      check();
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
  run(h, kTokens, [&] {
    const Ledger ledger = h.cache().ledger();
    ASSERT_LE(ledger.cache_bytes(), kBytes) << ledger.tokens;
    most = std::max(most, ledger.cache_bytes());
  });
  RecordProperty("share", std::to_string(100 * most / kBytes));
  // Coresets and halvings come in powers of two; KIVI's groups may each be down to one row.
  EXPECT_GT(most, kBytes / 5);
}

TEST_P(Promise, RowsHoldAtEveryStep) {
  constexpr size_t kRows = 400;
  const auto& [selector, codec] = GetParam();
  size_t asked = kRows;
  // Heavy rows are asked for beside the others, and s is the paper's: 1.5 s rows, s a power of two.
  if (selector.starts_with("express")) asked = 256 * 3 / 2;
  if (selector.find("heavy=50") != std::string::npos) asked += 50;
  // Where the budget is the window: rows that wait for their group, and sinks.
  const bool window = selector_row(Policy::parse(selector).rules[0].selector.name).owns_window;
  if (window) asked += (codec == "kivi" ? 31 : 0) + (selector == "streaming_llm" ? 4 : 0);
  Harness h(small(), policy(std::to_string(kRows)));
  const auto layers = static_cast<size_t>(small().layers);
  size_t most = 0;
  run(h, kTokens / 4, [&] {
    size_t held = 0;
    for (int layer = 0; layer < small().layers; ++layer) {
      const auto rows = h.cache().held(layer, 0);
      held += window ? rows.sink + rows.body + rows.window : rows.body;
    }
    ASSERT_LE(held, asked * layers);
    most = std::max(most, held);
  });
  // Halvings are in powers of two, and made for all of the context.
  EXPECT_GT(most, asked * layers / (selector.starts_with("balancekv") ? 8 : 2));
}

std::vector<std::string> sized_selectors() {
  std::vector<std::string> names;
  for (const SelectorRow& row : selector_rows())
    if (!row.info.size_parameter.empty()) names.push_back(row.info.name);
  for (const char* name : {"uniform", "express", "balancekv"})
    names.push_back(std::string(name) + "(heavy=50)");
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Promise,
                         testing::Combine(testing::ValuesIn(sized_selectors()),
                                          testing::Values("f16", "int4", "kivi")),
                         [](const auto& i) {
                           std::string name = std::get<0>(i.param) + "_" + std::get<1>(i.param);
                           std::erase_if(name, [](char c) { return c != '_' && !std::isalnum(c); });
                           return name;
                         });

/// All of a body is used where a row that comes takes the place of others.
TEST(Budget, ScoresUseAllOfTheirRows) {
  for (const char* name : {"h2o", "snapkv", "tova", "keydiff", "knorm", "uniform"}) {
    Harness h(small(), std::string(name) + "(budget=100),sink=4,window=16");
    h.append(stream(), 0, 2000, 100);
    size_t most = 0;
    for (size_t t = 2000; t < 2200; ++t) {
      h.append(stream(), t, t + 1, 1);
      most = std::max(most, h.cache().rows(0, 0).positions.size());
    }
    EXPECT_EQ(most, 120u) << name;
  }
}

// A per cent may be of fewer tokens than there will be; what must fit is the whole stream.
TEST(Budget, HalvingsFitTheStreamWhateverPerCentAreOf) {
  CacheShape shape{1, 1, 1, 64, {}, kTokens};
  shape.percent_of = kTokens / 10;
  for (const char* budget : {"400", "40%", "160KiB"}) {
    SCOPED_TRACE(budget);
    const std::string text =
        "balancekv(heavy=0,budget=" + std::string(budget) + "),sink=0,window=0";
    const ResolvedPolicy policy(Policy::parse(text), shape, 1, Device::kCpu);
    const Ledger most = policy.estimate(kTokens);
    if (std::string(budget) == "160KiB")
      EXPECT_LE(most.cache_bytes(), kBytes);
    else
      EXPECT_LE(most.rows_kept, 400u);
  }
}

TEST(Budget, IntervalsAreCountedInBytes) {
  Harness rows(small(), "knorm(budget=100,interval=30),sink=0,window=8");
  EXPECT_EQ(rows.cache().estimate(kTokens).rows_kept, 2u * 138) << "rows: beyond the budget";
  Harness bytes(small(), "knorm(budget=160KiB,interval=30),sink=0,window=8");
  EXPECT_LE(bytes.cache().estimate(kTokens).cache_bytes(), kBytes) << "bytes: within it";
  EXPECT_THROW(Harness(small(), "knorm(budget=10KiB,interval=3000),sink=0,window=8"), Error);
}

TEST(Budget, HeavyIntervalsAreOnTopOfRowsAndWithinBytes) {
  Harness rows(small(), "uniform(budget=100,heavy=50,heavy_interval=20),sink=0,window=8");
  EXPECT_EQ(rows.cache().estimate(kTokens).rows_kept, 2u * 178);
  Harness alone(small(), "uniform(budget=100,heavy=50),sink=0,window=8");
  EXPECT_EQ(alone.cache().estimate(kTokens).rows_kept, 2u * 158);
  for (const char* selector : {"uniform", "express", "balancekv"}) {
    const std::string policy = std::string(selector) +
                               (std::string(selector) == "express" ? "(s=" : "(budget=") +
                               "160KiB,heavy=50,heavy_interval=20)";
    Harness h(small(), policy);
    EXPECT_LE(h.cache().estimate(kTokens).cache_bytes(), kBytes) << policy;
  }
}

// The GPU codes rows 32 at a time where the CPU does not: those that wait are counted too. Tables
// that all heads share come on top (docs/decisions/0095).
TEST(Budget, BytesHoldForEveryCodecOnBothDevices) {
  const CacheShape shape{2, 4, 2, 64, {}, kTokens};
  constexpr size_t kMost = 1 << 20;
  for (const Device device : {Device::kCpu, Device::kCuda})
    for (const std::string& selector : sized_selectors())
      for (const CodecRow& codec : codec_rows()) {
        Policy policy = Policy::parse(selector + "+" + codec.info.name);
        policy.set_budget("1MiB");
        SCOPED_TRACE(policy.to_string() + (device == Device::kCpu ? "" : " on the GPU"));
        try {
          const ResolvedPolicy resolved(policy, shape, 1, device);
          for (const size_t tokens : {500, 2000, 10000}) {
            const Ledger most = resolved.estimate(tokens);
            EXPECT_LE(most.cache_bytes() - most.shared, kMost) << tokens;
          }
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::kUnsupported) << e.what();
        }
      }
}

}  // namespace
}  // namespace pith
