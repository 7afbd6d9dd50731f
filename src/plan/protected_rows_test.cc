// Ranges of protected rows against a table of flags, position by position.

#include "plan/protected_rows.h"

#include <gtest/gtest.h>

#include "pith/error.h"

namespace pith {
namespace {

TEST(ProtectedRows, AgreesWithATableOfFlags) {
  const std::vector<std::vector<TokenRange>> cases = {
      {}, {{0, 1}}, {{0, 5}, {5, 9}}, {{3, 4}, {20, 63}, {10, 13}}, {{99, 100}}};
  for (const auto& ranges : cases) {
    ProtectedRows rows;
    rows.add(ranges, 0, 100);
    std::vector<bool> flags(200);
    for (const TokenRange& r : ranges)
      for (int64_t p = r.first; p < r.last; ++p) flags[static_cast<size_t>(p)] = true;
    int64_t before = 0;
    for (int64_t p = 0; p < 200; ++p) {
      ASSERT_EQ(rows.before(p), before);
      const bool here = flags[static_cast<size_t>(p)];
      if (!here) {
        ASSERT_EQ(rows.position_of(p - before), p);
      }
      const ProtectedRows::Run run = rows.run_at(p, 200 - p);
      EXPECT_EQ(run.is_protected, here);
      ASSERT_GT(run.count, 0);
      for (int64_t i = 0; i < run.count; ++i)
        ASSERT_EQ(flags[static_cast<size_t>(p + i)], here) << p << " " << i;
      EXPECT_EQ(rows.run_at(p, 1).count, 1);
      before += here;
    }
    for (int64_t first : {0, 4, 25, 150})
      EXPECT_EQ(rows.from(first).before(200), rows.before(200) - rows.before(first));
  }
}

TEST(ProtectedRows, RefusesWhatCannotBeAndChangesNothing) {
  ProtectedRows rows;
  rows.add(std::vector<TokenRange>{{10, 20}}, 5, 100);
  const auto says = [&](TokenRange bad, const std::string& reason) {
    try {
      rows.add(std::vector<TokenRange>{{30, 31}, bad}, 5, 100);
      ADD_FAILURE() << "accepted " << bad.first << ":" << bad.last;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(e.what()).find(reason), std::string::npos) << e.what();
    }
    EXPECT_EQ(rows.ranges(), (std::vector<TokenRange>{{10, 20}}));
  };
  says({7, 6}, "FIRST < LAST");
  says({7, 7}, "FIRST < LAST");
  says({-1, 6}, "0 <= FIRST");
  says({4, 8}, "seen already");
  says({90, 101}, "context has 100");
  says({19, 22}, "overlaps 10:20");
  says({30, 35}, "overlaps 30:31");
}

TEST(ProtectedRows, RangesAreReadAndWritten) {
  EXPECT_TRUE(parse_ranges("").empty());
  EXPECT_EQ(parse_ranges("0:120,500:620"), (std::vector<TokenRange>{{0, 120}, {500, 620}}));
  EXPECT_EQ(to_string(parse_ranges("0:120,500:620")), "0:120,500:620");
  for (const char* bad :
       {"1", "1:", ":2", "1:2,", ",1:2", "a:b", "1:2x", "1-2", "1:2:3", "1:99999999999999999999"})
    EXPECT_THROW(parse_ranges(bad), Error) << bad;
}

}  // namespace
}  // namespace pith
