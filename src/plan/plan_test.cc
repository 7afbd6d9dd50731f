// Plans without a device: a model executes steps on lists of token numbers, whatever the rule.

#include "plan/plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "plan/balance_tree.h"
#include "plan/best_rule.h"
#include "plan/cells_rule.h"
#include "plan/coreset.h"
#include "plan/heavy_rule.h"
#include "plan/simple_rules.h"

namespace pith {
namespace {

/// Rows of one head as token numbers with whole weights, moved as steps say. Which rows per step
/// names is a function of their numbers, as it is on a device.
class Model {
 public:
  struct Row {
    uint64_t token, weight;
    bool operator==(const Row&) const = default;
  };
  using Rows = std::deque<Row>;

  Rows& at(Zone zone) { return zones_[zone]; }
  uint64_t dropped() const { return dropped_; }
  const std::string& log() const { return log_; }

  void run(std::span<const Step> steps) {
    for (const Step& s : steps) execute(s);
    RC_ASSERT(at(Zone::kLeaving).empty());
    RC_ASSERT(at(Zone::kEvicted).empty());
  }

 private:
  static uint64_t word(uint64_t token, uint64_t salt) {
    return (token * 2654435761u + salt * 40503u) % 1000003;
  }
  Rows take(Zone zone, size_t n) {
    Rows& from = at(zone);
    RC_ASSERT(n <= from.size());  // no step takes what an earlier one took
    Rows out(from.begin(), from.begin() + static_cast<ptrdiff_t>(n));
    from.erase(from.begin(), from.begin() + static_cast<ptrdiff_t>(n));
    return out;
  }
  void put(Zone zone, const Rows& rows) {
    at(zone).insert(at(zone).end(), rows.begin(), rows.end());
  }
  /// The `keep` rows with the least words, in order; the others go to `rest`.
  static Rows best(const Rows& rows, size_t keep, uint64_t salt, Rows& rest) {
    std::multiset<std::pair<uint64_t, uint64_t>> order;
    for (const Row& r : rows) order.insert({word(r.token, salt), r.token});
    std::set<uint64_t> stay;
    for (auto it = order.begin(); stay.size() < keep; ++it) stay.insert(it->second);
    Rows out;
    for (const Row& r : rows) (stay.contains(r.token) ? out : rest).push_back(r);
    return out;
  }

  void execute(const Step& s) {
    Rows rest;
    switch (s.op) {
      case Op::kAppend:
        for (uint32_t i = 0; i < s.rows; ++i) at(s.to).push_back({next_++, 1});
        return;
      case Op::kMove: return put(s.to, take(s.from, s.rows));
      case Op::kForget: dropped_ += take(s.from, s.rows).size(); return;
      case Op::kSelect: {
        Rows& body = at(Zone::kBody);
        Rows fresh = s.rows > 0 ? take(s.from, s.rows) : Rows();
        if (s.keep == kByContents) {
          for (const Row& r : fresh)
            word(r.token, 7) % 3 == 0 ? body.push_back(r) : rest.push_back(r);
        } else {
          RC_ASSERT(body.size() == s.held);
          RC_ASSERT(s.old <= s.held);
          RC_ASSERT(s.keep <= s.held + s.rows);
          put(Zone::kBody, fresh);
          body = best(body, s.keep, 1, rest);
        }
        dropped_ += rest.size();
        return;
      }
      case Op::kPick: {
        Rows& body = at(Zone::kBody);
        uint64_t counted = s.first;
        for (const Row& r : take(s.from, s.rows)) {
          const bool first = counted == 0;
          if (first) body.push_back(r);
          dropped_ += !first;
          if (!first && word(r.token, s.tag) % (counted + 1) == 0) body.back().token = r.token;
          body.back().weight = ++counted;
          if (counted == s.size) counted = 0;
        }
        return;
      }
      case Op::kHalve: {
        Rows& body = at(Zone::kBody);
        RC_ASSERT(body.size() == s.first + s.rows + s.behind);
        const auto end = body.begin() + s.first + s.rows;
        Rows tail(body.begin() + s.first, end);
        const Rows behind(end, body.end());
        body.resize(s.first);
        for (const Row& r : behind) RC_ASSERT(r.weight == 1);
        for (Row& r : tail) {
          RC_ASSERT(2 * r.weight == s.weight);
          r.weight = s.weight;
        }
        put(Zone::kBody, best(tail, s.rows / 2, s.tag, rest));
        put(Zone::kBody, behind);
        dropped_ += rest.size();
        return;
      }
      case Op::kSplit: {
        RC_ASSERT(at(s.from).size() == s.held);
        at(s.from) = best(at(s.from), s.keep, 3, rest);
        RC_ASSERT(rest.size() == s.rows);
        return put(s.to, rest);
      }
      case Op::kWeigh: return;
      case Op::kTake: dropped_ += take(s.from, s.rows).size(); return;
    }
  }

  std::map<Zone, Rows> zones_;
  uint64_t next_ = 0, dropped_ = 0;
  std::string log_;
};

struct Case {
  std::string name;
  std::shared_ptr<const Rule> rule;
  bool by_contents = false, weighs = false;
};

template <class R, class... A>
std::shared_ptr<const Rule> rule(A&&... a) {
  return std::make_shared<const R>(std::forward<A>(a)...);
}

std::vector<Case> cases() {
  const BestSizes sizes{60, 20, 20};
  const HeavySizes heavy{24, 16, 8};
  const auto coreset = rule<KeepCoreset>(ExpressShape{32, 1});
  const auto blocks = rule<HalveBlocks>(BalanceShape{3, 16});
  const auto flushed = rule<HalveBlocks>(BalanceShape{.rounds = 3, .block = 16, .flush = true});
  const BalanceShape resting{.rounds = 2, .block = 8, .flush = true, .rests = true};
  return {{"all", rule<KeepAll>()},
          {"all, sliding", rule<KeepAll>(40)},
          {"none", rule<DropAll>()},
          {"share", rule<KeepShare>(0.3, true), true},
          {"sample", rule<KeepSample>(60, true)},
          {"best", rule<KeepBest>(sizes)},
          {"best of 1", rule<KeepBest>(BestSizes{1, 1, 0})},
          {"best, no interval", rule<KeepBest>(BestSizes{60, 0, 20})},
          {"pyramid", rule<KeepPyramid>(sizes, MassWish{}, Pyramid{60, 16, 1, 4, 8})},
          {"pyramid given up", rule<KeepPyramid>(sizes, MassWish{}, Pyramid{60, 16, 0, 4, 20})},
          {"shared", rule<KeepBest>(BestSizes{60, 20, 20, 0, 3, 10})},
          {"cells", rule<KeepCells>(Cells{50, 5, 3}, true, false)},
          {"few cells", rule<KeepCells>(Cells{3, 3, 2}, true, false)},
          {"coreset", coreset, false, true},
          {"small coreset", rule<KeepCoreset>(ExpressShape{8, 0}), false, true},
          {"blocks", blocks, false, true},
          {"one level", rule<HalveBlocks>(BalanceShape{1, 2}), false, true},
          {"blocks, endless", rule<HalveBlocks>(BalanceShape{2, 8, true}), false, true},
          {"blocks, flushed", flushed, false, true},
          {"blocks, resting", rule<HalveBlocks>(resting), false, true},
          {"sums", rule<BalanceSums>(BalanceShape{2, 8}), true},
          {"heavy, share", rule<KeepHeavy>(heavy, rule<KeepShare>(0.3, true)), true},
          {"heavy, sample", rule<KeepHeavy>(heavy, rule<KeepSample>(60, true))},
          {"heavy, coreset", rule<KeepHeavy>(heavy, coreset), false, true},
          {"heavy, blocks", rule<KeepHeavy>(heavy, blocks), false, true},
          {"heavy, flushed", rule<KeepHeavy>(heavy, flushed), false, true}};
}

struct Stream {
  Stream(const Case& c, const ScheduleShape& shape, size_t most, const ProtectedRows& rows)
      : plan(c.rule, shape, most) {
    plan.protect(rows.from(static_cast<int64_t>(shape.sink)));
  }
  void append(size_t tokens) { model.run(plan.append(tokens)); }
  Plan plan;
  Model model;
};

ScheduleShape any_shape() {
  return {*rc::gen::inRange<size_t>(0, 6), *rc::gen::inRange<size_t>(0, 40),
          *rc::gen::elementOf(std::vector<size_t>{1, 1, 16, 32})};
}

ProtectedRows any_protected() {
  ProtectedRows rows;
  std::vector<TokenRange> ranges;
  for (int64_t at = 0; ranges.size() < *rc::gen::inRange<size_t>(0, 4);) {
    const int64_t first = at + *rc::gen::inRange<int64_t>(1, 100);
    at = first + *rc::gen::inRange<int64_t>(1, 60);
    ranges.push_back({first, at});
  }
  rows.add(ranges, 0, 0);
  return rows;
}

class Plans : public testing::TestWithParam<Case> {};

// However a stream is cut, and however many rows leave the window at once, rows end the same.
TEST_P(Plans, DependOnHowManyTokensCameAndOnNothingElse) {
  EXPECT_TRUE(rc::check([] {
    const ScheduleShape shape = any_shape();
    const ProtectedRows rows = any_protected();
    const size_t tokens = *rc::gen::inRange<size_t>(1, 1500);
    Stream whole(GetParam(), shape, *rc::gen::inRange<size_t>(1, 200), rows);
    Stream cut(GetParam(), shape, *rc::gen::inRange<size_t>(1, 200), rows);
    whole.append(tokens);
    const size_t largest = *rc::gen::elementOf(std::vector<size_t>{1, 5, 200});
    for (size_t done = 0; done < tokens;) {
      const size_t n = std::min(tokens - done, *rc::gen::inRange<size_t>(1, largest + 1));
      cut.append(n);
      done += n;
    }
    RC_ASSERT(whole.plan.state() == cut.plan.state());
    for (Zone z : {Zone::kSink, Zone::kProtected, Zone::kBody, Zone::kHeavy, Zone::kWindow})
      RC_ASSERT(whole.model.at(z) == cut.model.at(z));
  }));
}

// No row is lost or doubled; each zone has what the state says, and no more than the rule promised.
TEST_P(Plans, CountEveryRow) {
  EXPECT_TRUE(rc::check([] {
    const Case& c = GetParam();
    const ScheduleShape shape = any_shape();
    Stream s(c, shape, 128, any_protected());
    for (int pass = 0; pass < 12; ++pass) {
      s.append(*rc::gen::inRange<size_t>(1, 200));
      if (pass == 5) s.model.run(s.plan.end_prompt());
      const PlanState& state = s.plan.state();
      uint64_t held = s.model.dropped(), left = state.open;
      for (Zone z : {Zone::kSink, Zone::kProtected, Zone::kBody, Zone::kHeavy, Zone::kWindow}) {
        held += s.model.at(z).size();
        if (z == Zone::kSink || z == Zone::kWindow) left -= s.model.at(z).size();
        if (z == Zone::kBody && c.by_contents)
          RC_ASSERT(s.model.at(z).size() <= state.at(z));
        else
          RC_ASSERT(s.model.at(z).size() == state.at(z));
      }
      RC_ASSERT(held == state.tokens);
      RC_ASSERT(left == occupancy(shape, state.open).body);
      RC_ASSERT(s.model.at(Zone::kBody).size() + s.model.at(Zone::kHeavy).size() <=
                (c.name.find("share") == std::string::npos ? c.rule->most_rows(left) : left));
      if (!c.weighs) continue;
      uint64_t weight = s.model.at(Zone::kHeavy).size();
      for (const Model::Row& r : s.model.at(Zone::kBody)) weight += r.weight;
      RC_ASSERT(weight == left);
    }
  }));
}

// At the end of a prompt that gathers the rule's promise holds, and a replay that knows where
// prompts began and ended stands where the stream does.
TEST_P(Plans, GatherUntilTheirPromptEnds) {
  EXPECT_TRUE(rc::check([] {
    const Case& c = GetParam();
    const ScheduleShape shape = any_shape();
    const ProtectedRows rows = any_protected();
    Stream s(c, shape, 128, rows);
    std::vector<uint64_t> begins, ends;
    for (int prompt = 0; prompt < 3; ++prompt) {
      const PlanState& state = s.plan.state();
      begins.push_back(state.tokens);
      for (int part = 0; part < 2; ++part)
        s.model.run(s.plan.append(*rc::gen::inRange<size_t>(1, 300), true));
      s.model.run(s.plan.end_prompt());
      ends.push_back(state.tokens);
      const size_t left = occupancy(shape, state.open).body;
      RC_ASSERT(s.model.at(Zone::kBody).size() + s.model.at(Zone::kHeavy).size() <=
                (c.name.find("share") == std::string::npos ? c.rule->most_rows(left) : left));
      s.append(*rc::gen::inRange<size_t>(1, 100));
    }
    Plan again(c.rule, shape, 64);
    again.protect(rows.from(static_cast<int64_t>(shape.sink)));
    again.replay(s.plan.state().tokens, ends, {}, begins);
    RC_ASSERT(again.state() == s.plan.state());
  }));
}

// Rows that leave in blocks end where single rows do, whenever a block is complete.
TEST_P(Plans, BlocksEndWhereRowsDo) {
  EXPECT_TRUE(rc::check([] {
    const size_t block = *rc::gen::elementOf(std::vector<size_t>{4, 16, 32});
    const size_t blocks = *rc::gen::inRange<size_t>(1, 40);
    Stream rows(GetParam(), {2, 8, 1}, 128, {}), by_block(GetParam(), {2, 8, block}, 128, {});
    rows.append(10 + block * blocks);
    by_block.append(10 + block * blocks);
    RC_ASSERT(rows.plan.state() == by_block.plan.state());
    for (Zone z : {Zone::kBody, Zone::kHeavy}) RC_ASSERT(rows.model.at(z) == by_block.model.at(z));
  }));
}

// Stores keep some room of rows that went.
TEST_P(Plans, MostRowsAreThoseOfAllTimesBefore) {
  const Rule& rule = *GetParam().rule;
  for (size_t n = 0, most = 0; n <= 1000; ++n) {
    most = std::max(most, rule.mean_rows(n));
    ASSERT_GE(rule.most_rows(n), most) << n << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, Plans, testing::ValuesIn(cases()), [](const auto& test) {
  std::string name = test.param.name;
  std::erase_if(name, [](char c) { return c == ' ' || c == ','; });
  return name;
});

TEST(Plan, AsksForMemoryOnceItsListHasGrown) {
  Plan plan(rule<KeepCoreset>(ExpressShape{32, 1}), {4, 16, 1}, 128);
  plan.append(3000);
  const Step* list = plan.append(1).data();
  for (int t = 0; t < 500; ++t) EXPECT_EQ(plan.append(1).data(), list);
}

}  // namespace
}  // namespace pith
