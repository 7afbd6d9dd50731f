// The steps of rules that are fed rows, one by one.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "plan/balance_tree.h"
#include "plan/best_rule.h"
#include "plan/cells_rule.h"
#include "plan/coreset.h"
#include "plan/heavy_rule.h"
#include "plan/simple_rules.h"

namespace pith {
namespace {

using Texts = std::vector<std::string>;

/// Steps in short.
Texts texts_of(const Steps& steps) {
  const char* const names[] = {"append", "move",  "forget", "select", "pick",
                               "halve",  "split", "weigh",  "take"};
  Texts out;
  for (const Step& s : steps) {
    std::string text = names[static_cast<size_t>(s.op)];
    if (s.rows > 0) text += " " + std::to_string(s.rows);
    if (s.op == Op::kSelect || s.op == Op::kSplit)
      text += " of " + std::to_string(s.held) + " keep " + std::to_string(s.keep);
    if (s.old > 0) text += " old " + std::to_string(s.old);
    const bool around = s.op == Op::kSelect && s.first + s.behind > 0;
    if (s.op == Op::kHalve || around) text += " at " + std::to_string(s.first);
    if (s.behind > 0) text += " before " + std::to_string(s.behind);
    if (s.op == Op::kHalve || s.op == Op::kPick) text += " tag " + std::to_string(s.tag);
    if (s.op == Op::kPick)
      text += " of " + std::to_string(s.size) + " counted " + std::to_string(s.first);
    if (s.op == Op::kWeigh) text += " " + std::to_string(s.weight) + "/" + std::to_string(s.of);
    out.push_back(text);
  }
  return out;
}

/// The steps of a rule with `n` rows more.
Texts fed(const Rule& rule, PlanState& state, uint32_t n) {
  Steps steps;
  rule.feed(state, Zone::kLeaving, n, steps);
  return texts_of(steps);
}

Texts ended(const Rule& rule, PlanState& state) {
  Steps steps;
  rule.end_prompt(state, steps);
  return texts_of(steps);
}

TEST(Feed, BestRowsAreSelectedAtBudgetAndInterval) {
  const KeepBest best({10, 4, 0});
  PlanState s;
  EXPECT_EQ(fed(best, s, 13), (Texts{"move 13"}));
  EXPECT_EQ(fed(best, s, 1), (Texts{"move 1", "select of 14 keep 10"}));
  EXPECT_EQ(fed(best, s, 9), (Texts{"move 4", "select of 14 keep 10 old 10", "move 4",
                                    "select of 14 keep 10 old 10", "move 1"}));
  Steps end;
  best.end_prompt(s, end);
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(end[0].held, 11u);
  EXPECT_EQ(end[0].keep, 10u);
  best.end_prompt(s, end);
  EXPECT_EQ(end.size(), 1u) << "nothing is left to select";
}

TEST(Feed, WithoutAnIntervalABodyNeverHoldsMoreThanItsBudget) {
  const KeepBest best({40, 0, 0});
  PlanState s;
  EXPECT_EQ(fed(best, s, 40), (Texts{"move 40"}));
  EXPECT_EQ(fed(best, s, 5), (Texts{"move 1", "select of 41 keep 36", "move 4"}));
  Steps end;
  best.end_prompt(s, end);
  EXPECT_TRUE(end.empty()) << "41 rows would be too many";
  EXPECT_EQ(turn_of(1), 1u);
  EXPECT_EQ(turn_of(40), 5u);
  EXPECT_EQ(turn_of(1001), 126u);
}

TEST(Feed, RowsThatASlidingLayerHasLeftBehindAreNamed) {
  const KeepBest best({10, 4, /*exact=*/6, /*slides=*/16});
  PlanState s;
  Steps steps;
  best.feed(s, Zone::kLeaving, 14, steps);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[1].hidden, 4);  // 20 tokens seen: the next query sees positions from 5 on
}

TEST(Feed, CellsAreSelectedWhenARowFindsNoRoom) {
  const KeepCells cells({10, 5, 3}, true, false);
  PlanState s;
  EXPECT_EQ(fed(cells, s, 10), (Texts{"move 10"}));
  EXPECT_EQ(fed(cells, s, 1), (Texts{"select of 10 keep 2", "move 1"}));
  EXPECT_EQ(fed(cells, s, 8), (Texts{"move 7", "select of 10 keep 3 old 2", "move 1"}));
}

TEST(Feed, OfAPromptNoMoreCellsAreThinnedThanMustBe) {
  const KeepCells cells({100, 5, 3}, true, false);  // 75 rows of a prompt may stay
  const auto prompt = [&](uint32_t n) {
    PlanState s;
    s.gathers = true;
    fed(cells, s, n);
    const Texts steps = ended(cells, s);
    EXPECT_LE(s.body(), n > 100 ? 75u : n);
    return steps;
  };
  EXPECT_EQ(prompt(100), Texts{});
  // 7 cells of 5 lose 28 rows, where 26 must go.
  EXPECT_EQ(prompt(101), (Texts{"select of 101 keep 73 at 0 before 66"}));
  EXPECT_EQ(prompt(375), (Texts{"select of 375 keep 75"}));
  // All new cells, then one of old rows.
  EXPECT_EQ(prompt(376),
            (Texts{"select of 376 keep 76", "select of 76 keep 74 old 76 at 0 before 73"}));
  EXPECT_EQ(prompt(1125), (Texts{"select of 1125 keep 225", "select of 225 keep 75 old 225"}));

  PlanState s;
  s.gathers = true;
  fed(cells, s, 101);
  ended(cells, s);
  s.gathers = false;
  // 7 rows are old; the next 93 are new.
  EXPECT_EQ(fed(cells, s, 28), (Texts{"move 27", "select of 100 keep 22 old 7", "move 1"}));
  s.gathers = true;
  // A prompt behind old rows: they stay until no new row is left to thin.
  fed(cells, s, 95);
  EXPECT_EQ(ended(cells, s), (Texts{"select of 118 keep 74 old 22 at 22 before 41"}));
}

TEST(Feed, SamplesAreDrawnInPieces) {
  const KeepSample sample(40, true);
  PlanState s;
  EXPECT_EQ(fed(sample, s, 40), (Texts{"select 32 of 0 keep 32", "select 8 of 32 keep 40"}));
  EXPECT_EQ(fed(sample, s, 2), (Texts{"select 2 of 40 keep 40", "weigh 42/40"}));
}

TEST(Feed, HeavyRowsGiveTheLightestToTheirRule) {
  const KeepHeavy heavy({6, 4, 8}, std::make_shared<KeepAll>());
  PlanState s;
  EXPECT_EQ(fed(heavy, s, 9), (Texts{"move 9"}));
  EXPECT_EQ(fed(heavy, s, 2), (Texts{"move 1", "split 4 of 10 keep 6", "move 4", "move 1"}));
  EXPECT_EQ(s.at(Zone::kHeavy), 7u);
  EXPECT_EQ(s.body(), 4u);
}

TEST(Feed, BlocksAreHalvedIntoTheNextLevel) {
  const HalveBlocks blocks({2, 4});
  PlanState s;
  EXPECT_EQ(fed(blocks, s, 5), (Texts{"move 4", "halve 4 at 0 tag 0", "move 1"}));
  EXPECT_EQ(fed(blocks, s, 3), (Texts{"move 3", "halve 4 at 2 tag 0", "halve 4 at 0 tag 1"}));
  EXPECT_EQ(s.body(), 2u);
}

TEST(Feed, AtAPromptsEndAllButTheNewestRowsGoToTheLastLevel) {
  const HalveBlocks blocks({.rounds = 2, .block = 4, .flush = true});
  PlanState s;
  fed(blocks, s, 7);  // 2 rows of level 1, 3 of level 0: 7 = 4 + 3
  EXPECT_EQ(ended(blocks, s), (Texts{"halve 2 at 0 before 3 tag 1"}));
  EXPECT_EQ(s.body(), 4u);
  EXPECT_EQ(ended(blocks, s), Texts{});
  // The 3 rows that stayed and one more are a block; what was flushed is not halved again.
  EXPECT_EQ(fed(blocks, s, 1), (Texts{"move 1", "halve 4 at 1 tag 0"}));
  EXPECT_EQ(ended(blocks, s), (Texts{"halve 2 at 1 tag 1"}));
  EXPECT_EQ(s.body(), 2u);
}

TEST(Feed, FromAPromptsEndToTheNextOnesRowsRest) {
  const HalveBlocks blocks({.rounds = 1, .block = 4, .rests = true});
  PlanState s;
  fed(blocks, s, 6);
  EXPECT_EQ(ended(blocks, s), Texts{});
  EXPECT_EQ(fed(blocks, s, 9), (Texts{"move 9"}));
  EXPECT_EQ(s.body(), 13u);
  EXPECT_EQ(ended(blocks, s),
            (Texts{"halve 4 at 2 before 7 tag 0", "halve 4 at 4 before 3 tag 0"}));
  EXPECT_EQ(s.body(), 9u);
}

TEST(Feed, ACoresetIsThinnedWhenARowFindsNoRoom) {
  const KeepCoreset coreset({8, 0});  // levels from tau = 16 on only: s is small
  PlanState s;
  EXPECT_EQ(fed(coreset, s, 8), (Texts{"move 8"}));
  EXPECT_EQ(fed(coreset, s, 3),
            (Texts{"halve 8 at 0 tag 0", "halve 4 at 0 tag 1", "pick 3 tag 255 of 2 counted 0"}));
  EXPECT_EQ(fed(coreset, s, 6), (Texts{"pick 5 tag 255 of 2 counted 1", "halve 4 at 2 tag 1",
                                       "pick 1 tag 255 of 2 counted 0"}));
  EXPECT_EQ(s.body(), 5u);
}

TEST(Feed, VotesStartAnewAPeriodBeforeTheSelection) {
  const KeepBest best({10, 4, 0}, {MassWish::Of::kVotes, 3});
  PlanState s;
  EXPECT_EQ(best.mass(s, 5), (MassRequest{3, true}));  // a long pass brings all votes itself
  fed(best, s, 11);
  EXPECT_EQ(best.mass(s, 1), (MassRequest{1, true}));  // three rows are left
  fed(best, s, 1);
  EXPECT_EQ(best.mass(s, 1), (MassRequest{1, false}));
}

}  // namespace
}  // namespace pith
