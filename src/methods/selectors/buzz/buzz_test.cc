// Tests are named after the specification's "must hold" lines.

#include "methods/selectors/buzz/buzz.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>

#include "body_harness.h"
#include "cache_harness.h"
#include "methods/methods.h"
#include "pith/error.h"
#include "rows/cpu/dense.h"

namespace pith {
namespace {

using test::Harness;
using test::Rows;
using test::Shape;

constexpr Shape kSmall{.head_dim = 16, .group = 2, .kv_heads = 2};

/// Body rows after an eviction of T rows of which `old` are old, by Algorithms 1 and 2.
size_t recursion(size_t old, size_t threshold, size_t stride) {
  const size_t halved = (stride + 1) / 2;
  return (old + halved - 1) / halved + (threshold - old + stride - 1) / stride;
}

size_t rows_of(Harness& h, int head = 0) { return h.cache().rows(0, head).positions.size(); }

TEST(Buzz, SizeAfterEachEvictionFollowsTheRecursion) {
  for (size_t stride : {3, 4, 5, 8})
    for (size_t threshold : {8, 40, 43}) {
      const Rows rows(kSmall, 600, 1);
      Harness h(kSmall, "buzz(s=" + std::to_string(stride) + ",T=" + std::to_string(threshold) +
                            "),sink=2,window=8");
      size_t body = 0, old = 0, evictions = 0;
      for (size_t t = 0; t < 600; ++t) {
        h.step(rows, t, t + 1, 1);
        if (t >= 10) {
          if (body == threshold) {
            old = body = recursion(old, threshold, stride);
            ++evictions;
          }
          ++body;
        }
        ASSERT_EQ(rows_of(h), std::min<size_t>(t + 1, 10) + body) << "token " << t;
      }
      EXPECT_GT(evictions, 5u);
      // Equation 10 rounds down where Algorithms 1 and 2 keep the short last cell.
      const size_t cell = (stride + 1) / 2;
      const auto halved = static_cast<double>(cell);
      const double seed =
          std::floor(static_cast<double>(old) / halved) +
          std::floor(static_cast<double>(threshold - old) / static_cast<double>(stride));
      EXPECT_NEAR(static_cast<double>(recursion(old, threshold, stride)), seed, 2);
    }
}

TEST(Buzz, NeverExceedsThresholdSinkAndWindow) {
  const Rows rows(kSmall, 700, 2);
  for (size_t chunk : {1, 7, 100, 700}) {
    Harness h(kSmall, "buzz(T=50),sink=4,window=20");
    for (size_t t = 0; t < 700; t += chunk) {
      h.step(rows, t, std::min<size_t>(t + chunk, 700), chunk);
      for (int g = 0; g < 2; ++g) ASSERT_LE(rows_of(h, g), 74u);
    }
    EXPECT_GE(rows_of(h), 24u) << "sink and window are filled first (Remark 1)";
  }
}

TEST(Buzz, PrefillLongerThanTheContainerIsSampledUntilItFits) {
  const Rows rows(kSmall, 500, 3);
  Harness h(kSmall, "buzz(T=30),sink=4,window=10");
  h.step(rows, 0, 500, 500);
  h.cache().end_prefill();
  const auto held = h.cache().rows(0, 0).positions;
  EXPECT_LE(held.size(), 44u);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(held[static_cast<size_t>(i)], i);
  for (size_t i = 0; i < 10; ++i)
    EXPECT_EQ(held[held.size() - 10 + i], 490 + static_cast<int64_t>(i));
}

TEST(Buzz, DefaultThresholdIsTheTheoremsForBothParities) {
  EXPECT_EQ(buzz_threshold(300, 5), 1300u);  // (25 + 1) / 6 = 4.33
  EXPECT_EQ(buzz_threshold(100, 5), 433u);
  EXPECT_EQ(buzz_threshold(64, 4), 192u);  // 4 - 1
  EXPECT_EQ(buzz_threshold(8, 7), 50u);    // 50 / 8
  Harness h(kSmall, "buzz,window=60");
  EXPECT_NE(h.cache().describe().find("s=5,T=260"), std::string::npos) << h.cache().describe();
  // The rows after an eviction settle at the window's size, as the theorem says.
  for (size_t stride : {3, 4, 5, 6, 9}) {
    size_t old = 0;
    for (int i = 0; i < 50; ++i) old = recursion(old, buzz_threshold(1000, stride), stride);
    EXPECT_NEAR(static_cast<double>(old), 1000, 2.0 * static_cast<double>(stride)) << stride;
  }
}

TEST(Buzz, BetweenEvictionsRowsAreOnlyBuffered) {
  const Rows rows(kSmall, 64, 4);
  Harness h(kSmall, "buzz(T=50),sink=4,window=10");
  h.step(rows, 0, 64, 8);
  EXPECT_EQ(h.cache().rows(0, 0).positions, test::all_rows(64).positions);
}

/// A body fed directly, with masses of our own making.
struct Body {
  explicit Body(const std::string& policy, std::vector<float> mass, std::vector<float> keys = {})
      : codec(DType::kF32), pool(1), context{pool, memory, kernels_for("scalar")} {
    const PolicyPart part = Policy::parse(policy).rules[0].selector;
    const MethodOptions options = selector_row("buzz").read(part);
    SelectorSite site;
    site.heads = 1;
    site.window = 16;
    const RowFormat format{&codec, &codec, nullptr, 16, 0, 0, true};
    body.emplace(context, buzz_row().resolve({options, BudgetSite{}, site}).parts(context, site),
                 format);
    const std::vector<float> zeros(mass.size() * 16);
    if (keys.empty()) keys = zeros;
    body->feed({keys.data(), zeros.data(), 16, mass.size(), 100, mass.data()});
  }
  std::vector<int64_t> positions() {
    std::vector<int64_t> all;
    for (size_t i = 0; i < store().rows(); ++i) all.push_back(store().position(i) - 100);
    return all;
  }
  RowStore& store() { return body->store(); }
  DenseCodec codec;
  ThreadPool pool;
  MemoryCounter memory;
  Context context;
  std::optional<test::FedBody> body;
};

TEST(Buzz, LocalMaximaAreTheArgmaxOfTheirCells) {
  // Cells of 3; the second ties (first wins), the last is short.
  Body b("buzz(s=3,T=8)", {1, 5, 2, 7, 7, 0, 1, 3, 9});
  EXPECT_EQ(b.positions(), (std::vector<int64_t>{1, 3, 7, 8}));
}

/// The body rows of a stream of 8192 by eighths, sink and window left out.
std::array<size_t, 8> kept_by_eighth(const std::string& options, size_t chunk) {
  static const Rows rows(kSmall, 8192, 9);
  const bool once = chunk == 8192;
  Shape shape = kSmall;
  shape.context = 8192;
  Harness h(shape, "buzz(T=1024" + options + "),sink=0,window=0" + (once ? ",prompt=once" : ""));
  if (once) {
    const std::vector<float> mass(2 * 8192);
    h.cache().append(0, {rows.k.data(), rows.v.data(), mass.data(), 8192, true});
  } else {
    for (size_t t = 0; t < 8192; t += chunk) h.step(rows, t, t + chunk, chunk);
    h.cache().end_prefill();
  }
  std::array<size_t, 8> kept{};
  for (const int64_t position : h.cache().rows(0, 0).positions)
    ++kept[static_cast<size_t>(position) / 1024];
  return kept;
}

TEST(Buzz, OnePassOverAPromptKeepsARowOfEveryStretch) {
  const auto once = kept_by_eighth(",whole=true", 8192);
  // 768 rows at most may stay: cells of 11 rows, 744 whole ones and one of 8.
  EXPECT_EQ(std::accumulate(once.begin(), once.end(), size_t{0}), 745u);
  for (const size_t kept : once) EXPECT_NEAR(static_cast<double>(kept), 1024.0 / 11, 1.5);
  const auto twice = kept_by_eighth(",whole=true,by_key=true", 8192);  // cells of 22, two of each
  EXPECT_EQ(std::accumulate(twice.begin(), twice.end(), size_t{0}), 746u);
  for (const size_t kept : twice) EXPECT_NEAR(static_cast<double>(kept), 1024.0 / 11, 4);
  const auto stream = kept_by_eighth("", 256);
  EXPECT_LE(stream[0] + stream[1] + stream[2], 12u) << "evictions thin the oldest rows each time";
  EXPECT_GT(stream[7], 100u);
}

TEST(Buzz, APromptBarelyLongerThanTheContainerLosesFewRows) {
  // A body of 796 rows where T is 795: rows of the oldest 50 hives go, but for their best.
  constexpr size_t kRows = 796, kHives = 50;
  Shape shape = kSmall;
  shape.context = 1000;
  const Rows rows(shape, kRows, 12);
  std::vector<float> mass(2 * kRows);
  for (size_t i = 0; i < mass.size(); ++i)
    mass[i] = static_cast<float>((i * 7919 + i / kRows) % 1009);
  Harness h(shape, "buzz(T=795),sink=0,window=0,prompt=once");
  h.cache().append(0, {rows.k.data(), rows.v.data(), mass.data(), kRows, true});
  for (int g = 0; g < 2; ++g) {
    std::vector<int64_t> expected;
    const auto own = mass.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(g) * kRows);
    for (size_t hive = 0; hive < kHives; ++hive)
      expected.push_back(std::max_element(own + static_cast<ptrdiff_t>(5 * hive),
                                          own + static_cast<ptrdiff_t>(5 * hive + 5)) -
                         own);
    for (size_t i = 5 * kHives; i < kRows; ++i) expected.push_back(static_cast<int64_t>(i));
    ASSERT_EQ(expected.size(), 596u) << "three quarters of T are 597";
    EXPECT_EQ(h.cache().rows(0, g).positions, expected);
  }
  Harness fits(shape, "buzz(T=796),sink=0,window=0,prompt=once");
  fits.cache().append(0, {rows.k.data(), rows.v.data(), mass.data(), kRows, true});
  EXPECT_EQ(rows_of(fits), kRows);
}

TEST(Buzz, AHiveAlsoKeepsTheRowWhoseKeyIsUnlikeTheOthers) {
  // Cells of 4: keys are alike but for rows 2 and 5; row 5 has the most mass as well, so that the
  // first of the others stays. Row 8 is alone.
  std::vector<float> mass{9, 1, 2, 3, 0, 8, 1, 1, 5}, keys(mass.size() * 16);
  for (size_t i = 0; i < mass.size(); ++i) keys[i * 16] = i == 2 || i == 5 ? -1.0f : 1.0f;
  Body b("buzz(s=4,T=8,by_key=true)", mass, keys);
  EXPECT_EQ(b.positions(), (std::vector<int64_t>{0, 2, 4, 5, 8}));
  Body weighted("buzz(s=4,T=8,by_key=true,weights=true)", mass, keys);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_FLOAT_EQ(weighted.store().log_weight(i), std::log(2.0f)) << i;
}

TEST(Buzz, OldRowsAreSampledAtIntervals) {
  std::vector<float> mass(18, 0.0f);
  mass[13] = 1;
  // T = 9, s = 3: 0 3 6 stay of rows 0-8, then of these old ones 0 and 6, of rows 9-14 9 and 13.
  EXPECT_EQ(Body("buzz(s=3,T=9)", mass).positions(),
            (std::vector<int64_t>{0, 6, 9, 13, 15, 16, 17}));
}

TEST(Buzz, WithoutLocalMaximaNewRowsAreSampledAtIntervals) {
  Body b("buzz(s=3,T=8,localmax=false)", {1, 5, 2, 7, 7, 0, 1, 3, 9});
  EXPECT_EQ(b.positions(), (std::vector<int64_t>{0, 3, 6, 8}));
  EXPECT_EQ(b.body->selector.rule->mass({}, 1).queries, 0u) << "nobody needs attention mass";
}

TEST(Buzz, WeightsCountTheRowsOfEachCell) {
  Body b("buzz(s=5,T=20,weights=true)", std::vector<float>(137, 1.0f));
  double sum = 0;
  for (size_t i = 0; i < b.store().rows(); ++i) sum += std::exp(double{b.store().log_weight(i)});
  EXPECT_NEAR(sum, 137, 1e-3);
  Body plain("buzz(s=5,T=20)", std::vector<float>(137, 1.0f));
  for (size_t i = 0; i < plain.store().rows(); ++i) EXPECT_EQ(plain.store().log_weight(i), 0.0f);
}

TEST(Buzz, EvictionCostIsLinearInRows) {
  const size_t n = 20000, threshold = 260;
  Body b("buzz(s=5,T=260)", {0});
  std::vector<float> zeros(16);
  size_t touched = 0, before = 1;
  for (size_t t = 1; t < n; ++t) {
    const float mass = 1;
    b.body->feed({zeros.data(), zeros.data(), 16, 1, 100 + static_cast<int64_t>(t), &mass});
    const size_t now = b.store().rows();
    if (now <= before) touched += threshold;
    before = now;
  }
  // T / (T - a) = 1.3 visits a row in the long run.
  EXPECT_LT(touched, n * 14 / 10);
  EXPECT_GT(touched, n * 12 / 10);
}

/// Queries all point at row `needle`, far from the ends.
Rows planted(const Shape& shape, size_t n, size_t needle) {
  Rows rows(shape, n, 7);
  const auto d = static_cast<size_t>(shape.head_dim);
  for (float& x : rows.k) x *= 0.1f;
  for (size_t g = 0; g < static_cast<size_t>(shape.kv_heads); ++g)
    for (size_t c = 0; c < d; ++c) rows.k[needle * shape.kv_size() + g * d + c] = 2;
  for (float& x : rows.q) x = 0.5f + 0.1f * x;
  return rows;
}

TEST(Buzz, ANeedleWithAMassPeakSurvivesWhileItsNeighboursDoNot) {
  for (size_t needle : {43, 44, 45, 46, 47}) {
    const Rows rows = planted(kSmall, 120, needle);
    Harness h(kSmall, "buzz(T=100),sink=4,window=10");
    h.step(rows, 0, 120, 1);  // one eviction: 100 rows -> 20
    for (const HeadRows& head : test::held_rows(h.cache(), kSmall)) {
      const auto has = [&](size_t p) {
        return std::count(head.positions.begin(), head.positions.end(), p) == 1;
      };
      EXPECT_TRUE(has(needle));
      // The rest of its cell is gone (cells start at the sink's end).
      const size_t cell = 4 + (needle - 4) / 5 * 5;
      for (size_t p = cell; p < cell + 5; ++p) EXPECT_EQ(has(p), p == needle);
    }
  }
}

TEST(Buzz, SwappingStridesLosesOldRowsFaster) {
  const Rows rows(kSmall, 1500, 8);
  const auto oldest_half = [&](const std::string& options) {
    Harness h(kSmall, "buzz(T=200" + options + "),sink=4,window=20");
    h.step(rows, 0, 1500, 10);
    const auto held = h.cache().rows(0, 0).positions;
    return std::count_if(held.begin(), held.end(), [](int64_t p) { return p >= 4 && p < 1000; });
  };
  EXPECT_LT(oldest_half(",swap=true"), oldest_half(""));
}

TEST(Buzz, MassIsSummedOverTheGroupsQueryHeads) {
  // Query head 0 of the group looks at row 20 and head 1, harder, at row 21 of the same cell; a
  // mean over queries of one head alone would pick 20.
  const Shape shape{.head_dim = 16, .group = 2, .kv_heads = 1};
  Rows rows(shape, 60, 9);
  std::fill(rows.k.begin(), rows.k.end(), 0.0f);
  rows.k[20 * 16] = 3;
  rows.k[21 * 16 + 1] = 6;
  std::fill(rows.q.begin(), rows.q.end(), 0.0f);
  for (size_t t = 0; t < 60; ++t) rows.q[t * 32] = rows.q[t * 32 + 16 + 1] = 4;
  Harness h(shape, "buzz(T=40),sink=4,window=10");
  h.step(rows, 0, 60, 1);
  const auto held = h.cache().rows(0, 0).positions;
  EXPECT_EQ(std::count(held.begin(), held.end(), 20), 0);
  EXPECT_EQ(std::count(held.begin(), held.end(), 21), 1);
}

TEST(Buzz, LogNMultipliesScoresByLog512OfTheTokensSeen) {
  const Shape shape{.head_dim = 16, .group = 2, .kv_heads = 2, .layers = 1, .context = 3000};
  Rows rows(shape, 1201, 10);
  // T is never reached: exact attention, to which log n applies as well.
  Harness scaled(shape, "buzz(T=100000,logn=true),dtype=f32");
  Harness chunked(shape, "buzz(T=100000,logn=true),dtype=f32");
  Harness plain(shape, "buzz(T=100000),dtype=f32");
  const auto out = scaled.step(rows, 0, 1200, 1200);
  EXPECT_LT(test::relative_error(chunked.step(rows, 0, 1200, 37), out), 1e-5);
  const auto off = plain.step(rows, 0, 1200, 1200);
  // 512 tokens and less: nothing changes.
  for (size_t i = 0; i < 512 * shape.q_size(); ++i) ASSERT_NEAR(out[i], off[i], 1e-5f);
  for (size_t t : {600, 1199}) {
    Rows turned = rows;
    const double factor = std::log(static_cast<double>(t + 1)) / std::log(512.0);
    for (float& x : turned.q) x = static_cast<float>(x * factor);
    const auto expected =
        test::oracle_all(shape, turned, t, t + 1, std::vector<HeadRows>(2, test::all_rows(t + 1)));
    const std::vector<float> got(out.begin() + static_cast<ptrdiff_t>(t * shape.q_size()),
                                 out.begin() + static_cast<ptrdiff_t>((t + 1) * shape.q_size()));
    EXPECT_LT(test::relative_error(got, expected), 1e-4) << t;
  }
}

TEST(Buzz, ImpossibleSettingsAreRefused) {
  EXPECT_THROW(Harness(kSmall, "buzz(s=2)"), Error);
  EXPECT_THROW(Harness(kSmall, "buzz(s=9,T=8)"), Error);
  EXPECT_THROW(Harness(kSmall, "buzz,window=0"), Error);
  EXPECT_NO_THROW(Harness(kSmall, "buzz(T=30),window=0"));
  // One pass needs all of a prompt's rows.
  EXPECT_THROW(Harness(kSmall, "buzz(T=30,whole=true)"), Error);
  EXPECT_NO_THROW(Harness(kSmall, "buzz(T=30,whole=true),prompt=once"));
  // Hives of two rows that keep two.
  EXPECT_THROW(Harness(kSmall, "buzz(s=4,T=30,by_key=true,swap=true)"), Error);
  EXPECT_NO_THROW(Harness(kSmall, "buzz(T=30,by_key=true,swap=true)"));
}

}  // namespace
}  // namespace pith
