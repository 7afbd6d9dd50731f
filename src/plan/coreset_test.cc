// Express's machine: what may go in one is what single steps do, however rows are cut.

#include "plan/coreset.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

namespace pith {
namespace {

ExpressShape any_shape() {
  return {uint32_t{1} << *rc::gen::inRange(3, 12), *rc::gen::inRange<uint32_t>(0, 3)};
}

/// The machine by single steps, which are told.
std::vector<Step> told(ExpressState& state, const ExpressShape& shape, uint64_t n) {
  std::vector<Step> steps;
  advance(state, shape, n, [&](const Step& step) { steps.push_back(step); });
  return steps;
}

struct Sum {
  uint64_t picked = 0, halvings = 0, halved = 0;
  explicit Sum(const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      const bool halve = step.op == Op::kHalve;
      picked += step.op == Op::kPick ? step.rows : 0;
      halvings += halve;
      halved += halve ? step.rows : 0;
    }
  }
};

RC_GTEST_PROP(Coreset, BucketsThatGoInOneAreTheStepsOneByOne, ()) {
  const ExpressShape shape = any_shape();
  const auto picks = *rc::gen::inRange<uint32_t>(0, 600);
  const uint32_t most = uint32_t{1} << *rc::gen::inRange(2, 7);
  ExpressState state;
  for (int calls = 0; calls < 30; ++calls) {
    uint64_t left = *rc::gen::inRange<uint64_t>(1, 9 * uint64_t{shape.target});
    for (;;) {
      ExpressState before = state;
      const Buckets buckets = next_buckets(state, shape, left, picks, most);
      if (buckets.count == 0) {
        RC_ASSERT(state == before);
        const Step step = next_step(state, shape, left);
        if (step.rows == 0) break;
        left -= step.op == Op::kHalve ? 0 : step.rows;
        continue;
      }
      RC_ASSERT(buckets.rows() <= left);
      RC_ASSERT(buckets.count * buckets.of.bucket <= picks);
      RC_ASSERT(buckets.of.bucket * buckets.levels <= most);
      left -= buckets.rows();
      const std::vector<Step> all = told(before, shape, buckets.rows());
      const Sum one_by_one(all), rest(told(state, shape, 0));
      RC_ASSERT(before == state);
      const uint64_t fours = buckets.levels == 2 ? buckets.count / 4 : 0;
      RC_ASSERT(one_by_one.picked == buckets.rows());
      RC_ASSERT(one_by_one.halvings - rest.halvings == buckets.count + fours);
      RC_ASSERT(one_by_one.halved - rest.halved == (buckets.count + 2 * fours) * buckets.of.bucket);
      RC_ASSERT(rest.picked == 0u);
    }
    RC_ASSERT(left == 0u);
    RC_ASSERT(state.rows() <= shape.most(state.seen));
  }
}

TEST(Coreset, MostHalvingsGoInOne) {
  const ExpressShape shape{2048, 1};
  ExpressState state;
  uint64_t together = 0, alone = 0;
  for (uint64_t left = 1 << 20; left > 0;) {
    if (const Buckets b = next_buckets(state, shape, left, 512, 32); b.count > 0) {
      left -= b.rows();
      together += b.count + (b.levels == 2 ? b.count / 4 : 0);
      continue;
    }
    const Step step = next_step(state, shape, left);
    if (step.op == Op::kHalve)
      ++alone;
    else
      left -= step.rows;
  }
  EXPECT_GT(together, 5 * alone);
}

}  // namespace
}  // namespace pith
