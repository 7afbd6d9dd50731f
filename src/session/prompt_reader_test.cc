// Prompts that come chunk by chunk between the steps of others: what is kept of them is found, and
// what is found changes no bit.

#include <gtest/gtest.h>

#include "pith/error.h"
#include "session/test_demo.h"
#include "session/test_prefix_tree.h"
#include "session/test_refused.h"

namespace pith {
namespace {

using test::demo;
using test::Logits;
using test::policies;
using test::same_bits;
using test::some_ids;
using test::with_policy;
using Ids = std::vector<int32_t>;

constexpr size_t kMuch = size_t{1} << 30;

std::shared_ptr<Engine> engine() {
  EngineOptions o;
  o.threads = 1;
  o.chunk = 80;
  return std::make_shared<Engine>(demo(), o);
}

Logits next_logits(Session& session) {
  const auto logits = session.decode(11);
  return {logits.begin(), logits.end()};
}

class PromptReaderBits : public testing::TestWithParam<size_t> {};

// Pieces of 150, 260 and 90 tokens, in chunks of 80, while two others decode.
TEST_P(PromptReaderBits, ASchedulersSnapshotsAreFound) {
  const auto e = engine();
  const SessionOptions options = with_policy(policies()[GetParam()], 1200);
  PrefixTree tree(e, {.max_bytes = kMuch});
  const Ids text = some_ids(500, 1);
  const std::vector<size_t> points = {150, 410};
  const Prompt prompt{text, points, "", "talk"};
  Session whole(e, options);
  size_t from = 0;
  for (const size_t end : prompt_pieces(prompt)) {
    whole.append(std::span(text).subspan(from, end - from),
                 end == text.size() ? Append::kPromptEnds : Append::kMore);
    from = end;
  }
  const Logits cold = next_logits(whole);

  std::vector<Session> others;
  for (uint32_t i = 0; i < 2; ++i) {
    others.emplace_back(e, options);
    others.back().append(some_ids(40, 7 + i));
  }
  const int32_t other_tokens[] = {5, 9};
  const auto read = [&](size_t stop_at, Reuse& reuse) {
    Session session = tree.begin(options, prompt, &reuse);
    PromptReader reader(session, prompt);
    for (size_t steps = 0; !reader.done() && reader.at() < stop_at; ++steps) {
      std::vector<Work> works{reader.next(session)};
      for (size_t i = 0; i < others.size(); ++i)
        works.push_back({&others[i], {&other_tokens[i], 1}});
      e->step(works);
      for (const Work& w : works) EXPECT_FALSE(w.failure) << w.failure->what();
      EXPECT_LE(works[0].tokens.size(), 80u);
      if (reader.took(works[0])) tree.keep(session, prompt);
    }
    return session;
  };
  Reuse reuse;
  Session first = read(500, reuse);
  EXPECT_EQ(reuse.tokens, 0u);
  EXPECT_TRUE(same_bits(next_logits(first), cold));
  EXPECT_EQ(tree.statistics().snapshots, 2u);
  Session again = read(500, reuse);
  EXPECT_EQ(reuse.tokens, 410u) << reuse.reason;
  EXPECT_TRUE(same_bits(next_logits(again), cold));

  // PrefixTree::read finds what steps have kept, and the other way round.
  Session by_tree = tree.begin(options, prompt, &reuse);
  EXPECT_EQ(reuse.tokens, 410u);
  tree.read(by_tree, prompt);
  EXPECT_TRUE(same_bits(next_logits(by_tree), cold));

  // A prompt whose client goes away in the middle of a piece: its chunks are found again.
  tree.clear();
  {
    Session broken_off = read(300, reuse);
    EXPECT_TRUE(tree.keep(broken_off, prompt));
  }
  Session resumed = read(500, reuse);
  EXPECT_EQ(reuse.tokens, 310u) << reuse.reason;
  EXPECT_TRUE(same_bits(next_logits(resumed), cold));
  // A prompt with another end of that piece has no chunk that ends there.
  tree.clear();
  {
    Session broken_off = read(300, reuse);
    tree.keep(broken_off, prompt);
  }
  const std::vector<size_t> elsewhere = {150, 330};  // cut at 150, 230, 266, 330
  Session other = tree.begin(options, {text, elsewhere, "", "talk"}, &reuse);
  EXPECT_EQ(reuse.tokens, 150u) << reuse.reason;
}

INSTANTIATE_TEST_SUITE_P(Policies, PromptReaderBits, testing::Range<size_t>(0, policies().size()));

TEST(PromptReader, ABrokenOffPromptGoesOnAsIfItHadNotBeen) {
  const auto e = engine();
  for (const std::string& policy : policies()) {
    const Ids text = some_ids(300, 3);
    Session whole(e, with_policy(policy, 1200)), broken(e, with_policy(policy, 1200));
    whole.append(text);
    broken.append(text, [](size_t done, size_t) { return done < 100; });
    ASSERT_EQ(broken.tokens(), 160u);
    broken.append(std::span(text).subspan(160));
    EXPECT_TRUE(same_bits(next_logits(broken), next_logits(whole))) << policy;
  }
}

TEST(PromptReader, RefusesOtherPromptsAndPointsOutOfOrder) {
  const auto e = engine();
  const Ids text = some_ids(300, 4);
  Session session(e, with_policy("exact", 1200));
  session.append(std::span(text).first(100), Append::kMore);
  const auto invalid = ErrorCode::kInvalidArgument;
  const Ids other = some_ids(300, 5);
  test::refused(invalid, "does not", [&] { PromptReader(session, {other}); });
  test::refused(invalid, "does not", [&] { PromptReader(session, {std::span(text).first(100)}); });
  const std::vector<size_t> points = {200, 120};
  test::refused(invalid, "ascending", [&] { PromptReader(session, {text, points}); });
}

}  // namespace
}  // namespace pith
