// Memory is asked for before a step: where there is none nothing has changed, and the call may be
// given again. Room that is set aside is there.

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <random>

#include "pith/generate.h"
#include "session/test_company.h"
#include "session/test_demo.h"
#include "session/test_refused.h"
#include "session/test_room.h"

namespace pith {
namespace {

using test::demo;
using test::Logits;
using test::refused;
using test::same_bits;
using test::small_engine;
using test::some_ids;
using test::with_policy;

constexpr size_t kContext = 400;
constexpr auto kNoMemory = ErrorCode::kOutOfMemory;

/// An engine with so much for sessions.
std::shared_ptr<Engine> engine_for(size_t bytes) {
  static const size_t own = [] {
    const auto e = small_engine();
    Session s(e, with_policy("exact", kContext));
    s.prefill(some_ids(100, 1));
    s.decode(1);
    return e->bytes_in_use();
  }();
  return small_engine(own + bytes);
}

struct Call {
  std::vector<int32_t> ids = {};
  Append how = Append::kWhole;
};

/// A session, and the calls that it took.
struct Kept {
  std::string policy;
  Session session;
  std::vector<Call> calls = {};
  Call coming = {};  ///< a prompt that was begun
  bool reads(const char* how) const { return policy.find(how) != std::string::npos; }
};

/// Random requests of many sessions that share too little memory.
class Requests {
 public:
  Requests(size_t bytes, uint32_t seed) : engine_(engine_for(bytes)), random_(seed) {}

  void run(size_t count) {
    for (size_t i = 0; i < count && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i));
      one();
      EXPECT_LE(engine_->peak_bytes(), engine_->options().memory_limit);
    }
    while (!all_.empty()) drop(0);
    EXPECT_EQ(engine_->bytes_reserved(), 0u);
    std::printf("%zu works, %zu of them refused, %zu restores, %zu answers compared\n", works_,
                refused_, restored_, compared_);
    EXPECT_GT(refused_, count / 20) << "the limit is too wide";
    EXPECT_GT(works_, 4 * refused_ / 3) << "the limit is too narrow";
    EXPECT_GT(compared_, count / 100);
  }

 private:
  size_t below(size_t n) { return random_() % n; }

  void one() {
    const size_t what = below(16);
    if (all_.size() < 6 || (what == 0 && all_.size() < 12)) return begin();
    if (what < 3) return drop(below(all_.size()));
    if (what == 3) return fork(all_[below(all_.size())]);
    if (what == 4) return reserve(all_[below(all_.size())]);
    if (what == 5 && below(4) == 0) return restore(all_[below(all_.size())]);
    step();
  }

  /// How its next tokens come: as a prompt's end, a piece of one, or plainly.
  Append some_way(const Kept& k) {
    switch (below(8)) {
      case 0: return Append::kPromptEnds;
      case 1: return k.reads("prompt=") ? Append::kWhole : Append::kPart;
      case 2: return k.reads("prompt=once") ? Append::kWhole : Append::kMore;
      default: return Append::kWhole;
    }
  }

  Call some_call(const Kept& k) {
    if (!k.coming.ids.empty()) return k.coming;
    const size_t left = kContext - k.session.tokens();
    const size_t count = below(4) == 0 ? 1 + below(std::min<size_t>(left, 130)) : 1;
    return {some_ids(count, random_()), some_way(k)};
  }

  void begin() {
    static const char* more[] = {"exact+int4,prompt=exact", "snapkv(budget=40),prompt=once"};
    const auto& usual = test::policies();
    const size_t n = below(usual.size() + std::size(more));
    const std::string policy = n < usual.size() ? usual[n] : more[n - usual.size()];
    try {
      all_.push_back({policy, Session(engine_, with_policy(policy, kContext))});
    } catch (const Error& e) {  // tables of a policy that nobody else has
      ASSERT_EQ(e.code(), kNoMemory) << e.what();
    }
  }

  void fork(Kept& of) {
    if (all_.size() >= 12 || !of.coming.ids.empty()) return;
    try {
      all_.push_back({of.policy, of.session.fork(), of.calls});
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), kNoMemory) << e.what();
    }
  }

  /// It goes on from its own bytes, if there is room for it twice.
  void restore(Kept& of) {
    if (!of.coming.ids.empty()) return;
    std::vector<std::byte> bytes;
    of.session.save([&](auto more) { bytes.insert(bytes.end(), more.begin(), more.end()); });
    try {
      of.session = Session::restore(engine_, bytes, with_policy(of.policy, kContext));
      ++restored_;
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), kNoMemory) << e.what();
    }
  }

  void reserve(Kept& of) {
    const size_t left = kContext - of.session.tokens();
    const size_t before = engine_->bytes_reserved(), tokens = below(2) * below(left + 1);
    const bool there = of.session.try_reserve(tokens);
    if (!there && of.coming.ids.empty()) {
      EXPECT_EQ(engine_->bytes_reserved(), before);
    } else if (!there) {  // the begun prompt's room is given back
      EXPECT_LE(engine_->bytes_reserved(), before);
    }
    of.coming = {};
  }

  void step() {
    std::vector<Work> works;
    std::vector<Kept*> of;
    std::vector<Call> calls(all_.size());
    for (size_t i = 0; i < all_.size(); ++i) {
      Kept& k = all_[i];
      if (below(3) == 0 || k.session.tokens() == kContext) continue;
      calls[i] = some_call(k);
      Work w{&k.session, calls[i].ids, calls[i].how};
      if (k.reads("prompt=") && (w.tokens.size() > 1 || w.append != Append::kWhole)) w.slice = 3;
      works.push_back(w);
      of.push_back(&k);
    }
    std::vector<size_t> before;
    for (const Work& w : works) before.push_back(w.session->tokens());
    engine_->step(works);
    works_ += works.size();
    // All that came is noted, whatever is found wrong below.
    for (size_t i = 0; i < works.size(); ++i) {
      Call call{{works[i].tokens.begin(), works[i].tokens.end()}, works[i].append};
      if (works[i].appended) of[i]->calls.push_back(call);
      of[i]->coming = works[i].goes_on ? std::move(call) : Call();
    }
    for (size_t i = 0; i < works.size(); ++i) {
      EXPECT_EQ(works[i].appended, !works[i].failure && !works[i].goes_on);
      EXPECT_EQ(of[i]->session.tokens(),
                before[i] + (works[i].appended ? works[i].tokens.size() : 0));
      if (!works[i].failure) continue;
      ++refused_;
      EXPECT_EQ(works[i].failure->code(), kNoMemory)
          << of[i]->policy << ": " << works[i].failure->what();
    }
  }

  /// Now and then what it says is what it would have said alone, with all memory there is.
  void drop(size_t i) {
    Kept k = std::move(all_[i]);
    all_.erase(all_.begin() + static_cast<ptrdiff_t>(i));
    if (below(2) != 0 || k.session.tokens() == kContext) return;
    static const auto wide = small_engine();
    Session alone(wide, with_policy(k.policy, kContext));
    for (const Call& call : k.calls) alone.append(call.ids, call.how);
    const auto right = alone.decode(5);
    try {
      const auto said = k.session.decode(5);
      ASSERT_TRUE(same_bits({said.begin(), said.end()}, {right.begin(), right.end()})) << k.policy;
      ++compared_;
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), kNoMemory) << e.what();
    }
  }

  std::shared_ptr<Engine> engine_;
  std::mt19937 random_;
  std::vector<Kept> all_;
  size_t works_ = 0, refused_ = 0, restored_ = 0, compared_ = 0;
};

// PITH_REQUESTS: how many; 100000 take half an hour.
TEST(Room, RandomRequestsAreNeverAboveTheLimitAndNoSessionIsLost) {
  const char* wanted = std::getenv("PITH_REQUESTS");
  Requests(size_t{5} << 20, 1).run(wanted ? std::strtoul(wanted, nullptr, 10) : 200);
}

TEST(Room, APromptWithoutRoomChangesNothingAndMayComeAgain) {
  const auto e = engine_for(size_t{17} << 18);
  const auto ids = some_ids(380, 2);
  std::optional<Session> other(std::in_place, e, with_policy("exact", kContext));
  other->append(some_ids(380, 3));
  Session session(e, with_policy("exact,dtype=f32", kContext));
  session.append({ids.data(), 40});
  const auto of_sessions = [&] { return e->bytes_in_use() - e->ledger().total_bytes(); };
  const size_t before = of_sessions();
  refused(kNoMemory, "set aside", [&] { session.append({ids.data() + 40, 340}); });
  EXPECT_EQ(session.tokens(), 40u);
  EXPECT_EQ(of_sessions(), before);
  EXPECT_EQ(e->bytes_reserved(), 0u);
  other.reset();
  const auto said = session.prefill({ids.data() + 40, 340});
  const Logits again(said.begin(), said.end());
  Session alone(small_engine(), with_policy("exact,dtype=f32", kContext));
  alone.append({ids.data(), 40});
  const auto right = alone.prefill({ids.data() + 40, 340});
  EXPECT_TRUE(same_bits(again, {right.begin(), right.end()}));
}

TEST(Room, WhatIsSetAsideIsNobodyElses) {
  for (const char* policy : {"exact", "snapkv(budget=64)+int4", "exact+csr(online=32)",
                             "exact+int4,prompt=exact", "snapkv(budget=64),prompt=once"}) {
    SCOPED_TRACE(policy);
    const auto e = engine_for(size_t{6} << 20);
    Session session(e, with_policy(policy, kContext));
    ASSERT_TRUE(session.try_reserve(300));
    const size_t reserved = e->bytes_reserved();
    EXPECT_GT(reserved, 0u);
    // Others take all the rest.
    std::vector<Session> others;
    const auto fill = [&] {
      while (others.size() < 400) {
        others.emplace_back(e, with_policy("exact", kContext));
        others.back().append(some_ids(100, others.size()));
      }
    };
    refused(kNoMemory, "", fill);
    EXPECT_FALSE(others[0].try_reserve(300));
    const auto ids = some_ids(300, 4);
    session.append({ids.data(), 200});
    EXPECT_GT(e->bytes_reserved(), 0u);
    for (size_t i = 200; i < 300; ++i) {
      session.append({ids.data() + i, 1});
      if (i % 50 == 0) refused(kNoMemory, "", fill);
    }
    EXPECT_EQ(e->bytes_reserved(), 0u) << "all has come";
    EXPECT_LE(e->peak_bytes(), e->options().memory_limit);
  }
}

TEST(Room, GoesWithTheSessionAndIsNotAForks) {
  const auto e = engine_for(size_t{16} << 20);
  Session session(e, with_policy("exact", kContext));
  session.append(some_ids(50, 1));
  session.reserve(100);
  const size_t reserved = e->bytes_reserved();
  const Session fork = session.fork();
  EXPECT_EQ(e->bytes_reserved(), reserved);
  session.reserve(40);
  EXPECT_LT(e->bytes_reserved(), reserved);
  refused(ErrorCode::kContextFull, "in a context of 400", [&] { session.reserve(351); });
  session.reserve(0);
  EXPECT_EQ(e->bytes_reserved(), 0u);
  session.reserve(350);
  Session moved = std::move(session);
  EXPECT_GT(e->bytes_reserved(), 0u);
  moved = Session(e, with_policy("exact", kContext));
  EXPECT_EQ(e->bytes_reserved(), 0u);
  // A prompt that is read exactly by a copy has the session's room, and gives it back.
  Session exact(e, with_policy("exact,prompt=exact", kContext));
  exact.reserve(300);
  const size_t kept = e->bytes_reserved();
  const auto ids = some_ids(200, 2);
  exact.append(ids, [](size_t, size_t) { return false; });
  EXPECT_EQ(exact.tokens(), 0u);
  EXPECT_EQ(e->bytes_reserved(), kept);
}

TEST(Room, LimitsMayChange) {
  const auto e = engine_for(size_t{8} << 20);
  Session kept(e, with_policy("exact", kContext)), other(e, with_policy("exact", kContext));
  kept.append(some_ids(100, 1));
  other.append(some_ids(100, 1));
  kept.reserve(200);
  e->set_memory_limit(e->bytes_in_use() / 2);
  refused(kNoMemory, "", [&] { other.append(some_ids(100, 2)); });
  EXPECT_FALSE(other.try_reserve(1));
  kept.append(some_ids(200, 2));  // promised before
  e->set_memory_limit(0);
  other.append(some_ids(100, 2));
  EXPECT_EQ(other.tokens(), 200u);
}

TEST(Room, AStepSaysWhatBecameOfItsTokens) {
  const auto e = small_engine();
  Session session(e, with_policy("exact", kContext)), full(e, with_policy("exact", 1));
  const auto ids = some_ids(60, 1);
  const uint32_t none = 0;
  Sampler sampler({.temperature = 0});
  sampler.set_mask({&none, 1});
  for (const size_t count : {60, 1}) {
    const size_t before = session.tokens();
    Work works[] = {{&session, {ids.data(), count}}, {&full, {ids.data(), 2}}};
    works[0].sampler = &sampler;
    e->step(works);
    ASSERT_TRUE(works[0].failure);
    EXPECT_EQ(works[0].failure->code(), ErrorCode::kNonFinite);
    EXPECT_TRUE(works[0].appended);
    EXPECT_EQ(session.tokens(), before + count);
    EXPECT_FALSE(works[1].appended);
  }
  session.decode(5);
}

}  // namespace
}  // namespace pith
