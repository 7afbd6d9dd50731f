#include "plan/ageing.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pith {
namespace {

// However rows come, the same number of them is old, and the young ones are at least `young`.
TEST(Ageing, DependsOnHowManyRowsThereAre) {
  constexpr Ageing kAgeing{100, 64};
  size_t old_rows = 0, young = 0;
  for (size_t n = 1; n < 1000; ++n) {
    const size_t due = kAgeing.due(++young);
    old_rows += due;
    young -= due;
    EXPECT_EQ(old_rows, kAgeing.due(n)) << "all at once";
    EXPECT_GE(young, std::min<size_t>(n, 100));
    EXPECT_LT(young, 164u);
  }
}

}  // namespace
}  // namespace pith
