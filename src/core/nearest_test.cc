#include "pith/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace pith {
namespace {

TEST(Nearest, TwoEditsAtMostAndHalfOfTheWord) {
  const std::vector<std::string> names{"run", "serve", "--temp", "balancekv", "uniform"};
  const auto says = [&](const std::string& word) { return did_you_mean(word, names); };
  EXPECT_EQ(says("serve"), " (did you mean 'serve'?)");
  EXPECT_EQ(says("sevre"), " (did you mean 'serve'?)");  // two letters swapped: one edit
  EXPECT_EQ(says("rnu"), " (did you mean 'run'?)");
  EXPECT_EQ(says("--tempp"), " (did you mean '--temp'?)");
  EXPECT_EQ(says("balance"), " (did you mean 'balancekv'?)");
  EXPECT_EQ(says("unifromm"), " (did you mean 'uniform'?)");  // swapped and doubled
  EXPECT_EQ(says("nuifromm"), "") << "three";
  EXPECT_EQ(says("nur"), "") << "two, of three letters";
  EXPECT_EQ(says("r"), "");
  EXPECT_EQ(says(""), "");
  EXPECT_EQ(did_you_mean("run", {}), "");
  EXPECT_EQ(nearest_name("rum", std::vector<std::string>{"rub", "run"}), 0u) << "the first";
}

}  // namespace
}  // namespace pith
