// Rules whose rows gather until their prompt ends.

#include <gtest/gtest.h>

#include "plan/best_rule.h"
#include "plan/cells_rule.h"
#include "plan/heavy_rule.h"
#include "plan/simple_rules.h"

namespace pith {
namespace {

TEST(GatheredRows, SelectFromAllOfAPromptAtItsEnd) {
  const KeepBest best({10, 4, 0});
  const KeepCells cells({10, 5, 3}, true, false);
  const KeepHeavy heavy({6, 4, 8}, std::make_shared<KeepAll>());
  const auto ended = [](const Rule& rule, uint32_t n) {
    PlanState s;
    s.gathers = true;
    Steps steps;
    rule.feed(s, Zone::kLeaving, n, steps);
    EXPECT_EQ(steps.size(), 1u);
    EXPECT_EQ(steps[0].op, Op::kMove);
    EXPECT_EQ(steps[0].rows, n);
    steps.clear();
    rule.end_prompt(s, steps);
    return steps;
  };
  Steps end = ended(best, 40);
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(end[0].held, 40u);
  EXPECT_EQ(end[0].keep, 10u);
  end = ended(cells, 100);  // 100 to 20, and of these old ones 18 to 6
  ASSERT_EQ(end.size(), 2u);
  EXPECT_EQ(end[0].keep, 20u);
  EXPECT_EQ(end[1].keep, 8u);
  EXPECT_TRUE(ended(cells, 10).empty());
  end = ended(heavy, 30);
  ASSERT_EQ(end.size(), 2u);
  EXPECT_EQ(end[0].op, Op::kSplit);
  EXPECT_EQ(end[0].held, 30u);
  EXPECT_EQ(end[0].rows, 24u);
  EXPECT_EQ(end[1].rows, 24u);
  EXPECT_TRUE(ended(heavy, 9).empty());
}

}  // namespace
}  // namespace pith
