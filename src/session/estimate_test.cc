// Estimates are bounds: no session holds more, and they are not far above it.

#include <gtest/gtest.h>

#include <cstdlib>

#include "policy_forms.h"
#include "session/test_company.h"
#include "session/test_demo.h"

namespace pith {
namespace {

using test::demo;
using test::some_ids;

/// Every selector, every codec, and prompts that are read otherwise.
std::vector<std::string> forms() {
  std::vector<std::string> all = test::registered_forms("exact");
  for (const char* more :
       {"keydiff(budget=96)+int4,prompt=exact", "snapkv(budget=96)+int4,prompt=once",
        "uniform(budget=96,heavy=32)+int4", "express(s=64,heavy=32)+turboquant,window=16"})
    all.emplace_back(more);
  return all;
}

/// Reads `tokens` in all, the last one by one. Returns the bytes that the session holds in the end,
/// by the engine's account or by its own ledger, and the estimate.
std::pair<size_t, size_t> measure(const std::string& policy, size_t tokens, size_t chunk) {
  EngineOptions e;
  e.threads = 2;
  e.chunk = chunk;
  const auto engine = std::make_shared<Engine>(demo(), e);
  const SessionOptions o = test::with_policy(policy, 1024);
  const Session first(engine, o);  // with it comes what all sessions of a policy begin as
  const size_t before = engine->bytes_in_use() - engine->ledger().total_bytes();
  Session session(engine, o);
  constexpr size_t kAnswer = 4;
  const auto ids = some_ids(tokens, 7);
  session.prefill(std::span(ids).first(tokens - kAnswer));
  for (size_t i = tokens - kAnswer; i < tokens; ++i) session.decode(ids[i]);
  const size_t held = engine->bytes_in_use() - engine->ledger().total_bytes() - before;
  return {std::max(held, session.ledger().total_bytes()),
          estimate_ledger(demo()->config(), o, tokens, Device::kCpu).total_bytes()};
}

TEST(Estimates, AreAnUpperBoundAndNotFarOff) {
  double loosest = 1, sum = 0;
  size_t cases = 0;
  for (const std::string& policy : forms())
    for (const auto& [tokens, chunk] : {std::pair<size_t, size_t>{40, 512}, {150, 64}, {420, 64}}) {
      SCOPED_TRACE(policy + ", " + std::to_string(tokens) + " tokens");
      const auto [held, most] = measure(policy, tokens, chunk);
      EXPECT_LE(held, most);
      const double ratio = static_cast<double>(most) / static_cast<double>(held);
      // A prompt that is read exactly takes its memory only while it is read.
      if (policy.find("prompt=") == std::string::npos) {
        loosest = std::max(loosest, ratio);
        sum += ratio;
        ++cases;
      }
      if (std::getenv("PITH_SHOW_ESTIMATES"))
        std::printf("%-56s %4zu %9zu %9zu %.3f\n", policy.c_str(), tokens, held, most, ratio);
    }
  // A codec's groups of rows are bounded by a group for each row that may be left of one.
  EXPECT_LE(loosest, 2.5);
  EXPECT_LE(sum / static_cast<double>(cases), 1.15);
  std::printf("the loosest is %.3f of what is held, the mean %.3f\n", loosest,
              sum / static_cast<double>(cases));
}

}  // namespace
}  // namespace pith
