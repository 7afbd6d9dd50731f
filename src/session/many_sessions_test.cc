// As a server runs them: sessions that come while others decode begin warm and say what they would
// have said cold, and few sessions attend on all threads.

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "pith/generate.h"
#include "pith/own_codec.h"
#include "pith/prefix_tree.h"
#include "session/test_company.h"
#include "session/test_demo.h"

namespace pith {
namespace {

using test::demo;
using test::Logits;
using test::same_bits;
using test::some_ids;
using test::with_policy;
using Ids = std::vector<int32_t>;

/// One that came with the system prompt and a question of its own.
struct Guest {
  Ids prompt;
  std::vector<size_t> fork_points;
  std::optional<Session> session = {};
  std::optional<PromptReader> reader = {};
  Ids said = {};
  std::vector<Logits> logits = {};
  bool decodes() const { return session && reader->done(); }
};

// Each step has a token of all that decode and a chunk of one prompt, the oldest that is not read.
// A long prompt comes in the middle.
TEST(ManySessions, SixtyFourThatBeginAlikeComeWarmWhileOthersDecode) {
  constexpr size_t kGuests = 64, kSystem = 130, kTokens = 10, kLong = 700;
  const SessionOptions options = with_policy("snapkv(budget=64)+int4,sink=4,window=32", 1200);
  EngineOptions o;
  o.threads = 2;
  o.chunk = 96;
  const auto engine = std::make_shared<Engine>(demo(), o);
  const auto vocab = static_cast<size_t>(demo()->config().vocab);
  PrefixTree tree(engine, {.max_bytes = size_t{1} << 30});

  const Ids system = some_ids(kSystem, 1);
  std::vector<Guest> guests(kGuests + 1);
  for (size_t i = 0; i <= kGuests; ++i) {
    Guest& g = guests[i];
    const Ids own = some_ids(i == kGuests / 2 ? kLong : 5 + i % 20, 100 + i);
    g.prompt = system;
    g.prompt.insert(g.prompt.end(), own.begin(), own.end());
    g.fork_points = {kSystem};
  }
  size_t came = 0, steps = 0, most_at_once = 0;
  const auto done = [](const Guest& g) { return g.logits.size() == kTokens + 1; };
  while (!std::ranges::all_of(guests, done)) {
    ASSERT_LT(++steps, 1000u);
    for (size_t more = 0; more < 2 && came < guests.size(); ++more, ++came) {
      if (came == 1 && !guests[0].decodes()) break;  // the first is cold, and read alone
      Guest& g = guests[came];
      const Prompt prompt{g.prompt, g.fork_points};
      Reuse reuse;
      g.session = tree.begin(options, prompt, &reuse);
      g.reader.emplace(*g.session, prompt);
      EXPECT_EQ(reuse.tokens, came == 0 ? 0 : kSystem) << came << ": " << reuse.reason;
    }
    std::vector<Work> works;
    std::vector<Guest*> of;
    Guest* reads = nullptr;
    for (Guest& g : guests) {
      if (!g.session || done(g)) continue;
      if (!g.reader->done() && reads) continue;
      Work work = g.decodes() ? Work{&*g.session, {&g.said.back(), 1}} : g.reader->next(*g.session);
      if (!g.decodes()) reads = &g;
      g.logits.emplace_back(vocab);
      work.logits = g.logits.back().data();
      works.push_back(work);
      of.push_back(&g);
    }
    most_at_once = std::max(most_at_once, works.size());
    engine->step(works);
    for (size_t i = 0; i < works.size(); ++i) {
      Guest& g = *of[i];
      ASSERT_FALSE(works[i].failure) << works[i].failure->what();
      if (&g == reads && g.reader->took(works[i])) tree.keep(*g.session, {g.prompt, g.fork_points});
      if (!g.decodes()) {
        g.logits.pop_back();  // in the middle of its prompt
        continue;
      }
      const Logits& last = g.logits.back();
      g.said.push_back(static_cast<int32_t>(std::ranges::max_element(last) - last.begin()));
    }
  }
  EXPECT_GT(most_at_once, 8u);
  EXPECT_EQ(tree.statistics().prompt_hits, kGuests);

  const auto other = std::make_shared<Engine>(demo(), o);
  for (Guest& g : guests) {
    Session cold(other, options);
    cold.append({g.prompt.data(), kSystem}, Append::kMore);
    cold.append({g.prompt.data() + kSystem, g.prompt.size() - kSystem}, Append::kPromptEnds);
    for (size_t t = 0; t <= kTokens; ++t) {
      Logits right(vocab);
      if (t == 0) {
        Sampler greedy({.temperature = 0});
        EXPECT_EQ(cold.sample(greedy), g.said[0]);
        continue;
      }
      const auto logits = cold.decode(g.said[t - 1]);
      ASSERT_TRUE(same_bits(g.logits[t], {logits.begin(), logits.end()}));
    }
  }
}

/// While it is closed, threads wait in it until there are enough of them.
class Gate {
 public:
  void close(size_t threads) {
    const std::lock_guard guard(lock_);
    wanted_ = threads;
    inside_.clear();
    closed_ = true;
  }
  void pass() {
    std::unique_lock guard(lock_);
    if (!closed_) return;
    inside_.insert(std::this_thread::get_id());
    all_came_ = inside_.size() == wanted_;
    // Long: where others use the machine, a thread may get its turn late.
    if (!all_came_) changed_.wait_for(guard, std::chrono::seconds(100), [&] { return !closed_; });
    closed_ = false;
    changed_.notify_all();
  }
  bool all_came() const { return all_came_; }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  std::set<std::thread::id> inside_;
  size_t wanted_ = 0;
  bool closed_ = false, all_came_ = false;
};

// Codecs decode rows in the tasks of attention: in a step of a few sessions all threads are in them
// at once. Each session has two KV heads, whose rows are two parts.
TEST(ManySessions, FewAttendOnAllThreadsOfARuntime) {
  static Gate gate;
  OwnCodec codec{.name = "gated"};
  codec.row_bytes = [](size_t dim) { return dim * sizeof(float); };
  codec.encode = [](const RowsToCode& rows, const float* x, uint8_t* codes) {
    std::memcpy(codes, x, rows.rows * rows.row_bytes);
  };
  codec.decode = [](const RowsToCode& rows, const uint8_t* codes, float* x) {
    gate.pass();
    std::memcpy(x, codes, rows.rows * rows.row_bytes);
  };
  add_codec(codec);
  const Ids prompt = some_ids(1300, 1);  // a part of rows has 1024
  for (const auto& [count, threads] : {std::pair{2, 4}, std::pair{2, 8}, std::pair{3, 5}}) {
    SCOPED_TRACE(std::to_string(count) + " on " + std::to_string(threads));
    EngineOptions o;
    o.threads = threads;
    const auto engine = std::make_shared<Engine>(demo(), o);
    std::vector<Session> sessions;
    sessions.emplace_back(engine, with_policy("exact+gated,sink=4,window=32", 1400));
    sessions[0].append(prompt);
    for (int i = 1; i < count; ++i) sessions.push_back(sessions[0].fork());
    const int32_t token = 5;
    gate.close(static_cast<size_t>(threads));
    std::vector<Work> works;
    for (Session& s : sessions) works.push_back({&s, {&token, 1}});
    engine->step(works);
    for (const Work& w : works) EXPECT_FALSE(w.failure) << w.failure->what();
    EXPECT_TRUE(gate.all_came());
  }
}

}  // namespace
}  // namespace pith
