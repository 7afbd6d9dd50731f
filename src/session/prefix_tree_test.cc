// A session from a snapshot gives the same bits as one without, whatever was kept, found or evicted
// before; and no snapshot is found that differs from the prompt.

#include "pith/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "core/philox.h"
#include "pith/error.h"
#include "session/test_demo.h"
#include "session/test_prefix_tree.h"

namespace pith {
namespace {

using test::demo;
using test::Logits;
using test::policies;
using test::same_bits;
using test::some_ids;
using test::with_policy;
using Ids = std::vector<int32_t>;

std::shared_ptr<Engine> engine(size_t memory_limit = 0) {
  EngineOptions o;
  o.threads = 1;
  o.chunk = 80;
  o.memory_limit = memory_limit;
  return std::make_shared<Engine>(demo(), o);
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

constexpr size_t kMuch = size_t{1} << 30;

/// The logits after a prompt that nothing was kept of, read by Session alone.
Logits cold(const std::shared_ptr<Engine>& e, const SessionOptions& options, const Prompt& prompt) {
  Session session(e, options);
  size_t at = 0;
  for (const size_t end : prompt_pieces(prompt)) {
    const bool last = end == prompt.tokens.size();
    session.append(prompt.tokens.subspan(at, end - at), last ? Append::kPromptEnds : Append::kMore);
    at = end;
  }
  const auto logits = session.decode(11);
  return {logits.begin(), logits.end()};
}

Logits warm(PrefixTree& tree, const SessionOptions& options, const Prompt& prompt, Reuse& reuse) {
  Session session = tree.begin(options, prompt, &reuse);
  tree.read(session, prompt);
  EXPECT_TRUE(std::ranges::equal(session.token_ids(), prompt.tokens));
  const auto logits = session.decode(11);
  return {logits.begin(), logits.end()};
}

TEST(PromptPieces, AreAFunctionOfTheForkPointsAndNeverShort) {
  const Ids ids(500);
  const std::vector<size_t> points = {10, 63, 64, 100, 128, 300, 300, 499, 500, 600};
  const Prompt prompt{ids, points};
  EXPECT_EQ(prompt_pieces(prompt), (std::vector<size_t>{64, 128, 300, 499, 500}));
  EXPECT_EQ(prompt_pieces({ids}), (std::vector<size_t>{500}));
  // From any cut on they are what they were.
  EXPECT_EQ(prompt_pieces(prompt, 128), (std::vector<size_t>{300, 499, 500}));
  EXPECT_EQ(prompt_pieces(prompt, 499), (std::vector<size_t>{500}));
}

class PrefixTreeBits : public testing::TestWithParam<size_t> {};

TEST_P(PrefixTreeBits, WhatWasKeptChangesNoBit) {
  test::expect_kept_changes_no_bit(engine(), engine(), policies()[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(Policies, PrefixTreeBits, testing::Range<size_t>(0, policies().size()));

// Against a list that is searched from end to end.
TEST(PrefixTree, FindsTheLongestThatIsKeptAndNoOther) {
  const auto e = engine();
  const SessionOptions options = with_policy("streaming_llm(window=8)+int4", 1200);
  PrefixTree tree(e, {.max_bytes = kMuch});
  std::vector<Ids> kept;
  const Philox random(5, 0, 0);
  const Ids text = some_ids(500, 1), other = some_ids(500, 2);
  size_t hits = 0;
  for (size_t i = 0; i < 60; ++i) {
    const auto word = random.words(i);
    Ids all = text;  // some way along one text, then another
    const size_t turn_off = word[0] % 400, length = turn_off + 70 + word[1] % 80;
    std::copy_n(other.begin(), 500 - turn_off, all.begin() + static_cast<ptrdiff_t>(turn_off));
    all.resize(length);
    const size_t point = 64 + word[2] % (length - 64);
    const std::vector<size_t> points = {point};
    const Prompt prompt{all, points};
    size_t expected = 0;
    for (const Ids& k : kept)  // all have one cut, at their end
      if (k.size() == point && std::ranges::equal(k, std::span(all).first(point))) expected = point;
    Reuse reuse;
    Session session = tree.begin(options, prompt, &reuse);
    EXPECT_EQ(reuse.tokens, expected) << i << ": " << reuse.reason;
    hits += expected > 0;
    if (session.tokens() == 0 && word[3] % 2 == 0) {
      session.append(std::span(all).first(point), Append::kMore);
      EXPECT_TRUE(tree.keep(session, prompt));
      kept.emplace_back(all.begin(), all.begin() + static_cast<ptrdiff_t>(point));
    }
    // The same again, so that half of all that is kept is found.
    if (!kept.empty() && i % 2 == 0) {
      const Ids& again = kept[word[1] % kept.size()];
      const Ids longer = joined(again, {1, 2, 3});
      const std::vector<size_t> there = {again.size()};
      tree.begin(options, {longer, there}, &reuse);
      EXPECT_EQ(reuse.tokens, again.size());
      tree.begin(options, {again, there}, &reuse);
      EXPECT_EQ(reuse.tokens, 0u) << "nothing would be left to read";
      ++hits;
    }
  }
  const PrefixTree::Statistics counts = tree.statistics();
  EXPECT_EQ(counts.snapshots, kept.size());
  EXPECT_EQ(counts.prompt_hits, hits);
  EXPECT_GT(kept.size(), 10u);
  tree.clear();
  EXPECT_EQ(tree.statistics().snapshots + tree.statistics().bytes, 0u);
}

TEST(PrefixTree, NothingIsFoundUnderAnotherKey) {
  const auto e = engine();
  SessionOptions base = with_policy("keydiff(budget=25%)+int4", 600);
  base.protect = {{0, 5}};
  const Ids ids = some_ids(200, 3);
  const std::vector<size_t> points = {150}, elsewhere = {80, 150};
  const Prompt prompt{ids, points, "a", "talk"};
  PrefixTree tree(e, {.max_bytes = kMuch});
  Reuse reuse;
  warm(tree, base, prompt, reuse);
  EXPECT_EQ(reuse.reason, "nothing is kept");
  warm(tree, base, prompt, reuse);
  EXPECT_EQ(reuse.tokens, 150u);
  // Written otherwise, the same policy.
  SessionOptions same = base;
  same.policy = Policy::parse("keydiff(budget=25%,interval=64)+k:int4+v:int4");
  const bool really = Session(e, same).describe_policy() == Session(e, base).describe_policy();
  tree.begin(same, prompt, &reuse);
  EXPECT_EQ(reuse.tokens > 0, really) << reuse.reason;

  using Change = std::function<void(SessionOptions&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"policy", [](auto& o) { o.policy = Policy::parse("keydiff(budget=25%)+int8"); }},
      {"context", [](auto& o) { o.context = 601, o.percent_of = 600; }},
      {"per cent of", [](auto& o) { o.percent_of = 300; }},
      {"seed", [](auto& o) { o.seed = 1; }},
      {"error probe", [](auto& o) { o.error_probe.rows = 64; }},
      {"error limit", [](auto& o) { o.error_probe.max_error = 1; }},
      {"cache limit", [](auto& o) { o.cache_limit = kMuch; }},
      {"protected tokens", [](auto& o) {
         o.protect = {{0, 6}};
       }}};
  for (const auto& [name, change] : changes) {
    SessionOptions o = base;
    change(o);
    const Logits expected = cold(e, o, prompt);
    PrefixTree fresh(e, {.max_bytes = kMuch});
    warm(fresh, base, prompt, reuse);
    EXPECT_TRUE(same_bits(warm(fresh, o, prompt, reuse), expected)) << name;
    EXPECT_EQ(reuse.kind, Reuse::Kind::kNone) << name;
    EXPECT_NE(reuse.reason.find(name), std::string::npos) << reuse.reason;
  }
  Prompt stranger = prompt;
  stranger.tenant = "b";
  tree.begin(base, stranger, &reuse);
  EXPECT_EQ(reuse.reason, "what is kept has another tenant");
  // Another cut on the way gives other bits: it is no beginning of this prompt.
  const Prompt recut{ids, elsewhere, "a", "talk"};
  EXPECT_TRUE(same_bits(warm(tree, base, recut, reuse), cold(e, base, recut)));
  EXPECT_EQ(reuse.tokens, 0u);
  EXPECT_NE(reuse.reason.find("cut elsewhere"), std::string::npos) << reuse.reason;
  // One token differs.
  Ids near = ids;
  near[149] ^= 1;
  tree.begin(base, {near, points, "a"}, &reuse);
  EXPECT_EQ(reuse.tokens, 0u);
}

TEST(PrefixTree, AnAnswerIsGoneOnFromByItsOwnConversation) {
  const auto e = engine();
  const SessionOptions options = with_policy("snapkv(budget=40)+int4", 600);
  PrefixTree tree(e, {.max_bytes = kMuch, .answers = 2});
  const Ids ids = some_ids(120, 4);
  const Prompt prompt{ids, {}, "", "mine"};
  Session session = tree.begin(options, prompt);
  tree.read(session, prompt);
  Ids past = ids;
  for (int turn = 0; turn < 4; ++turn) {
    session.decode(9);
    past.push_back(9);
    EXPECT_TRUE(tree.keep(session, prompt));
  }
  EXPECT_EQ(tree.statistics().snapshots, 2u) << "the newest two";
  Ids next = joined(past, {1, 2, 3});
  Reuse reuse;
  tree.begin(options, {next, {}, "", "mine"}, &reuse);
  EXPECT_EQ(reuse.kind, Reuse::Kind::kAnswer);
  EXPECT_EQ(reuse.tokens, past.size());
  tree.begin(options, {next, {}, "", "yours"}, &reuse);
  EXPECT_EQ(reuse.kind, Reuse::Kind::kNone);
  tree.begin(options, {next}, &reuse);
  EXPECT_EQ(reuse.kind, Reuse::Kind::kNone);
  // The last message was edited: what was before it is there.
  Ids edited = past;
  edited.back() = 8;
  tree.begin(options, {edited, {}, "", "mine"}, &reuse);
  EXPECT_EQ(reuse.tokens, past.size() - 1);
}

TEST(PrefixTree, ForgetsWhatIsAConversationsOwn) {
  PrefixTree tree(engine(), {.max_bytes = kMuch});
  const SessionOptions options = with_policy("exact", 600);
  const Ids system = some_ids(100, 1);
  const std::vector<size_t> points = {100, 200};
  const auto talk = [&](const std::string& name, uint64_t seed) {
    const Ids ids = joined(system, some_ids(180, seed));
    const Prompt prompt{ids, points, "t", name};
    Session session = tree.begin(options, prompt);
    tree.read(session, prompt);
    session.decode(5);
    if (!name.empty()) tree.keep(session, prompt);
    return Ids(session.token_ids().begin(), session.token_ids().end());
  };
  const auto reused = [&](const Ids& ids, const std::string& name) {
    const Ids longer = joined(ids, {7});
    const Prompt prompt{longer, points, "t", name};
    Reuse reuse;
    tree.begin(options, prompt, &reuse);
    return reuse.tokens;
  };
  const Ids a = talk("a", 2), b = talk("b", 3);
  EXPECT_EQ(tree.statistics().snapshots, 5u);  // the system's, and two of each
  const Ids longer = joined(a, {7});
  EXPECT_EQ(tree.longest(options, {longer, points, "t", "a"}), a.size());
  EXPECT_EQ(tree.longest(options, {longer, points, "t", "b"}), 200u);
  EXPECT_EQ(tree.longest(options, {longer, points, "u", "a"}), 0u);
  for (const auto& [tenant, name] : {std::pair{"u", "a"}, {"t", "c"}, {"t", ""}})
    EXPECT_EQ(tree.forget(tenant, name), 0u);

  const size_t before = tree.statistics().bytes;
  const size_t freed = tree.forget("t", "a");
  EXPECT_EQ(tree.statistics().bytes, before - freed);
  EXPECT_EQ(tree.statistics().snapshots, 3u);
  EXPECT_EQ(tree.longest(options, {longer, points, "t", "a"}), 100u);
  EXPECT_EQ(reused(b, "b"), b.size());
  // Prompts that were read without a name are for all.
  talk("", 4);
  tree.forget("t", "b");
  EXPECT_EQ(tree.statistics().snapshots, 2u);
  EXPECT_EQ(reused(b, "c"), 100u);
}

TEST(PrefixTree, RefusesByName) {
  const auto e = engine(), other = engine();
  PrefixTree tree(e, {.max_bytes = kMuch});
  const Ids ids = some_ids(30, 5);
  const Prompt prompt{ids};
  const auto code = [](const auto& f) {
    try {
      f();
    } catch (const Error& error) {
      return std::optional(error.code());
    }
    return std::optional<ErrorCode>();
  };
  Session stranger(other, with_policy("exact")), own(e, with_policy("exact"));
  EXPECT_EQ(code([&] { tree.keep(own, prompt); }), ErrorCode::kInvalidArgument) << "empty";
  stranger.append(ids), own.append(ids);
  EXPECT_EQ(code([&] { tree.keep(stranger, prompt); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([&] { tree.keep(own, prompt); }), ErrorCode::kInvalidArgument) << "nobody's";
  EXPECT_EQ(code([&] { tree.read(own, prompt); }), ErrorCode::kInvalidArgument) << "all is read";
  const Ids others = some_ids(40, 6);
  EXPECT_EQ(code([&] { tree.read(own, {others}); }), ErrorCode::kInvalidArgument);
  SessionOptions wrong = with_policy("exact");
  wrong.error_probe.rows = 1;
  EXPECT_EQ(code([&] { tree.begin(wrong, prompt); }), ErrorCode::kInvalidArgument);
  // Stopped on the way: what was read stays.
  Session half(e, with_policy("exact"));
  const Ids longer = some_ids(300, 7);
  const std::vector<size_t> points = {100};
  tree.read(half, {longer, points}, [](size_t done, size_t total) {
    EXPECT_EQ(total, 300u);
    return done < 180;
  });
  EXPECT_EQ(half.tokens(), 180u);
}

TEST(PrefixTree, ASystemPromptOfAThousandSessionsIsHeldOnce) {
  const auto e = engine();
  const SessionOptions options = with_policy("keydiff(budget=48)+int4,window=16", 600);
  PrefixTree tree(e, {.max_bytes = kMuch});
  const auto of_sessions = [&] { return e->bytes_in_use() - e->ledger().total_bytes(); };
  const Ids system = some_ids(200, 8);
  const std::vector<size_t> points = {system.size()};
  for (int32_t i = 0; i < 1000; ++i) {
    const Ids ids = joined(system, {i, i + 1, i + 2});
    Session session = tree.begin(options, {ids, points});
    EXPECT_EQ(session.tokens(), i == 0 ? 0 : system.size());
    if (i < 3) tree.read(session, {ids, points});
  }
  const PrefixTree::Statistics counts = tree.statistics();
  EXPECT_EQ(counts.snapshots, 1u);
  EXPECT_EQ(counts.prompt_hits, 999u);
  EXPECT_EQ(counts.tokens_reused, 999u * system.size());
  // Counted once, by the engine; ids are beside its account.
  EXPECT_EQ(of_sessions(), counts.bytes - system.size() * sizeof(int32_t));
  tree.clear();
  EXPECT_EQ(of_sessions(), 0u);
}

TEST(PrefixTree, BytesAreALimitAndTheLeastWorthGivesWay) {
  const auto e = engine();
  const SessionOptions options = with_policy("exact", 600);
  const auto prompt_of = [](uint64_t seed) { return some_ids(150, seed); };
  const std::vector<size_t> points = {140};
  size_t one = 0;
  {
    PrefixTree probe(e, {.max_bytes = kMuch});
    const Ids ids = prompt_of(0);
    Session s = probe.begin(options, {ids, points});
    probe.read(s, {ids, points});
    one = probe.statistics().bytes;
  }
  PrefixTree tree(e, {.max_bytes = 4 * one + one / 2});
  Reuse reuse;
  for (uint64_t i = 0; i < 12; ++i) {
    const Ids ids = prompt_of(i), favourite = prompt_of(0);
    Session s = tree.begin(options, {ids, points});
    tree.read(s, {ids, points});
    EXPECT_LE(tree.statistics().bytes, 4 * one + one / 2);
    tree.begin(options, {favourite, points}, &reuse);
    EXPECT_EQ(reuse.tokens, 140u) << "what is used stays, " << i;
  }
  EXPECT_EQ(tree.statistics().snapshots, 4u);
  EXPECT_EQ(tree.statistics().evicted, 8u);
  // One that is too large for the limit of one, and a tree that keeps nothing.
  for (const PrefixTreeOptions small : {PrefixTreeOptions{kMuch, one / 2}, PrefixTreeOptions{0}}) {
    PrefixTree none(e, small);
    const Ids ids = prompt_of(1);
    EXPECT_TRUE(
        same_bits(warm(none, options, {ids, points}, reuse), cold(e, options, {ids, points})));
    EXPECT_EQ(none.statistics().snapshots, 0u);
    EXPECT_GT(none.statistics().too_large, 0u);
  }
}

TEST(PrefixTree, SnapshotsGiveWayToSessionsWhereTheEngineHasNoRoom) {
  const size_t empty = engine()->bytes_in_use();
  const auto e = engine(empty + (size_t{6} << 20));
  const SessionOptions options = with_policy("exact", 600);
  PrefixTree tree(e, {.max_bytes = kMuch});
  const std::vector<size_t> points = {140};
  for (uint64_t i = 0; i < 40; ++i) {
    const Ids ids = some_ids(150, i);
    Session s = tree.begin(options, {ids, points});
    try {
      tree.read(s, {ids, points});
    } catch (const Error& error) {  // rows need room too: a server makes it
      ASSERT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_GT(tree.shrink(size_t{2} << 20), 0u);
    }
  }
  EXPECT_GT(tree.statistics().evicted, 0u);
  EXPECT_LE(e->peak_bytes(), empty + (size_t{6} << 20));
}

}  // namespace
}  // namespace pith
