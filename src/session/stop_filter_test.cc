#include "session/stop_filter.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>
#include <vector>

#include "pith/error.h"

namespace pith {
namespace {

struct Outcome {
  std::string text;
  bool stopped = false;
  bool operator==(const Outcome&) const = default;
};

// By definition: the first position where some stop string ends; of those that end there the
// longest is cut off.
Outcome oracle(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 0; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const auto& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopFilter, MatchesItsDefinitionForAnyCutting) {
  const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c'));
  const bool held = rc::check([&] {
    const auto pieces = *rc::gen::container<std::vector<std::string>>(letters);
    const auto stops = *rc::gen::container<std::vector<std::string>>(rc::gen::nonEmpty(letters));
    std::string text, got;
    StopFilter filter(stops);
    for (const auto& piece : pieces) {
      text += piece;
      got += filter.push(piece);
      // Text that came out is never taken back, and none is held back without need.
      const Outcome now = oracle(text, stops);
      RC_ASSERT(now.text.compare(0, got.size(), got) == 0);
      RC_ASSERT(filter.stopped() == now.stopped);
      if (stops.empty()) RC_ASSERT(got == text);
    }
    got += filter.finish();
    RC_ASSERT((Outcome{got, filter.stopped()}) == oracle(text, stops));
  });
  EXPECT_TRUE(held);
}

TEST(StopFilter, HoldsBackOnlyWhatMayBecomeAStop) {
  const std::vector<std::string> stops{"\nUser:"};
  StopFilter filter(stops);
  EXPECT_EQ(filter.push("Yes.\nUs"), "Yes.");
  EXPECT_EQ(filter.push("e"), "");
  EXPECT_EQ(filter.push("ful"), "\nUseful");
  EXPECT_EQ(filter.push("\nUser: more"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.push("ignored"), "");
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopFilter, ReleasesAtTheEnd) {
  const std::vector<std::string> stops{"END"};
  StopFilter filter(stops);
  EXPECT_EQ(filter.push("the EN"), "the ");
  EXPECT_EQ(filter.finish(), "EN");
  EXPECT_FALSE(filter.stopped());
}

TEST(StopFilter, RefusesTheEmptyString) {
  const std::vector<std::string> stops{"a", ""};
  EXPECT_THROW(StopFilter{stops}, Error);
}

}  // namespace
}  // namespace pith
