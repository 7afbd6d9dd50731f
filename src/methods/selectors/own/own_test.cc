#include "pith/own_selector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "methods/test_own_layer.h"
#include "pith/error.h"

namespace pith {
namespace {

using test::kDim;
using test::kHeads;
using test::kTokens;
using test::layer_of;
using test::random_rows;
using test::view;

/// The random rows that a policy keeps, queries included.
std::vector<int64_t> kept_by(const std::string& policy) {
  LayerCache cache = layer_of(policy);
  const auto q = random_rows(1), k = random_rows(2), v = random_rows(3);
  std::vector<float> out(q.size());
  cache.step({out.data(), DType::kF32, kHeads * kDim, kDim}, view(q), view(k), view(v), kTokens);
  cache.end_prompt();
  return cache.rows(1).positions;
}

OwnSelector small_keys(const std::string& name) {
  return {.name = name, .summary = "as knorm", .score = [](const RowsToScore& rows, auto scores) {
            for (size_t r = 0; r < rows.rows; ++r) {
              double sum = 0;
              for (size_t c = 0; c < rows.head_dim; ++c)
                sum += double{rows.keys[r * rows.head_dim + c]} * rows.keys[r * rows.head_dim + c];
              scores[r] = -sum;
            }
          }};
}

TEST(OwnSelector, TheSameScoresKeepTheSameRowsAsABuiltInOne) {
  add_selector(small_keys("my_norms"));
  OwnSelector heavy{.name = "my_heavy", .mass = OwnSelector::Mass::kAll};
  heavy.score = [](const RowsToScore& rows, std::span<double> scores) {
    std::copy(rows.mass.begin(), rows.mass.end(), scores.begin());
  };
  add_selector(heavy);
  const std::string rest = "(budget=40),sink=3,window=20";
  EXPECT_EQ(kept_by("my_norms" + rest), kept_by("knorm" + rest));
  EXPECT_EQ(kept_by("my_heavy" + rest), kept_by("h2o" + rest));
  EXPECT_EQ(kept_by("my_norms(budget=40)+int4,window=20"),
            kept_by("knorm(budget=40)+int4,window=20"));
  EXPECT_NE(kept_by("my_norms" + rest), kept_by("my_heavy" + rest));
}

TEST(OwnSelector, LastQueriesVoteAsInSnapKv) {
  OwnSelector votes{.name = "my_votes", .mass = OwnSelector::Mass::kLast, .queries = 16};
  votes.score = [](const RowsToScore& rows, std::span<double> scores) {
    std::copy(rows.mass.begin(), rows.mass.end(), scores.begin());
  };
  add_selector(votes);
  EXPECT_EQ(kept_by("my_votes(budget=40),sink=0,window=20"),
            kept_by("snapkv(budget=40,queries=16,kernel=1),sink=0,window=20"));
}

TEST(OwnSelector, SeesValuesAndPositions) {
  OwnSelector even{.name = "my_even"};
  even.score = [](const RowsToScore& rows, std::span<double> scores) {
    for (size_t r = 0; r < rows.rows; ++r)
      scores[r] = rows.positions[r] % 2 == 0 && std::isfinite(rows.values[r]) ? 1 : NAN;
  };
  add_selector(even);
  for (const int64_t position : kept_by("my_even(budget=32,interval=64),sink=0,window=0"))
    EXPECT_EQ(position % 2, 0);
}

TEST(OwnSelector, ANameIsGivenAnotherFunctionAndSoIsKnown) {
  add_selector(small_keys("my_changing"));
  const auto before = kept_by("my_changing(budget=32)");
  OwnSelector other = small_keys("my_changing");
  other.score = [](const RowsToScore& rows, std::span<double> scores) {
    for (size_t r = 0; r < rows.rows; ++r) scores[r] = -static_cast<double>(r);
  };
  add_selector(other);
  EXPECT_NE(kept_by("my_changing(budget=32)"), before);
  bool found = false;
  for (const MethodInfo& info : methods()) found |= info.name == "my_changing" && info.is_selector;
  EXPECT_TRUE(found);
  EXPECT_EQ(Policy::parse("my_changing(budget=32)").to_string(), "my_changing(budget=32)");
}

TEST(OwnSelector, Refusals) {
  for (const char* name : {"", "knorm", "int4", "My", "1st", "a-b", "half"})
    EXPECT_THROW(add_selector(small_keys(name)), Error) << name;
  add_selector(small_keys("my_needs"));
  OwnSelector other = small_keys("my_needs");
  other.mass = OwnSelector::Mass::kAll;
  EXPECT_THROW(add_selector(other), Error);
  OwnSelector none{.name = "my_none"};
  EXPECT_THROW(add_selector(none), Error);
  OwnSelector counted = small_keys("my_counted");
  counted.queries = 3;
  EXPECT_THROW(add_selector(counted), Error);
  EXPECT_THROW(Policy::parse("my_counted(budget=32)"), Error);
  EXPECT_THROW(Policy::parse("my_needs(width=3)"), Error);
}

TEST(OwnSelector, WhatItThrowsEndsThePass) {
  OwnSelector broken{.name = "my_broken"};
  broken.score = [](const RowsToScore&, std::span<double>) { throw std::range_error("mine"); };
  add_selector(broken);
  EXPECT_THROW(kept_by("my_broken(budget=32)"), std::range_error);
}

}  // namespace
}  // namespace pith
