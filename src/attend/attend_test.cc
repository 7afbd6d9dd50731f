// Attention against the oracle: spans, roles, weights, positions, windows, RoPE at reading, mass;
// both paths, any number of threads.

#include "attend/attend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "attend/attend_oracle.h"
#include "attend/parts.h"
#include "pith/error.h"

namespace pith {
namespace {

using oracle::Case;
using oracle::Problem;

void expect_right(const Case& c, std::string_view isa = "") {
  SCOPED_TRACE(describe(c));
  Problem problem(c, isa);
  problem.run();
  problem.check();
}

TEST(Attend, DenseRowsOfEachShapeAndType) {
  for (size_t dim : {16, 64, 80, 96, 128, 256, 512})
    for (size_t group : {1, 4, 8})
      for (DType type : {DType::kF32, DType::kF16, DType::kBF16})
        for (size_t tokens : {1, 2, 19})
          expect_right({.dim = dim, .group = group, .tokens = tokens, .dtype = type});
}

TEST(Attend, EachInstructionSet) {
  for (std::string_view isa : available_isas())
    for (size_t dim : {64, 80})
      for (size_t tokens : {1, 3, 40})
        for (bool rope : {false, true})
          expect_right({.dim = dim,
                        .tokens = tokens,
                        .dtype = DType::kF16,
                        .mass_queries = 2,
                        .weights = true,
                        .positions = true,
                        .before_rope = rope},
                       isa);
}

/// Features by the bits of a number from 0 to 15.
Case with_features(size_t tokens, int64_t window, Role role, int bits) {
  return {.tokens = tokens,
          .dtype = bits & 1 ? DType::kBF16 : DType::kF32,
          .own_rows = (bits & 8) == 0 || window == 20,
          .window = window,
          .mass_queries = bits % 3 == 0   ? 0u
                          : bits % 3 == 1 ? 1u
                                          : 30u,
          .weights = (bits & 2) != 0,
          .positions = (bits & 4) != 0,
          .before_rope = (bits & 8) != 0,
          .query_shift = bits % 5 == 4 ? -7 : 0,
          .role = role};
}

TEST(Attend, EveryFeatureWithEveryOther) {
  for (size_t tokens : {1, 3, 37})
    for (int64_t window : {0, 1, 20, 200})
      for (Role role : {Role::kBoth, Role::kNumerator, Role::kDenominator})
        for (int bits = 0; bits < 16; ++bits)
          expect_right(with_features(tokens, window, role, bits));
}

TEST(Attend, VariantsWithEveryOtherFeature) {
  for (size_t tokens : {1, 3, 37})
    for (int64_t window : {0, 20})
      for (Role role : {Role::kBoth, Role::kNumerator, Role::kDenominator})
        for (int bits = 0; bits < 16; ++bits) {
          Case c = with_features(tokens, window, role, bits);
          c.soft_cap = bits % 4 == 3 ? 0 : 0.8;
          c.sinks = bits % 4 != 1;
          expect_right(c);
        }
}

TEST(Attend, VariantsOfLongRunsOnEachInstructionSet) {
  for (std::string_view isa : available_isas()) {
    expect_right({.dim = 80,
                  .dtype = DType::kF16,
                  .mass_queries = 1,
                  .span_rows = {0, 2100, 1},
                  .soft_cap = 1.5,
                  .sinks = true},
                 isa);
    expect_right({.kv_heads = 1,
                  .tokens = 300,
                  .window = 100,
                  .mass_queries = 64,
                  .span_rows = {7, 513},
                  .soft_cap = 1.5,
                  .sinks = true},
                 isa);
  }
}

TEST(Attend, AQueryThatSeesASinkAloneGivesZerosAndItsLogit) {
  Problem problem(Case{.own_rows = false, .span_rows = {}, .sinks = true});
  problem.run();
  problem.check();
  for (const float x : problem.out()) ASSERT_EQ(x, 0);
}

TEST(Attend, LongRunsOfManyPartsAndTiles) {
  expect_right({.dim = 64, .dtype = DType::kF16, .mass_queries = 1, .span_rows = {0, 3000, 1}});
  expect_right({.dim = 64, .kv_heads = 1, .dtype = DType::kF32, .span_rows = {35000}});
  expect_right(
      {.dim = 64, .kv_heads = 1, .tokens = 700, .mass_queries = 64, .span_rows = {7, 513}});
  expect_right({.dim = 64,
                .kv_heads = 1,
                .group = 1,
                .tokens = 600,
                .window = 100,
                .mass_queries = 600,
                .span_rows = {300}});
  expect_right({.dim = 32, .kv_heads = 1, .group = 71, .tokens = 9, .span_rows = {30}});
  expect_right({.dim = 32, .kv_heads = 1, .group = 71, .tokens = 1, .span_rows = {30}});
}

TEST(Attend, OddNumbersOfRowsAndEmptySpans) {
  for (size_t rows : {0, 1, 3, 15, 16, 17, 63, 64, 255, 256, 257, 1023, 1024, 1025})
    for (size_t tokens : {1, 20})
      expect_right({.kv_heads = 1, .tokens = tokens, .span_rows = {0, rows, 0}});
}

TEST(Attend, AQueryThatSeesNothingGivesZeros) {
  for (size_t tokens : {1, 20}) {
    expect_right({.tokens = tokens, .own_rows = false, .span_rows = {}});
    expect_right({.tokens = tokens, .own_rows = false, .mass_queries = 1, .span_rows = {0, 0}});
    expect_right(
        {.tokens = tokens, .own_rows = false, .window = 5, .mass_queries = 9, .span_rows = {30}});
    expect_right({.tokens = tokens,
                  .own_rows = false,
                  .window = 5,
                  .positions = true,
                  .span_rows = {2, 30}});
  }
}

/// The case's queries in blocks of `most` tokens, each behind the own rows of those before it.
std::vector<float> in_blocks(const Case& c, size_t most) {
  Problem problem(c);
  const AttendCall whole = problem.call();
  const size_t heads = c.kv_heads * c.group;
  for (size_t first = 0, count = 0; first < c.tokens; first += count) {
    count = std::min(most, c.tokens - first);
    const size_t asked = c.tokens - std::min(c.mass_queries, c.tokens);
    AttendCall part = whole;
    part.q += first * heads * c.dim;
    part.out += first * heads * c.dim;
    part.log_sum += first * heads;
    part.tokens = count;
    part.before = first;
    part.first_position += static_cast<int64_t>(first);
    part.mass_queries = first + count - std::min(std::max(asked, first), first + count);
    part.mass_stride = c.tokens;
    attend(problem.context(), part);
  }
  return problem.result();
}

// The tests above compare the whole with the oracle.
TEST(Attend, QueriesInBlocksFindWhatTheyFindTogether) {
  for (size_t group : {1, 4})
    for (int64_t window : {0, 20, 300})
      for (size_t tokens : {3, 500})
        for (size_t mass : {0, 1, 64, 500}) {
          const Case c{.group = group,
                       .tokens = tokens,
                       .window = window,
                       .mass_queries = mass,
                       .weights = true,
                       .span_rows = {5, 300}};
          SCOPED_TRACE(describe(c));
          Problem problem(c);
          problem.run();
          const std::vector<float> whole = problem.result();
          for (size_t most : {1, 2, 48, 144}) {
            const std::vector<float> parts = in_blocks(c, most);
            ASSERT_EQ(parts.size(), whole.size());
            // Those of few queries go another way, and masses are summed in another order.
            const size_t mass_from = tokens * c.kv_heads * group * (c.dim + 1);
            for (size_t i = 0; i < whole.size(); ++i) {
              if (most >= 48 && tokens > 48 && i < mass_from)
                ASSERT_EQ(parts[i], whole[i]) << i << " in blocks of " << most;
              else
                ASSERT_NEAR(parts[i], whole[i], 1e-4) << i << " in blocks of " << most;
            }
          }
        }
}

TEST(Attend, SplittingASpanChangesNothing) {
  for (size_t tokens : {1, 25}) {
    Case c{
        .tokens = tokens, .own_rows = true, .window = 250, .mass_queries = 5, .span_rows = {300}};
    Problem whole(c), split(c);
    whole.run();
    AttendCall call = split.call();
    std::vector<std::vector<Span>> lists;
    for (const auto& list : call.spans) {
      lists.emplace_back();
      size_t done = 0;
      for (size_t n : {1, 99, 0, 63, 137}) {
        Span part = list[0];
        part.first += done;
        part.first_position += static_cast<int64_t>(done);
        part.count = n;
        done += n;
        lists.back().push_back(part);
      }
      ASSERT_EQ(done, list[0].count);
    }
    const std::vector<std::span<const Span>> spans(lists.begin(), lists.end());
    call.spans = spans;
    attend(split.context(), call);
    split.check();
    const std::vector<float> a = whole.result(), b = split.result();
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 3e-6);
  }
}

TEST(Attend, BothPathsAgree) {
  for (bool before_rope : {false, true}) {
    Case c{.tokens = 4,
           .dtype = DType::kF16,
           .window = 333,
           .mass_queries = 3,
           .weights = true,
           .positions = true,
           .before_rope = before_rope};
    Problem problem(c);
    const Geometry geometry{.query_heads = 8,
                            .kv_heads = 2,
                            .group = 4,
                            .dim = 64,
                            .tokens = 4,
                            .before = 0,
                            .scale = 0.125f};
    attend_decode(problem.context(), problem.call(), geometry);
    const std::vector<float> decoded = problem.result();
    problem.clear();
    attend_prefill(problem.context(), problem.call(), geometry);
    const std::vector<float> prefilled = problem.result();
    for (size_t i = 0; i < decoded.size(); ++i) ASSERT_NEAR(decoded[i], prefilled[i], 5e-6);
  }
}

TEST(Attend, BitsDoNotDependOnThreads) {
  for (size_t tokens : {1, 4, 150}) {
    Case c{.tokens = tokens,
           .dtype = DType::kBF16,
           .mass_queries = 100,
           .weights = true,
           .positions = true,
           .before_rope = true,
           .span_rows = {5, 2500, 33}};
    std::vector<float> first;
    for (int threads : {1, 2, 3}) {
      Problem problem(c, "", threads);
      problem.run();
      const std::vector<float> result = problem.result();
      if (first.empty()) first = result;
      ASSERT_EQ(std::memcmp(first.data(), result.data(), result.size() * sizeof(float)), 0);
    }
  }
}

TEST(Attend, ScratchDoesNotGrowWithTheRows) {
  for (size_t tokens : {1, 40}) {
    std::vector<size_t> peaks;
    for (size_t rows : {34000, 68000}) {
      Problem problem({.kv_heads = 1, .tokens = tokens, .span_rows = {rows}});
      const size_t before = problem.memory().total();
      problem.memory().reset_peak();
      problem.run();
      peaks.push_back(problem.memory().peak() - before);
      EXPECT_EQ(problem.memory().total(), before);
    }
    EXPECT_NEAR(double(peaks[0]), double(peaks[1]), 0.1 * double(peaks[0]));
    EXPECT_LT(peaks[1], size_t{4} << 20);
  }
}

TEST(Attend, AForcedInstructionSetRuns) {
  const char* old = std::getenv("PITH_ISA");
  const std::string saved = old ? old : "";
  for (std::string_view isa : available_isas()) {
    setenv("PITH_ISA", std::string(isa).c_str(), 1);
    Problem problem({.tokens = 2, .mass_queries = 1});
    EXPECT_EQ(problem.context().kernels.isa, isa);
    EXPECT_STREQ(problem.context().kernels.ran(), kernels_for(isa).ran());
    problem.run();
    problem.check();
  }
  if (old)
    setenv("PITH_ISA", saved.c_str(), 1);
  else
    unsetenv("PITH_ISA");
}

TEST(Attend, RefusesWhatDoesNotFit) {
  const auto refused = [](auto&& change) {
    Problem problem({.span_rows = {4}});
    AttendCall call = problem.call();
    std::vector<std::vector<Span>> lists;
    for (const auto& list : call.spans) lists.emplace_back(list.begin(), list.end());
    change(call, lists[0][0]);
    std::vector<std::span<const Span>> spans(lists.begin(), lists.end());
    if (!call.spans.empty()) call.spans = spans;
    if (call.shape.kv_heads == 4) call.spans = spans;
    try {
      attend(problem.context(), call);
      return false;
    } catch (const Error& e) {
      return e.code() == ErrorCode::kInvalidArgument;
    }
  };
  EXPECT_FALSE(refused([](AttendCall&, Span&) {}));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.shape.query_heads = 7; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.shape.head_dim = 24; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.shape.head_dim = 32; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.shape.kv_heads = 4; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.q = nullptr; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.v = nullptr; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.sliding_window = -1; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.shape.variant.soft_cap = -1; }));
  EXPECT_TRUE(refused([](AttendCall&, Span& s) { s.count = 5; }));
  EXPECT_TRUE(refused([](AttendCall&, Span& s) { s.keys = nullptr; }));
  EXPECT_TRUE(refused([](AttendCall&, Span& s) { s.values = nullptr; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span& s) {
    s.query_shift = 3;
    c.rope = nullptr;
  }));
}

}  // namespace
}  // namespace pith
