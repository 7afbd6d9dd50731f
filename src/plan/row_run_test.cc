// Rows in one run: bounds and weights after any steps are those of the plan, however a stream is
// cut.

#include "plan/row_run.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "plan/balance_tree.h"
#include "plan/best_rule.h"
#include "plan/cells_rule.h"
#include "plan/heavy_rule.h"
#include "plan/plan.h"
#include "plan/simple_rules.h"

namespace pith {
namespace {

struct Case {
  const char* name;
  std::shared_ptr<const Rule> rule;
  bool counts_all = false;  ///< weights add up to the rows that left the window
};

template <class R, class... A>
std::shared_ptr<const Rule> rule(A&&... a) {
  return std::make_shared<const R>(std::forward<A>(a)...);
}

std::vector<Case> cases() {
  const HeavySizes heavy{24, 16, 8};
  const BalanceShape balance{3, 16};
  return {
      {"all", rule<KeepAll>(), true},
      {"sample", rule<KeepSample>(60, true), true},
      {"plain sample", rule<KeepSample>(60, false)},
      {"best", rule<KeepBest>(BestSizes{60, 20, 20})},
      {"pyramid", rule<KeepPyramid>(BestSizes{60, 20, 20}, MassWish{}, Pyramid{60, 16, 1, 4, 8})},
      {"cells", rule<KeepCells>(Cells{50, 5, 3}, true, false)},
      {"blocks", rule<HalveBlocks>(balance), true},
      {"blocks, never halved", rule<HalveBlocks>(BalanceShape{0, 16}), true},
      {"heavy, sample", rule<KeepHeavy>(heavy, rule<KeepSample>(60, true)), true},
      {"heavy, blocks", rule<KeepHeavy>(heavy, rule<HalveBlocks>(balance)), true}};
}

class Runs : public testing::TestWithParam<Case> {};

TEST_P(Runs, AreThePlansAtRest) {
  EXPECT_TRUE(rc::check([] {
    const ScheduleShape shape{*rc::gen::inRange<size_t>(0, 6), *rc::gen::inRange<size_t>(0, 40),
                              *rc::gen::elementOf(std::vector<size_t>{1, 32})};
    Plan plan(GetParam().rule, shape, size_t{1} << 30);
    ProtectedRows rows;
    const int64_t first = *rc::gen::inRange<int64_t>(8, 200);
    rows.add(std::vector<TokenRange>{{first, first + *rc::gen::inRange<int64_t>(1, 60)}}, 0, 0);
    plan.protect(rows);
    RowRun run;
    for (int pass = 0; pass < 20; ++pass) {
      const size_t most = *rc::gen::elementOf(std::vector<size_t>{1, 7, 300});
      for (const Step& step : plan.append(*rc::gen::inRange<size_t>(1, most + 1))) run.apply(step);
      if (pass == 7)
        for (const Step& step : plan.end_prompt()) run.apply(step);
      const PlanState& state = plan.state();
      RC_ASSERT(run.body == state.body());
      RC_ASSERT(run.heavy == state.at(Zone::kHeavy));
      RC_ASSERT(run.evicted == 0u);
      uint64_t weighted = 0;
      double weight = run.heavy;
      for (const RowRun::Weighted& rows_of_one : run.weighted) {
        RC_ASSERT(rows_of_one.rows > 0u);
        weighted += rows_of_one.rows;
        weight += static_cast<double>(rows_of_one.rows) * static_cast<double>(rows_of_one.weight) /
                  static_cast<double>(rows_of_one.of);
      }
      RC_ASSERT(weighted <= run.body);
      weight += static_cast<double>(run.body - weighted);
      const auto left = static_cast<double>(occupancy(shape, state.open).body);
      if (GetParam().counts_all) RC_ASSERT(std::abs(weight - left) < 1e-6 * (1 + left));
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Rules, Runs, testing::ValuesIn(cases()), [](const auto& test) {
  std::string name = test.param.name;
  std::erase_if(name, [](char c) { return c == ' ' || c == ','; });
  return name;
});

// After p batches of b rows level i holds b / 2 rows if bit i - 1 of p is set, and level T b / 2
// for each 2^(T-1) batches; the oldest first.
TEST(Runs, WeightsOfLevelsFollowFromTheNumberOfBatches) {
  constexpr uint32_t kRounds = 3, kBlock = 8;
  const HalveBlocks blocks({kRounds, kBlock});
  PlanState state;
  RowRun run;
  for (uint64_t n = 1; n < 1000; ++n) {
    Steps steps;
    blocks.feed(state, Zone::kLeaving, 1, steps);
    for (const Step& step : steps) run.apply(step);
    const uint64_t batches = n / kBlock;
    std::vector<RowRun::Weighted> want;
    for (uint32_t level = kRounds; level > 0; --level) {
      const uint64_t carried = batches >> (level - 1);
      const auto rows =
          static_cast<uint32_t>(kBlock / 2 * (level == kRounds ? carried : carried % 2));
      if (rows > 0) want.push_back({rows, uint64_t{1} << level, 1});
    }
    EXPECT_EQ(run.weighted, want) << n;
    EXPECT_EQ(HalveBlocks::load(state).levels[kRounds], kBlock / 2 * (batches >> (kRounds - 1)));
  }
}

// A device that selects a sample 32 rows at a time, and at the end of long passes, holds at most 31
// rows that the plan has dropped, and weighs the others as the plan did at the last selection.
TEST(Runs, SelectionsThatWaitEndAsThePlan) {
  EXPECT_TRUE(rc::check([] {
    const KeepSample sample(*rc::gen::inRange<size_t>(1, 90), true);
    Plan plan(std::make_shared<KeepSample>(sample), {2, 5, 1}, size_t{1} << 30);
    RowRun run;
    LateSelections late;
    const auto catch_up = [&](uint32_t least) {
      const std::optional<Step> step = late.due(run, least);
      if (!step) return;
      run.apply(*step);
      run.apply(late.weigh());
    };
    for (int pass = 0; pass < 150; ++pass) {
      const size_t tokens = *rc::gen::elementOf(std::vector<size_t>{1, 1, 1, 1, 1, 100});
      for (const Step& step : plan.append(tokens)) {
        if (step.op == Op::kSelect || step.op == Op::kWeigh)
          late.put_off(run, step);
        else
          run.apply(step);
      }
      catch_up(tokens > 1 ? 1 : 32);
      RC_ASSERT(run.body >= plan.state().body());
      RC_ASSERT(run.body < plan.state().body() + (tokens > 1 ? 1u : 32u));
    }
    catch_up(1);
    RC_ASSERT(run.body == plan.state().body());
    if (run.weighted.empty()) return;
    RC_ASSERT(run.weighted.size() == 1u);
    RC_ASSERT(run.weighted[0].rows == run.body);
    RC_ASSERT(run.weighted[0].weight == plan.state().fed);
  }));
}

TEST(Runs, ARowStaysWhereItIsWhenItLeavesTheHeavyOnes) {
  RowRun run;
  run.body = 5;
  run.apply({.op = Op::kMove, .to = Zone::kHeavy, .rows = 9});
  EXPECT_EQ(run.rows(), 14u);
  run.apply({.op = Op::kSplit,
             .from = Zone::kHeavy,
             .to = Zone::kEvicted,
             .rows = 4,
             .held = 9,
             .keep = 5});
  EXPECT_EQ(run.evicted, 4u);
  EXPECT_EQ(run.heavy, 5u);
  run.apply({.op = Op::kMove, .from = Zone::kEvicted, .rows = 3});
  EXPECT_EQ(run.body, 8u);
  EXPECT_EQ(run.evicted, 1u);
  EXPECT_EQ(run.rows(), 14u);
}

}  // namespace
}  // namespace pith
