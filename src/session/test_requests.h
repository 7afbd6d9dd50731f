#pragma once
// Random requests of many sessions of an engine that has too little memory for them: none is lost,
// and each says what it would have said alone.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "pith/engine.h"
#include "pith/error.h"
#include "pith/session.h"
#include "session/test_company.h"

namespace pith::test {

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
  /// `engine` has a limit of memory; `wide` is like it, but for that.
  struct Setup {
    std::shared_ptr<Engine> engine, wide;
    std::vector<std::string> policies;
    size_t context = 0;
  };
  /// The environment's PITH_SEED draws others, so that many run beside each other.
  explicit Requests(Setup setup) : setup_(std::move(setup)), engine_(setup_.engine) {
    if (const char* seed = std::getenv("PITH_SEED")) random_.seed(std::stoul(seed));
  }

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
    const size_t left = setup_.context - k.session.tokens();
    const size_t count = below(4) == 0 ? 1 + below(std::min<size_t>(left, 130)) : 1;
    const auto vocab = static_cast<uint64_t>(engine_->model()->config().vocab);
    return {some_ids(count, random_(), vocab), some_way(k)};
  }

  void begin() {
    const std::string& policy = setup_.policies[below(setup_.policies.size())];
    try {
      all_.push_back({policy, Session(engine_, with_policy(policy, setup_.context))});
    } catch (const Error& e) {  // tables of a policy that nobody else has
      ASSERT_EQ(e.code(), ErrorCode::kOutOfMemory) << e.what();
    }
  }

  void fork(Kept& of) {
    if (all_.size() >= 12 || !of.coming.ids.empty()) return;
    try {
      all_.push_back({of.policy, of.session.fork(), of.calls});
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::kOutOfMemory) << e.what();
    }
  }

  /// It is restored from its own bytes, if there is room for it twice.
  void restore(Kept& of) {
    if (!of.coming.ids.empty()) return;
    std::vector<std::byte> bytes;
    of.session.save([&](auto more) { bytes.insert(bytes.end(), more.begin(), more.end()); });
    try {
      of.session = Session::restore(engine_, bytes, with_policy(of.policy, setup_.context));
      ++restored_;
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::kOutOfMemory) << e.what();
    }
  }

  void reserve(Kept& of) {
    const size_t left = setup_.context - of.session.tokens();
    const size_t before = engine_->bytes_reserved(), used = engine_->bytes_in_use();
    const size_t tokens = below(2) * below(left + 1);
    const bool there = of.session.try_reserve(tokens);
    if (!there && of.coming.ids.empty()) {
      EXPECT_EQ(engine_->bytes_reserved(), before);
    } else if (!there) {  // the begun prompt's room goes, maybe into what was reserved before
      EXPECT_LE(engine_->bytes_reserved() + engine_->bytes_in_use(), before + used);
    }
    of.coming = {};
  }

  void step() {
    std::vector<Work> works;
    std::vector<Kept*> of;
    std::vector<Call> calls(all_.size());
    for (size_t i = 0; i < all_.size(); ++i) {
      Kept& k = all_[i];
      if (below(3) == 0 || k.session.tokens() == setup_.context) continue;
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
      EXPECT_EQ(works[i].failure->code(), ErrorCode::kOutOfMemory)
          << of[i]->policy << ": " << works[i].failure->what();
    }
  }

  /// Now and then what it says is what it would have said alone, with all memory there is.
  void drop(size_t i) {
    Kept k = std::move(all_[i]);
    all_.erase(all_.begin() + static_cast<ptrdiff_t>(i));
    if (below(2) != 0 || k.session.tokens() == setup_.context) return;
    Session alone(setup_.wide, with_policy(k.policy, setup_.context));
    for (const Call& call : k.calls) alone.append(call.ids, call.how);
    const auto right = alone.decode(5);
    try {
      const auto said = k.session.decode(5);
      ASSERT_TRUE(same_bits({said.begin(), said.end()}, {right.begin(), right.end()})) << k.policy;
      ++compared_;
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::kOutOfMemory) << e.what();
    }
  }

  Setup setup_;
  std::shared_ptr<Engine> engine_;
  std::mt19937 random_{1};
  std::vector<Kept> all_;
  size_t works_ = 0, refused_ = 0, restored_ = 0, compared_ = 0;
};

}  // namespace pith::test
