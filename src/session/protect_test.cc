// Protected tokens in a conversation with the demo model.

#include <gtest/gtest.h>

#include <algorithm>

#include "paths.h"
#include "pith/error.h"
#include "pith/session.h"

namespace pith {
namespace {

bool holds(const Session& session, TokenRange range) {
  for (int layer = 0; layer < session.model().config().layers; ++layer)
    for (int head = 0; head < session.model().config().kv_heads; ++head) {
      const HeadRows rows = session.rows(layer, head);
      for (int64_t p = range.first; p < range.last; ++p)
        if (!std::binary_search(rows.positions.begin(), rows.positions.end(), p)) return false;
    }
  return true;
}

TEST(SessionProtect, TurnByTurnAndInForks) {
  StandaloneOptions options;
  options.policy = Policy::parse("streaming_llm(window=16)");
  options.context = 300;
  options.protect = {{0, 12}, {40, 50}};
  Session session(Model::load(repo_dir() / "models/demo"), options);
  std::vector<int32_t> ids(100);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(10 + i % 50);
  session.prefill(ids);
  EXPECT_TRUE(holds(session, {0, 12}));
  EXPECT_TRUE(holds(session, {40, 50}));
  EXPECT_FALSE(holds(session, {60, 61}));
  EXPECT_EQ(session.rows(0, 0).positions.size(), 4u + 8 + 10 + 16);

  const auto refused = [&](TokenRange r) {
    EXPECT_THROW(session.protect(std::vector<TokenRange>{r}), Error) << r.first << ":" << r.last;
  };
  refused({99, 110});
  refused({290, 301});
  session.protect(std::vector<TokenRange>{{100, 130}});
  refused({129, 140});
  EXPECT_EQ(session.options().protect.size(), 3u);
  Session fork = session.fork();
  for (Session* each : {&session, &fork}) {
    each->prefill(ids);
    EXPECT_TRUE(holds(*each, {0, 12}));
    EXPECT_TRUE(holds(*each, {100, 130}));
    EXPECT_FALSE(holds(*each, {130, 140}));
  }
  const Ledger most =
      estimate_ledger(session.model().config(), session.options(), 200, Device::kCpu);
  EXPECT_LE(session.ledger().cache_bytes(), most.cache_bytes());
  EXPECT_EQ(session.ledger().rows_kept, most.rows_kept);
}

TEST(SessionProtect, RangesBeyondTheContextAreRefusedAtOnce) {
  StandaloneOptions options;
  options.context = 100;
  options.protect = {{90, 101}};
  EXPECT_THROW(Session(Model::load(repo_dir() / "models/demo"), options), Error);
}

}  // namespace
}  // namespace pith
