// Many sessions of one engine: each says what it would say alone, bit for bit, in any company; one
// that fails ends alone; idle ones take what their ledgers say.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <numeric>
#include <optional>

#include "pith/error.h"
#include "pith/generate.h"
#include "pith/prefix_tree.h"
#include "pith/session.h"
#include "session/test_company.h"
#include "session/test_demo.h"
#include "session/test_refused.h"

namespace pith {
namespace {

using test::demo;
using test::Logits;
using test::policies;
using test::same_bits;
using test::some_ids;
using test::Talk;
using test::with_policy;

EngineOptions small_engine(int threads = 2) {
  EngineOptions o;
  o.threads = threads;
  o.chunk = 48;
  return o;
}

Talk talk(size_t i) {
  return {policies()[i % policies().size()], some_ids(5 + 37 * i % 190, 100 + i),
          some_ids(12, 500 + i)};
}

class EngineBits : public testing::TestWithParam<size_t> {};

TEST_P(EngineBits, ASessionSaysInAnyCompanyWhatItSaysAlone) {
  std::vector<Talk> talks;
  for (size_t i = 0; i < GetParam(); ++i) talks.push_back(talk(i));
  test::expect_company_changes_nothing(std::make_shared<Engine>(demo(), small_engine()),
                                       std::make_shared<Engine>(demo(), small_engine(1)), talks, 5,
                                       [](size_t step) { return step % 2 != 0; });
}

INSTANTIATE_TEST_SUITE_P(Counts, EngineBits, testing::Values(1, 3, 8, 9, 17, 64),
                         [](const auto& i) { return std::to_string(i.param); });

TEST(EngineStep, ASessionWithoutRoomIsRefusedAlone) {
  const auto engine = std::make_shared<Engine>(demo(), small_engine());
  const auto ids = some_ids(150, 1);
  // A limit that the prompt fits and the answer does not.
  SessionOptions tight = with_policy("exact");
  Session probe(engine, tight);
  probe.append(ids);
  tight.cache_limit = probe.ledger().total_bytes() + (size_t{320} << 10);
  std::vector<Session> sessions;
  for (int i = 0; i < 5; ++i) sessions.emplace_back(engine, i == 2 ? tight : with_policy("exact"));
  for (Session& s : sessions) s.append(ids);
  Session twin = sessions[0].fork();
  const auto answer = some_ids(240, 2);
  size_t taken = 0;
  for (size_t t = 0; t < answer.size(); ++t) {
    std::vector<Logits> logits(sessions.size(), Logits(8192));
    std::vector<Work> works;
    for (size_t i = 0; i < sessions.size(); ++i) {
      works.push_back({&sessions[i], {&answer[t], 1}});
      works.back().logits = logits[i].data();
    }
    engine->step(works);
    const auto expected = twin.decode(answer[t]);
    for (size_t i = 0; i < sessions.size(); ++i) {
      if (i == 2 && works[i].failure) {
        EXPECT_EQ(works[i].failure->code(), ErrorCode::kOutOfMemory) << works[i].failure->what();
        continue;
      }
      ASSERT_FALSE(works[i].failure) << works[i].failure->what();
      if (i == 2) ++taken;
      EXPECT_TRUE(same_bits(logits[i], {expected.begin(), expected.end()})) << i << " at " << t;
    }
  }
  EXPECT_GT(taken, 0u);
  EXPECT_LT(taken, answer.size()) << "the limit was never met";
  // It is as it was after the last token that it took.
  EXPECT_EQ(sessions[2].tokens(), ids.size() + taken);
  Session again(engine, with_policy("exact"));
  again.append(ids);
  for (size_t t = 0; t < taken; ++t) again.decode(answer[t]);
  EXPECT_EQ(sessions[2].rows(1, 0).positions, again.rows(1, 0).positions);
}

TEST(EngineStep, WrongWorksAreRefusedOneByOneAndMixUpsAltogether) {
  const auto engine = std::make_shared<Engine>(demo(), small_engine());
  Session a(engine, with_policy("exact", 20)), b(engine, with_policy("exact", 20));
  const auto ids = some_ids(21, 3);
  const int32_t wrong = 8192;
  std::vector<Work> works = {{&a, ids}, {&b, {&wrong, 1}}};
  engine->step(works);
  EXPECT_EQ(works[0].failure->code(), ErrorCode::kContextFull);
  EXPECT_EQ(works[1].failure->code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(a.tokens() + b.tokens(), 0u);
  works = {{&a, {ids.data(), 5}}, {&b, {}}};
  engine->step(works);  // both are as good as new
  EXPECT_FALSE(works[0].failure);
  EXPECT_EQ(works[1].failure->code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(a.tokens(), 5u);

  const auto other = std::make_shared<Engine>(demo(), small_engine());
  Session stranger(other, with_policy("exact"));
  for (std::vector<Work> bad :
       {std::vector<Work>{{&a, ids}, {&a, ids}}, std::vector<Work>{{&a, ids}, {&stranger, ids}},
        std::vector<Work>{{nullptr, ids}}})
    EXPECT_THROW(engine->step(bad), Error);
  EXPECT_EQ(a.tokens(), 5u);
}

TEST(EngineStep, DrawsWhatTheSessionWouldDraw) {
  const auto engine = std::make_shared<Engine>(demo(), small_engine());
  std::vector<Session> sessions;
  std::vector<Sampler> samplers, again;
  std::vector<Work> works;
  const auto ids = some_ids(60, 4);
  for (size_t i = 0; i < 9; ++i) {
    sessions.emplace_back(engine, with_policy("exact"));
    samplers.emplace_back(SamplingOptions{.temperature = 1.5f, .seed = i});
    again.emplace_back(SamplingOptions{.temperature = 1.5f, .seed = i});
  }
  for (size_t i = 0; i < 9; ++i) {
    works.push_back({&sessions[i], {ids.data(), 1 + 5 * i}});
    works.back().sampler = &samplers[i];
  }
  engine->step(works);
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(works[i].next, sessions[i].sample(again[i])) << i;
}

/// The prompt in the pieces that the engine would cut it into; how all but the last come.
Session in_pieces(const std::shared_ptr<Engine>& engine, const std::string& policy,
                  std::span<const int32_t> ids, Append how) {
  Session session(engine, with_policy(policy));
  for (size_t done = 0; done < ids.size();) {
    const size_t count = engine->next_chunk(ids.size() - done);
    const bool last = done + count == ids.size();
    session.append(ids.subspan(done, count), last ? Append::kPromptEnds : how);
    done += count;
  }
  return session;
}

// NOLINTBEGIN(bugprone-use-after-move): that is what is tried.
TEST(Session, ThatWasMovedFromIsRefused) {
  const auto e = std::make_shared<Engine>(demo(), small_engine());
  Session session(e, with_policy("exact"));
  session.append(some_ids(20, 1));
  const Session moved = std::move(session);
  EXPECT_EQ(moved.tokens(), 20u);
  const int32_t token = 1;
  Sampler greedy({.temperature = 0});
  PrefixTree tree(e, {.max_bytes = size_t{1} << 20});
  const std::function<void()> calls[] = {
      [&] { session.decode(token); },
      [&] {
        session.append({&token, 1}, Append::kPart);
      },
      [&] { session.sample(greedy); },
      [&] {
        session.score({&token, 1});
      },
      [&] {
        session.prefill_logits({&token, 1}, {});
      },
      [&] { session.protect({}); },
      [&] { session.try_reserve(1); },
      [&] { (void)session.room(1); },
      [&] { session.save([](auto) {}); },
      [&] { Session::restore(std::move(session), "none"); },
      [&] { session.fork(); },
      [&] { (void)session.tokens(); },
      [&] { (void)session.token_ids(); },
      [&] { (void)session.ledger(); },
      [&] { (void)session.rows(0, 0); },
      [&] { (void)session.describe_policy(); },
      [&] { tree.keep(session, {}); },
      [&] { PromptReader(session, {}); },
  };
  for (size_t i = 0; i < std::size(calls); ++i) {
    SCOPED_TRACE(i);
    test::refused(ErrorCode::kInvalidArgument, "moved from", calls[i]);
  }
}
// NOLINTEND(bugprone-use-after-move)

TEST(Append, APromptInPiecesIsThePromptAtOnceIfItIsCutWhereTheEngineCuts) {
  const auto engine = std::make_shared<Engine>(demo(), small_engine());
  const auto ids = some_ids(203, 5);
  size_t told_apart = 0;
  for (const std::string& policy : policies()) {
    Session whole(engine, with_policy(policy));
    whole.append(ids);
    Session pieces = in_pieces(engine, policy, ids, Append::kMore);
    Session prompts = in_pieces(engine, policy, ids, Append::kPromptEnds);
    const auto a = whole.decode(7), b = pieces.decode(7), c = prompts.decode(7);
    const Logits wanted(a.begin(), a.end());
    EXPECT_TRUE(same_bits({b.begin(), b.end()}, wanted)) << policy;
    told_apart += !same_bits({c.begin(), c.end()}, wanted);
  }
  EXPECT_GT(told_apart, 0u) << "no policy selects at a prompt's end: this test sees nothing";
}

TEST(EngineMemory, AForkOutlivesItsOriginalAndBytesAreEachSessionsOwn) {
  for (const std::string& policy : policies()) {
    const auto engine = std::make_shared<Engine>(demo(), small_engine());
    const auto ids = some_ids(180, 8);
    auto original = std::make_unique<Session>(engine, with_policy(policy));
    original->append(ids);
    std::optional<Session> twin_room(original->fork());
    const Session& twin = *twin_room;
    const size_t before = original->ledger().total_bytes();
    std::optional<Session> fork_room(original->fork());
    Session& fork = *fork_room;
    fork.append(std::span(ids).subspan(0, 100));
    EXPECT_EQ(original->ledger().total_bytes(), before) << policy;
    original->append(std::span(ids).subspan(0, 100));
    const auto expected = original->decode(7);
    const Logits wanted(expected.begin(), expected.end());
    original.reset();
    const auto got = fork.decode(7);
    EXPECT_TRUE(same_bits({got.begin(), got.end()}, wanted)) << policy;
    // Tables that forks share are the engine's: they are not in the sum. Scratch is, and how much
    // that is depends on the machine: where products need f32, a chunk's is wider.
    const size_t sum =
        engine->ledger().total_bytes() + fork.ledger().total_bytes() + twin.ledger().total_bytes();
    if (policy.find("csr") == std::string::npos && policy.find("qjl") == std::string::npos) {
      EXPECT_LE(engine->bytes_in_use(), sum) << policy;
    }
    twin_room.reset();
    fork_room.reset();
    EXPECT_EQ(engine->bytes_in_use(), engine->ledger().total_bytes()) << policy;
  }
}

// Not forks of each other, and unlike in all that does not shape a table.
TEST(EngineMemory, TablesThatNoRowShapesAreThereOnceForSeparateSessions) {
  const auto engine = std::make_shared<Engine>(demo(), small_engine());
  const auto other = std::make_shared<Engine>(demo(), small_engine());
  const auto used = [&] { return engine->bytes_in_use() - engine->ledger().total_bytes(); };
  const auto ids = some_ids(120, 12);
  for (const std::string policy :
       {"exact+k:qjl(paper=true,m=128)+v:int4,window=16", "exact+qjl(paper=true),window=16"}) {
    SessionOptions plain = with_policy(policy), unlike = plain, reseeded = plain;
    unlike.protect = {{3, 5}};
    unlike.error_probe.rows = 64;
    unlike.cache_limit = size_t{1} << 30;
    reseeded.seed = 1;
    auto first = std::make_unique<Session>(engine, plain);
    const size_t tables = used();
    EXPECT_GT(tables, size_t{100} << 10) << policy;
    EXPECT_EQ(tables, first->ledger().shared) << policy;
    Session second(engine, plain), third(engine, unlike);
    EXPECT_EQ(used() - tables, third.ledger().probe) << policy;
    {
      const Session fourth(engine, reseeded);  // other numbers
      EXPECT_EQ(used() - tables, tables + third.ledger().probe) << policy;
    }
    // Each is what it is in an engine of its own, and may outlive the one that was first.
    first->append(ids);
    first.reset();
    for (const auto& [session, options] : {std::pair(&second, &plain), {&third, &unlike}}) {
      Session alone(other, *options);
      const auto a = session->prefill(ids), b = alone.prefill(ids);
      EXPECT_TRUE(same_bits({a.begin(), a.end()}, {b.begin(), b.end()})) << policy;
      EXPECT_EQ(session->rows(1, 0).positions, alone.rows(1, 0).positions) << policy;
      EXPECT_EQ(session->attention_errors().size(), alone.attention_errors().size()) << policy;
      EXPECT_EQ(session->ledger().cache_bytes(), alone.ledger().cache_bytes()) << policy;
    }
  }
  const Session empty(engine, with_policy("exact+csr(online=32),window=16"));
  EXPECT_EQ(used(), 0u) << "tables go with the last that uses them, and room is taken with rows";
}

TEST(EngineMemory, LimitsOfSessionsAndOfTheEngineHoldEachForItself) {
  EngineOptions o = small_engine();
  const size_t empty = Engine(demo(), o).bytes_in_use();
  o.memory_limit = empty + (size_t{4} << 20);
  const auto engine = std::make_shared<Engine>(demo(), o);
  SessionOptions limited = with_policy("exact");
  limited.cache_limit = size_t{100} << 10;
  Session small(engine, limited);
  try {
    small.append(some_ids(300, 9));
    FAIL() << "the session's limit did not hold";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfMemory);
  }
  std::vector<Session> many;
  size_t refused = 0;
  for (int i = 0; i < 40 && refused == 0; ++i) {
    try {
      many.emplace_back(engine, with_policy("exact"));
      many.back().append(some_ids(300, 10));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kOutOfMemory);
      ++refused;
    }
  }
  EXPECT_EQ(refused, 1u);
  EXPECT_LE(engine->peak_bytes(), o.memory_limit);
  many.clear();
  Session after(engine, with_policy("exact"));
  after.append(some_ids(300, 10));  // what was dropped is there again
}

/// Bytes of the process's memory that are in use, whoever asked for them.
size_t resident() {
  std::ifstream statm("/proc/self/statm");
  size_t all = 0, pages = 0;
  statm >> all >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST(EngineMemory, AThousandIdleForksTakeNextToNothingAndThoseThatGoOnTheirLedgers) {
  const auto engine = std::make_shared<Engine>(demo(), small_engine());
  SessionOptions options = with_policy("keydiff(budget=956)+int4,sink=4,window=64", 8192);
  Session base(engine, options);
  base.append(some_ids(1500, 11));
  std::vector<Session> sessions, others;
  sessions.reserve(1000);
  constexpr size_t kGoOn = 100;
  const int32_t id = 7;
  std::vector<Work> works;
  for (size_t i = 0; i < kGoOn; ++i) others.emplace_back(engine, options);
  for (Session& s : others) works.push_back({&s, {&id, 1}});
  engine->step(works);  // the engine has what such a step takes
  works.clear();
  const size_t counted = engine->bytes_in_use(), heap = resident();
  const std::clock_t start = std::clock();  // of this process: others may have the cores
  for (int i = 0; i < 1000; ++i) sessions.push_back(base.fork());
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  const size_t each = sessions[0].ledger().total_bytes();
  EXPECT_EQ(each, base.ledger().total_bytes());
  EXPECT_EQ(engine->bytes_in_use(), counted);
  const double idle = static_cast<double>(resident() - heap) / 1000;
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LE(idle, 0.01 * static_cast<double>(each));
  EXPECT_LT(seconds / 1000, 1e-4) << "a fork";
#endif
  for (size_t i = 0; i < kGoOn; ++i) works.push_back({&sessions[i], {&id, 1}});
  engine->step(works);
  size_t sum = 0;
  for (size_t i = 0; i < kGoOn; ++i) {
    ASSERT_FALSE(works[i].failure);
    sum += sessions[i].ledger().total_bytes();
  }
  const size_t own = engine->bytes_in_use() - counted;
  EXPECT_LE(static_cast<double>(own), 1.01 * static_cast<double>(sum));
  EXPECT_GE(static_cast<double>(own), 0.99 * static_cast<double>(sum));
  const size_t by_system = resident() - heap - static_cast<size_t>(1000 * idle);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LE(by_system, sum + kGoOn * (size_t{64} << 10)) << "objects, the heap's";
#endif
  std::printf(
      "ledger of one %zu, %.0f bytes an idle fork, made in %.2f us; of those that went on "
      "the system counts %.4f of the ledgers\n",
      each, idle, seconds * 1e3, static_cast<double>(by_system) / static_cast<double>(sum));
}

}  // namespace
}  // namespace pith
