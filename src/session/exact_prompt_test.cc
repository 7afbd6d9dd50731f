// Prompts that are read exactly, a layer at a time: the bits of one pass over all tokens, in less
// memory; what breaks one off leaves the session as it was.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "model/prompt_blocks.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "pith/prefix_tree.h"
#include "pith/saved.h"
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
using test::with_policy;
using Ids = std::vector<int32_t>;

constexpr size_t kContext = 1200;

std::shared_ptr<Engine> engine(size_t chunk, int threads = 1) {
  EngineOptions o;
  o.threads = threads;
  o.chunk = chunk;
  return std::make_shared<Engine>(demo(), o);
}

/// The policy with its prompts read so.
std::string reading(const std::string& policy, const std::string& how) {
  const size_t rules = std::min(policy.find(';'), policy.size());
  return policy.substr(0, rules) + ",prompt=" + how + policy.substr(rules);
}

Logits copy(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

void expect_same_rows(const Session& a, const Session& b) {
  const ModelConfig& c = a.model().config();
  for (int l = 0; l < c.layers; ++l)
    for (int h = 0; h < c.kv_heads; ++h) {
      EXPECT_EQ(a.rows(l, h).positions, b.rows(l, h).positions) << "layer " << l << ", head " << h;
      EXPECT_EQ(a.rows(l, h).log_weights, b.rows(l, h).log_weights);
    }
}

class ExactPrompt : public testing::TestWithParam<size_t> {
 protected:
  const std::string& policy() const { return policies()[GetParam()]; }
};

// Two prompts with an answer between them: the second attends to compressed rows.
TEST_P(ExactPrompt, IsOnePassOverAllTokens) {
  Session whole(engine(500), with_policy(policy(), kContext));
  Session layers(engine(96, 2), with_policy(reading(policy(), "exact"), kContext));
  for (const size_t tokens : {401, 150}) {
    const Ids ids = some_ids(tokens, tokens);
    EXPECT_TRUE(same_bits(copy(whole.prefill(ids)), copy(layers.prefill(ids)))) << tokens;
    expect_same_rows(whole, layers);
    for (const int32_t id : some_ids(9, 3))
      ASSERT_TRUE(same_bits(copy(whole.decode(id)), copy(layers.decode(id))));
  }
}

TEST_P(ExactPrompt, GivesTheLogitsOfAllItsTokens) {
  const Ids ids = some_ids(170, 5);
  std::vector<Logits> all[2];
  for (size_t i = 0; i < 2; ++i) {
    Session s(engine(i == 0 ? 300 : 80),
              with_policy(i == 0 ? policy() : reading(policy(), "exact"), kContext));
    const size_t vocab = static_cast<size_t>(demo()->config().vocab);
    s.prefill_logits(ids, [&](size_t first, size_t count, const float* logits) {
      EXPECT_EQ(first, all[i].size());
      for (size_t t = 0; t < count; ++t)
        all[i].emplace_back(logits + t * vocab, logits + (t + 1) * vocab);
    });
  }
  ASSERT_EQ(all[0].size(), ids.size());
  ASSERT_EQ(all[1].size(), ids.size());
  for (size_t t = 0; t < ids.size(); ++t) EXPECT_TRUE(same_bits(all[0][t], all[1][t])) << t;
}

// Forks, saved files and steps in a batch continue with the same bits, whatever is in the plan.
TEST_P(ExactPrompt, GoesOnFromForksAndFiles) {
  const auto e = engine(96);
  for (const char* how : {"exact", "once"}) {
    const SessionOptions o = with_policy(reading(policy(), how), kContext);
    Session session(e, o);
    session.append(some_ids(333, 1));
    for (const int32_t id : some_ids(30, 2)) session.decode(id);
    session.append(some_ids(111, 3));
    std::vector<std::byte> file;
    session.save([&](std::span<const std::byte> more) {
      file.insert(file.end(), more.begin(), more.end());
    });
    Session restored = Session::restore(e, file, o), fork = session.fork();
    for (const int32_t id : some_ids(40, 4)) {
      const Logits expected = copy(session.decode(id));
      ASSERT_TRUE(same_bits(copy(restored.decode(id)), expected)) << how;
      ASSERT_TRUE(same_bits(copy(fork.decode(id)), expected)) << how;
    }
    const Ids more = some_ids(77, 5);
    const Logits expected = copy(session.prefill(more));
    ASSERT_TRUE(same_bits(copy(restored.prefill(more)), expected)) << how;
    std::vector<Logits> got(2, Logits(expected.size()));
    Session other(e, o);
    std::vector<Work> works{{&fork, more}, {&other, more}};
    for (size_t i = 0; i < 2; ++i) works[i].logits = got[i].data();
    e->step(works);
    for (const Work& w : works) ASSERT_FALSE(w.failure) << w.failure->what();
    EXPECT_TRUE(same_bits(got[0], expected)) << how;
    EXPECT_TRUE(same_bits(got[1], copy(Session(e, o).prefill(more)))) << how;
  }
}

TEST_P(ExactPrompt, BrokenOffLeavesTheSessionAsItWas) {
  const auto e = engine(96);
  Session twin(e, with_policy(reading(policy(), "once"), kContext)), session = twin.fork();
  for (const size_t tokens : {300, 200}) {  // the first prompt, and one after it
    const Ids ids = some_ids(tokens, tokens);
    const size_t seen = session.tokens();
    for (const size_t units : {1, 7, 16}) {
      size_t calls = 0;
      session.append(ids, [&](size_t done, size_t total) {
        EXPECT_LE(done, total);
        return ++calls < units;
      });
      EXPECT_EQ(calls, units);
      EXPECT_EQ(session.tokens(), seen);
    }
    EXPECT_THROW(session.append(ids, [](size_t, size_t) -> bool { throw std::bad_alloc(); }),
                 std::bad_alloc);
    twin.append(ids);
    session.append(ids);
    for (const int32_t id : some_ids(5, 6))
      ASSERT_TRUE(same_bits(copy(session.decode(id)), copy(twin.decode(id))));
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, ExactPrompt, testing::Range<size_t>(0, policies().size()));

/// An engine's peak while it reads `ids` and the ledger that its session has then.
std::pair<size_t, Ledger> peak(const std::string& policy, const Ids& ids) {
  const auto e = engine(64);
  Session session(e, with_policy(policy, 4200));
  const size_t before = e->peak_bytes();
  EXPECT_EQ(before, e->bytes_in_use());
  session.append(ids);
  return {e->peak_bytes() - before, session.ledger()};
}

// The residual stream, the exact rows of a layer (f32), those that gather to be selected, and what
// is held at last: far below the rows of all layers, and within the estimate.
TEST(ExactPrompts, TakeOneLayersRowsBesideTheResidualStream) {
  const Ids ids = some_ids(3000, 1);
  const ModelConfig& c = demo()->config();
  const auto layers = static_cast<size_t>(c.layers);
  const size_t row = static_cast<size_t>(2 * c.kv_heads * c.head_dim) * sizeof(float);
  const size_t stream = ids.size() * static_cast<size_t>(c.hidden) * sizeof(float);
  const size_t layer = ids.size() * row;
  for (const auto& [how, most] : {std::pair("exact", 1.3), std::pair("once", 2.0)}) {
    const std::string policy = reading("snapkv(budget=64,interval=32)+int4", how);
    const auto [bytes, ledger] = peak(policy, ids);
    const double rows = static_cast<double>(bytes - ledger.total_bytes() - stream);
    EXPECT_LE(rows, most * static_cast<double>(layer)) << how << " of " << layers << " layers";
    const Ledger estimate = estimate_ledger(c, with_policy(policy, 4200), ids.size(), Device::kCpu);
    EXPECT_LE(bytes, estimate.total_bytes() + (size_t{1} << 19)) << how;  // scratch of attention
    EXPECT_GT(estimate.scratch, stream + layer);
  }
  EXPECT_GE(peak("exact,dtype=f32", ids).first, layers * layer);
}

// One selection of all rows, by the votes of the prompt's last queries: as many rows as asked, and
// those that a body without bounds would have selected.
TEST(ExactPrompts, OnceSelectsAtTheEndAlone) {
  const Ids ids = some_ids(900, 2);
  const auto e = engine(96);
  for (const std::string selector : {"snapkv", "h2o", "keydiff", "expected_attention", "tova"}) {
    Session once(e, with_policy(selector + "(budget=100),sink=4,window=16,prompt=once", kContext));
    Session late(
        e,
        with_policy(selector + "(budget=100,interval=4000),sink=4,window=16,prompt=exact", 1200));
    Session early(e,
                  with_policy(selector + "(budget=100),sink=4,window=16,prompt=exact", kContext));
    for (Session* s : {&once, &late, &early}) s->append(ids);
    expect_same_rows(once, late);
    EXPECT_EQ(once.rows(0, 0).positions.size(), 120u) << selector;
    EXPECT_NE(once.rows(1, 0).positions, early.rows(1, 0).positions) << selector;
    for (const int32_t id : some_ids(200, 3)) once.decode(id);
    EXPECT_LE(once.rows(0, 0).positions.size(), 120u) << selector;
  }
}

// BUZZ's Remark 2, and heavy rows that are chosen among all.
TEST(ExactPrompts, OnceBoundsWhatItGathers) {
  const auto e = engine(96);
  for (const auto& [policy, most] :
       {std::pair("buzz(T=64,s=8)", 64 + 64), std::pair("express(s=32,heavy=16)", 128)}) {
    Session session(e, with_policy(reading(policy, "once") + ",window=16", kContext));
    session.append(some_ids(900, 4));
    EXPECT_LE(session.rows(0, 0).positions.size(), static_cast<size_t>(most) + 20) << policy;
    session.append(some_ids(200, 5));
    EXPECT_LE(session.rows(0, 0).positions.size(), static_cast<size_t>(most) + 20) << policy;
  }
}

TEST(ExactPrompts, PiecesAreReadExactlyOneByOne) {
  const auto e = engine(80);
  const SessionOptions o = with_policy("snapkv(budget=64),prompt=exact", kContext);
  const Ids text = some_ids(500, 1);
  const std::vector<size_t> points = {150, 410};
  const Prompt prompt{text, points, "", "talk"};
  Session by_hand(e, o);
  by_hand.append(std::span(text).first(150), Append::kMore);
  by_hand.append(std::span(text).subspan(150, 260), Append::kMore);
  by_hand.append(std::span(text).subspan(410), Append::kPromptEnds);
  const Logits expected = copy(by_hand.decode(7));

  PrefixTree tree(e, {.max_bytes = size_t{1} << 30});
  Session first = tree.begin(o, prompt);
  size_t calls = 0;
  tree.read(first, prompt, [&](size_t done, size_t) { return ++calls, done < 100; });
  EXPECT_EQ(first.tokens(), 0u) << "broken off in the middle of a piece";
  tree.read(first, prompt);
  EXPECT_TRUE(same_bits(copy(first.decode(7)), expected));
  Reuse reuse;
  Session again = tree.begin(o, prompt, &reuse);
  EXPECT_EQ(reuse.tokens, 410u) << reuse.reason;
  PromptReader reader(again, prompt);
  Work work = reader.next(again);
  EXPECT_EQ(work.tokens.size(), 90u);
  e->step({&work, 1});
  ASSERT_FALSE(work.failure) << work.failure->what();
  reader.took(work);
  EXPECT_TRUE(reader.done());
  EXPECT_TRUE(same_bits(copy(again.decode(7)), expected));
}

// In slices, between which others decode. Until the last the session is as it was: forks and files
// are of that, and what else comes begins the prompt anew.
TEST(ExactPrompts, AreReadInSlicesBetweenTheStepsOfOthers) {
  const auto e = engine(96);
  const auto layers = static_cast<size_t>(demo()->config().layers);
  const SessionOptions o = with_policy("h2o(budget=64),window=16,prompt=once", kContext);
  const Ids first = some_ids(200, 1), second = some_ids(500, 2);
  const int32_t token = 9;
  Session alone(e, o), session(e, o), other(e, o);
  for (Session* s : {&alone, &session, &other}) s->append(first);
  Session untouched = session.fork();
  const auto step = [&](std::span<const int32_t> ids, Logits* logits = nullptr) {
    std::vector<Work> works{{&session, ids}, {&other, {&token, 1}}};
    works[0].slice = layers;
    if (logits) works[0].logits = logits->data();
    e->step(works);
    for (const Work& w : works) EXPECT_FALSE(w.failure) << w.failure->what();
    EXPECT_FALSE(works[1].goes_on);
    return works[0].goes_on;
  };
  Logits logits(static_cast<size_t>(demo()->config().vocab));
  size_t steps = 1;
  while (step(second, &logits)) {
    EXPECT_EQ(session.tokens(), first.size());
    ++steps;
  }
  EXPECT_EQ(steps, 6u) << "500 tokens in blocks of 96";
  EXPECT_TRUE(same_bits(logits, copy(alone.prefill(second))));
  EXPECT_TRUE(same_bits(copy(session.decode(3)), copy(alone.decode(3))));

  session = untouched.fork();
  EXPECT_TRUE(step(second));
  Session fork = session.fork();
  EXPECT_TRUE(step(second));
  EXPECT_TRUE(step(std::span(second).first(400))) << "another prompt begins at its beginning";
  EXPECT_TRUE(same_bits(copy(fork.decode(3)), copy(untouched.fork().decode(3))));
  EXPECT_TRUE(same_bits(copy(session.decode(3)), copy(untouched.fork().decode(3))));
  Session after = untouched.fork();
  after.decode(3);
  while (step(second)) {
  }
  EXPECT_TRUE(same_bits(copy(session.decode(4)), [&] {
    after.append(second);
    return copy(after.decode(4));
  }()));
}

TEST(ExactPrompts, OnceHasNoForkPoints) {
  const auto e = engine(80);
  const SessionOptions o = with_policy("snapkv(budget=64),prompt=once", kContext);
  const Ids text = some_ids(500, 1);
  const std::vector<size_t> points = {150};
  const Prompt prompt{text, points, "", "talk"};
  Session whole(e, o), session(e, o);
  whole.append(text);
  PrefixTree tree(e, {.max_bytes = size_t{1} << 30});
  tree.read(session, prompt);
  EXPECT_EQ(tree.statistics().snapshots, 0u);
  EXPECT_TRUE(same_bits(copy(session.decode(7)), copy(whole.decode(7))));
}

TEST(ExactPrompts, RefuseWhatWouldNotBeExact) {
  const auto e = engine(80);
  const Ids ids = some_ids(100, 1);
  const auto invalid = ErrorCode::kInvalidArgument;
  Session exact(e, with_policy("exact+int4,prompt=exact", kContext));
  test::refused(invalid, "in one call", [&] { exact.append(ids, Append::kPart); });
  Session once(e, with_policy("snapkv(budget=64),prompt=once", kContext));
  test::refused(invalid, "fork point", [&] { once.append(ids, Append::kMore); });
  EXPECT_EQ(exact.tokens() + once.tokens(), 0u);
  exact.append(ids);
  once.append(ids);
}

// A prompt for which there is no room changes nothing; one that fits may come next.
TEST(ExactPrompts, OneTooLongForTheMemoryLeavesTheSessionAsItWas) {
  EngineOptions o;
  o.threads = 1;
  o.chunk = 64;
  auto e = std::make_shared<Engine>(demo(), o);
  const size_t own = e->bytes_in_use();
  o.memory_limit = own + (size_t{4} << 20);
  e = std::make_shared<Engine>(demo(), o);
  Session session(e, with_policy("snapkv(budget=64),prompt=exact", 20000));
  test::refused(ErrorCode::kOutOfMemory, "", [&] { session.append(some_ids(15000, 1)); });
  EXPECT_EQ(session.tokens(), 0u);
  session.append(some_ids(200, 1));
  session.decode(5);
}

// None is so short that other kernels would multiply it; only the last may have a part of a unit.
TEST(PromptBlocks, AreWholeUnitsOfNearlyEqualSizes) {
  for (const size_t unit : {PromptUnits::kOnHost, PromptUnits::kOnGpu})
    for (const size_t most : {128u, 500u, 2048u})
      for (const size_t tokens : {1u, 63u, 64u, 65u, 513u, 2049u, 32768u, 32769u}) {
        const std::vector<PromptRange> blocks = prompt_blocks(tokens, most, unit);
        size_t end = 0;
        for (const PromptRange& block : blocks) {
          EXPECT_EQ(block.first, end);
          EXPECT_LE(block.count, most);
          EXPECT_EQ(block.first % unit, 0u);
          EXPECT_TRUE(blocks.size() == 1 || block.count >= unit) << block.count;
          end += block.count;
        }
        EXPECT_EQ(end, tokens) << most << ", " << unit;
      }
  EXPECT_EQ(prompt_blocks(32768, 2048, PromptUnits::kOnGpu).size(), 16u);
}

}  // namespace
}  // namespace pith
