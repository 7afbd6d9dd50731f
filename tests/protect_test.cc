// Protected rows under every selector: they stay, exact and with weight 1, and the policy's budget
// holds for the rest.

#include <gtest/gtest.h>

#include <tuple>

#include "cache_harness.h"
#include "pith/error.h"

namespace pith {
namespace {

using test::Harness;
using test::Rows;
using test::Shape;

constexpr size_t kRows = 400;
constexpr int kWindow = 16;

// A system prompt that the sink begins, a tool schema, a single token, rows in the window.
const std::vector<TokenRange>& ranges() {
  static const std::vector<TokenRange> all = {{0, 20}, {60, 131}, {200, 201}, {390, 393}};
  return all;
}
bool is_protected(int64_t position) {
  for (const TokenRange& r : ranges())
    if (position >= r.first && position < r.last) return true;
  return false;
}
constexpr size_t kProtected = 20 + 71 + 1 + 3;

// Selector, codec, group.
class Protect : public testing::TestWithParam<std::tuple<std::string, std::string, int>> {
 protected:
  const std::string& selector() const { return std::get<0>(GetParam()); }
  const std::string& codec() const { return std::get<1>(GetParam()); }
  Shape shape() const {
    Shape s;
    s.group = std::get<2>(GetParam());
    return s;
  }
  std::string policy(size_t rows) const {
    const MethodInfo& method = selector_row(selector()).info;
    std::string text = selector();
    if (method.size_parameter == "rate")
      text += rows >= kRows ? "(rate=1)" : "(rate=0.25,b=16)";
    else if (!method.size_parameter.empty())
      text += "(" + method.size_parameter + "=" + std::to_string(rows) +
              (has(method, "interval") ? ",interval=16)" : ")");
    text += "+" + codec() + ",sink=2";
    return selector_row(selector()).owns_window ? text
                                                : text + ",window=" + std::to_string(kWindow);
  }
  static bool has(const MethodInfo& method, const std::string& parameter) {
    for (const ParameterInfo& p : method.parameters)
      if (p.name == parameter) return true;
    return false;
  }
};

TEST_P(Protect, RowsStayWithWeightOneAndTheBudgetHoldsForTheRest) {
  const Rows rows(shape(), kRows, 1);
  Harness h(shape(), policy(32)), without(shape(), policy(32));
  h.cache().protect(ranges());
  h.step(rows, 0, kRows, 64);
  for (const HeadRows& head : test::held_rows(h.cache(), shape())) {
    size_t found = 0;
    for (size_t i = 0; i < head.positions.size(); ++i) {
      if (!is_protected(head.positions[i])) continue;
      ++found;
      EXPECT_EQ(head.log_weights[i], 0) << head.positions[i];
      EXPECT_EQ(head.roles[i], Role::kBoth) << head.positions[i];
    }
    EXPECT_EQ(found, kProtected);
    // The two rows that the sink holds anyway are not held twice.
    const size_t rest = kRows - (kProtected - 2);
    const Ledger most = without.cache().estimate(rest);
    EXPECT_LE(head.positions.size() - (kProtected - 2),
              most.rows_kept / static_cast<size_t>(shape().kv_heads));
  }
}

TEST_P(Protect, AttentionIsOverTheRowsReported) {
  if (!codec_row(codec()).dense) GTEST_SKIP() << "its rows are not the rows given";
  const Rows rows(shape(), kRows + 3, 2);
  Rows coded = rows;
  test::round_to(coded.k, *codec_row(codec()).dense);
  test::round_to(coded.v, *codec_row(codec()).dense);
  for (size_t budget : {size_t{32}, size_t{1} << 17}) {
    Harness h(shape(), policy(budget));
    h.cache().protect(ranges());
    h.step(rows, 0, kRows, 50);
    const auto held = test::held_rows(h.cache(), shape());
    const auto expected = test::oracle_all(shape(), coded, kRows, kRows + 3, held);
    EXPECT_LT(test::relative_error(h.attend(rows, kRows, kRows + 3), expected), 1e-5);
  }
}

TEST_P(Protect, ChunksDoNotMatter) {
  const Rows rows(shape(), kRows, 3);
  Harness whole(shape(), policy(32));
  whole.cache().protect(ranges());
  whole.append(rows, 0, kRows, kRows);
  for (size_t chunk : {1, 7, 64}) {
    Harness chunked(shape(), policy(32));
    chunked.cache().protect(ranges());
    chunked.append(rows, 0, kRows, chunk);
    for (int g = 0; g < shape().kv_heads; ++g) {
      EXPECT_EQ(whole.cache().rows(0, g).positions, chunked.cache().rows(0, g).positions);
      EXPECT_EQ(whole.cache().rows(0, g).log_weights, chunked.cache().rows(0, g).log_weights);
    }
    EXPECT_EQ(whole.attend(rows, 0, 1), chunked.attend(rows, 0, 1)) << chunk;
  }
}

TEST_P(Protect, TheLedgerAndTheEstimateCountThem) {
  const Rows rows(shape(), kRows, 4);
  Harness h(shape(), policy(32));
  h.cache().protect(ranges());
  for (size_t t = 0; t < kRows; t += 13) {
    const size_t n = std::min(t + 13, kRows);
    h.step(rows, t, n, 13);
    const Ledger ledger = h.cache().ledger(), most = h.cache().estimate(n);
    ASSERT_EQ(ledger.cache_bytes() + ledger.slack, h.memory().bytes(MemoryKind::kPayload) +
                                                       h.memory().bytes(MemoryKind::kMetadata) +
                                                       h.memory().bytes(MemoryKind::kShared));
    EXPECT_LE(ledger.rows_kept, most.rows_kept) << n;
    EXPECT_LE(ledger.cache_bytes(), most.cache_bytes()) << n;
  }
}

TEST_P(Protect, ACloneProtectsToo) {
  const Rows rows(shape(), kRows, 5);
  Harness h(shape(), policy(32));
  h.cache().protect(std::vector<TokenRange>{{10, 20}, {150, 170}});
  h.append(rows, 0, 100, 64);
  const auto copy = h.cache().clone();
  copy->protect(std::vector<TokenRange>{{200, 210}});
  copy->append(0, rows.k.data(), rows.v.data(), 300);
  h.append(rows, 100, kRows, 64);
  const auto holds = [](const HeadRows& held, int64_t first, int64_t last) {
    size_t found = 0;
    for (int64_t p : held.positions) found += p >= first && p < last;
    return found == static_cast<size_t>(last - first);
  };
  EXPECT_TRUE(holds(copy->rows(0, 1), 10, 20));
  EXPECT_TRUE(holds(copy->rows(0, 1), 150, 170));
  EXPECT_TRUE(holds(copy->rows(0, 1), 200, 210));
  EXPECT_TRUE(holds(h.cache().rows(0, 1), 150, 170));
}

std::vector<std::string> names(bool selectors) {
  std::vector<std::string> out;
  for (const MethodInfo& method : methods())
    if (method.is_selector == selectors) out.push_back(method.name);
  return out;
}

INSTANTIATE_TEST_SUITE_P(Registry, Protect,
                         testing::Combine(testing::ValuesIn(names(true)),
                                          testing::ValuesIn(names(false)), testing::Values(1, 4)),
                         [](const auto& i) {
                           return std::get<0>(i.param) + "_" + std::get<1>(i.param) + "_g" +
                                  std::to_string(std::get<2>(i.param));
                         });

TEST(Protect, WhatCannotBeIsRefused) {
  Shape shape;
  shape.context = 100;
  const Rows rows(shape, 50, 6);
  Harness h(shape, "exact");
  h.append(rows, 0, 50, 50);
  const auto refuses = [&](TokenRange r) {
    EXPECT_THROW(h.cache().protect(std::vector<TokenRange>{r}), Error) << r.first;
  };
  refuses({40, 60});
  refuses({60, 60});
  refuses({60, 101});
  h.cache().protect(std::vector<TokenRange>{{60, 100}});
  refuses({99, 100});
}

TEST(Protect, ASlidingWindowForgetsThem) {
  ThreadPool pool(1);
  MemoryCounter memory;
  const Context context{pool, memory, kernels_for()};
  const Shape shape;
  const Rows rows(shape, 300, 7);
  KvCache cache(context, {2, shape.query_heads(), shape.kv_heads, shape.head_dim, {32, 0}, 300},
                Policy::parse("local(window=16)"), 0, nullptr);
  cache.protect(std::vector<TokenRange>{{0, 10}});
  for (int layer : {0, 1}) cache.append(layer, rows.k.data(), rows.v.data(), 300);
  EXPECT_EQ(cache.rows(0, 0).positions.size(), 16u);
  EXPECT_EQ(cache.rows(1, 0).positions.size(), 26u);
}

}  // namespace
}  // namespace pith
