// The duties of every registry row, whatever its rule: each selector over each codec, on every
// instruction set, head_dim and group. A new row is picked up by itself.

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "cache_harness.h"
#include "pith/error.h"

namespace pith {
namespace {

using test::Rows;
using test::Shape;

/// A cache that knows its RoPE, as codecs before RoPE need.
class Harness : public test::Harness {
 public:
  Harness(const Shape& shape, const std::string& policy, uint64_t seed = 1, int threads = 1,
          const std::string& isa = "")
      : test::Harness(shape, policy, seed, threads, isa, rope_of(shape)) {}

 private:
  static const Rope* rope_of(const Shape& shape) {
    static std::map<int, Rope> ropes;  // by head_dim
    const auto dim = static_cast<size_t>(shape.head_dim);
    return &ropes.try_emplace(shape.head_dim, dim, 10000.0).first->second;
  }
};

constexpr size_t kRows = 300, kQueries = 3;

// Selector, codec, head_dim, group.
class Contract : public testing::TestWithParam<std::tuple<std::string, std::string, int, int>> {
 protected:
  const std::string& selector() const { return std::get<0>(GetParam()); }
  const std::string& codec() const { return std::get<1>(GetParam()); }
  Shape shape() const {
    Shape s;
    s.head_dim = std::get<2>(GetParam());
    s.group = std::get<3>(GetParam());
    return s;
  }
  /// The policy with its size parameter set to keep everything, or about `rows` rows.
  std::string policy(size_t rows) const {
    const MethodInfo& method = selector_row(selector()).info;
    std::string text = selector();
    if (method.size_parameter == "rate")
      text += rows >= kRows ? "(rate=1)" : "(rate=0.25)";
    else if (!method.size_parameter.empty())
      text += "(" + method.size_parameter + "=" + std::to_string(rows) + interval(method) + ")";
    text += "+" + codec() + ",sink=2";
    return selector_row(selector()).owns_window ? text : text + ",window=16";
  }
  /// Few enough rows between selections that these streams see some.
  static std::string interval(const MethodInfo& method) {
    for (const ParameterInfo& p : method.parameters)
      if (p.name == "interval") return ",interval=16";
    return "";
  }
  bool sized() const { return !selector_row(selector()).info.size_parameter.empty(); }
  bool dense() const { return codec_row(codec()).dense.has_value(); }
  /// Rows as a dense codec gives them back. The losses of other codecs are in `tolerance`.
  Rows coded(const Rows& rows) const {
    Rows out = rows;
    if (!dense()) return out;
    const DType dtype = codec_row(codec()).dense.value();
    test::round_to(out.k, dtype);
    test::round_to(out.v, dtype);
    return out;
  }
  /// Rounding alone for dense rows; for others three times what the codec costs when every row
  /// stays. Rows that are mixed up cost far more (whether codes stay codes, the codec's own tests
  /// check bit for bit).
  double tolerance() const {
    if (dense()) return 1e-5;
    const Rows rows(shape(), kRows + kQueries, 11);
    Harness h(shape(), "exact+" + codec() + ",sink=2,window=16");
    h.append(rows, 0, kRows, kRows);
    const auto expected = test::oracle_all(
        shape(), rows, kRows, kRows + kQueries,
        std::vector<HeadRows>(static_cast<size_t>(shape().kv_heads), test::all_rows(kRows)));
    return 3 * test::relative_error(h.attend(rows, kRows, kRows + kQueries), expected);
  }
};

constexpr size_t kAll = 1 << 17, kFew = 64;

TEST_P(Contract, FullBudgetIsExact) {
  const Rows rows(shape(), kRows + kQueries, 1);
  Harness h(shape(), policy(kAll));
  h.append(rows, 0, kRows, 50);
  const auto expected = test::oracle_all(
      shape(), coded(rows), kRows, kRows + kQueries,
      std::vector<HeadRows>(static_cast<size_t>(shape().kv_heads), test::all_rows(kRows)));
  EXPECT_LT(test::relative_error(h.attend(rows, kRows, kRows + kQueries), expected), tolerance());
}

TEST_P(Contract, AttendsToExactlyTheRowsItReports) {
  const Rows rows(shape(), kRows + kQueries, 2);
  const double most = tolerance();
  for (std::string_view isa : available_isas()) {
    Harness h(shape(), policy(kFew), 1, 1, std::string(isa));
    h.step(rows, 0, kRows, 40);
    const auto held = test::held_rows(h.cache(), shape());
    const auto out = h.attend(rows, kRows, kRows + kQueries);
    for (float x : out) ASSERT_TRUE(std::isfinite(x)) << "read memory that nobody wrote";
    const auto expected = test::oracle_all(shape(), coded(rows), kRows, kRows + kQueries, held);
    EXPECT_LT(test::relative_error(out, expected), most) << isa;
  }
}

TEST_P(Contract, ChunkingDoesNotChangeTheRows) {
  const Rows rows(shape(), kRows, 3);
  Harness whole(shape(), policy(kFew));
  whole.append(rows, 0, kRows, kRows);
  for (size_t chunk : {1, 7, 64}) {
    Harness chunked(shape(), policy(kFew));
    chunked.append(rows, 0, kRows, chunk);
    for (int g = 0; g < shape().kv_heads; ++g) {
      EXPECT_EQ(whole.cache().rows(0, g).positions, chunked.cache().rows(0, g).positions);
      EXPECT_EQ(whole.cache().rows(0, g).log_weights, chunked.cache().rows(0, g).log_weights);
    }
    EXPECT_EQ(whole.attend(rows, 0, 1), chunked.attend(rows, 0, 1)) << "codes differ";
  }
}

TEST_P(Contract, ThreadsDoNotChangeAnything) {
  const Rows rows(shape(), kRows + kQueries, 4);
  Harness one(shape(), policy(kFew), 5, 1), three(shape(), policy(kFew), 5, 3);
  EXPECT_EQ(one.step(rows, 0, kRows, 64), three.step(rows, 0, kRows, 64));
  EXPECT_EQ(one.attend(rows, kRows, kRows + kQueries), three.attend(rows, kRows, kRows + kQueries));
  for (int g = 0; g < shape().kv_heads; ++g)
    EXPECT_EQ(one.cache().rows(0, g).positions, three.cache().rows(0, g).positions);
}

TEST_P(Contract, LedgerIsWhatTheAllocatorSawAndWithinTheEstimate) {
  const Rows rows(shape(), kRows, 6);
  Harness h(shape(), policy(kFew));
  for (size_t t = 0; t < kRows; t += 13) {
    h.step(rows, t, std::min(t + 13, kRows), 13);
    const Ledger ledger = h.cache().ledger();
    const size_t counted = h.memory().bytes(MemoryKind::kPayload) +
                           h.memory().bytes(MemoryKind::kMetadata) +
                           h.memory().bytes(MemoryKind::kShared);
    ASSERT_EQ(ledger.cache_bytes() + ledger.slack, counted);
    const size_t n = std::min(t + 13, kRows);
    const Ledger most = h.cache().estimate(n);
    EXPECT_LE(ledger.rows_kept, most.rows_kept);
    EXPECT_LE(ledger.cache_bytes(), most.cache_bytes());
    EXPECT_EQ(ledger.tokens, n);
    size_t held = 0;
    for (const HeadRows& head : test::held_rows(h.cache(), shape())) held += head.positions.size();
    EXPECT_EQ(ledger.rows_kept, held);
    EXPECT_EQ(ledger.channels_seen, 2 * n * shape().kv_size());
  }
}

TEST_P(Contract, PositionsAreTrueAndDistinct) {
  const Rows rows(shape(), kRows, 7);
  Harness h(shape(), policy(kFew));
  h.step(rows, 0, kRows, 64);
  for (const HeadRows& head : test::held_rows(h.cache(), shape())) {
    ASSERT_FALSE(head.positions.empty());
    for (size_t i = 1; i < head.positions.size(); ++i)
      ASSERT_LT(head.positions[i - 1], head.positions[i]);
    EXPECT_GE(head.positions.front(), 0);
    EXPECT_EQ(head.positions.back(), static_cast<int64_t>(kRows) - 1) << "the newest row stays";
  }
}

TEST_P(Contract, ErrorFallsAsTheBudgetGrows) {
  if (!sized()) GTEST_SKIP() << selector() << " has no size";
  const Rows rows(shape(), kRows + kQueries, 8);
  const auto exact = test::oracle_all(
      shape(), coded(rows), kRows, kRows + kQueries,
      std::vector<HeadRows>(static_cast<size_t>(shape().kv_heads), test::all_rows(kRows)));
  double errors[3] = {};
  for (uint64_t seed = 0; seed < 8; ++seed)
    for (int i = 0; i < 3; ++i) {
      Harness h(shape(), policy(size_t{32} << (i == 2 ? 12 : 2 * i)), seed);
      h.step(rows, 0, kRows, 64);
      errors[i] += test::relative_error(h.attend(rows, kRows, kRows + kQueries), exact) / 8;
    }
  EXPECT_LE(errors[1], errors[0] * 1.05);
  EXPECT_LT(errors[2], errors[1]);
  EXPECT_LT(errors[2], tolerance());
}

TEST_P(Contract, ACloneGoesItsOwnWay) {
  const Rows rows(shape(), kRows, 9), other(shape(), kRows, 10);
  Harness h(shape(), policy(kFew));
  h.append(rows, 0, 200, 64);
  const auto before = h.attend(rows, 200, 201);
  const auto copy = h.cache().clone();
  copy->append(0, other.k.data(), other.v.data(), 100);
  EXPECT_EQ(h.attend(rows, 200, 201), before);
  EXPECT_EQ(copy->tokens(0), 300u);
  EXPECT_EQ(h.cache().tokens(0), 200u);
  // The original goes on as if the clone had never been.
  Harness alone(shape(), policy(kFew));
  alone.append(rows, 0, kRows, 64);
  h.append(rows, 200, kRows, 64);
  EXPECT_EQ(h.cache().rows(0, 0).positions, alone.cache().rows(0, 0).positions);
}

std::vector<std::string> selector_names() {
  std::vector<std::string> names;
  for (const SelectorRow& row : selector_rows()) names.push_back(row.info.name);
  return names;
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const CodecRow& row : codec_rows()) names.push_back(row.info.name);
  return names;
}

/// Every selector over every codec at one shape; every selector and every codec at every shape.
std::vector<std::tuple<std::string, std::string, int, int>> combinations() {
  std::vector<std::tuple<std::string, std::string, int, int>> all;
  for (const std::string& selector : selector_names())
    for (const std::string& codec : codec_names())
      for (int dim : {64, 80, 96, 128, 256})
        for (int group : {1, 4, 8})
          if ((dim == 64 && group == 4) || selector == "exact" || codec == "f16")
            all.emplace_back(selector, codec, dim, group);
  return all;
}

// The other tests ask for all rows or few by a selector's size parameter. A selector that evicts
// without one fails many of them, which say nothing of the reason.
TEST(ContractOfSizes, ASelectorThatEvictsNamesItsSizeParameter) {
  for (const SelectorRow& selector : selector_rows()) {
    if (!selector.info.size_parameter.empty()) continue;
    const Shape shape;
    Harness h(shape, selector.info.name + "+f32");
    constexpr size_t kMany = 3000;  // more than any default keeps
    h.append(Rows(shape, kMany, 12), 0, kMany, 500);
    EXPECT_EQ(h.cache().rows(0, 0).positions.size(), kMany)
        << selector.info.name << " evicts rows, so its registry row must name the parameter that "
        << "says how many stay: row.info.size_parameter (score_row and AGENTS.md have examples)";
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, Contract, testing::ValuesIn(combinations()), [](const auto& i) {
  return std::get<0>(i.param) + "_" + std::get<1>(i.param) + "_d" +
         std::to_string(std::get<2>(i.param)) + "_g" + std::to_string(std::get<3>(i.param));
});

}  // namespace
}  // namespace pith
