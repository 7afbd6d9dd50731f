// Engines and a layer's cache of one Runtime: the bits of separate ones, on one limit and one team
// of threads.

#include "pith/runtime.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "layer/test_layer.h"
#include "pith/session.h"
#include "session/test_company.h"
#include "session/test_demo.h"
#include "session/test_refused.h"

namespace pith {
namespace {

using test::demo;
using test::Logits;
using test::refused;
using test::some_ids;
using test::with_policy;

constexpr char kPolicy[] = "keydiff(budget=32,interval=16)+int4,window=16";

std::shared_ptr<Engine> engine_of(std::shared_ptr<Runtime> runtime, size_t chunk,
                                  const std::shared_ptr<const Model>& model = demo()) {
  EngineOptions o;
  if (!runtime) o.threads = 2;
  o.chunk = chunk;
  o.runtime = std::move(runtime);
  return std::make_shared<Engine>(model, o);
}

std::shared_ptr<Runtime> two_threads(size_t limit = 0) {
  return std::make_shared<Runtime>(RuntimeOptions{.threads = 2, .memory_limit = limit});
}

Logits said_by(const std::shared_ptr<Engine>& engine) {
  Session session(engine, with_policy(kPolicy));
  session.append(some_ids(100, 1));
  const auto logits = session.decode(7);
  return {logits.begin(), logits.end()};
}

const test::Shape kShape;

std::vector<float> stepped(std::shared_ptr<Runtime> runtime) {
  const test::Rows rows(kShape, 60, 3);
  LayerCache cache(std::move(runtime), test::options_of(kShape, kPolicy));
  const auto dim = static_cast<size_t>(kShape.head_dim);
  const auto heads = static_cast<size_t>(kShape.query_heads());
  const auto kv_heads = static_cast<size_t>(kShape.kv_heads);
  std::vector<float> out(60 * kShape.q_size());
  cache.step(test::out_view(out.data(), heads, dim), test::view(rows.q.data(), heads, dim),
             test::view(rows.k.data(), kv_heads, dim), test::view(rows.v.data(), kv_heads, dim),
             60);
  return out;
}

size_t threads_of_process() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    ++count;
  return count;
}

TEST(Runtime, AnswersAreThoseOfSeparateOnes) {
  const auto runtime = two_threads();
  const auto a = engine_of(runtime, 48),
             b = engine_of(runtime, 32, Model::load(repo_dir() / "models/demo"));
  EXPECT_EQ(said_by(a), said_by(engine_of(nullptr, 48)));
  EXPECT_EQ(said_by(b), said_by(engine_of(nullptr, 32)));
  EXPECT_EQ(stepped(runtime), stepped(two_threads()));
  EXPECT_EQ(a->runtime(), runtime);
  EXPECT_EQ(a->threads(), 2);
  EXPECT_STREQ(a->isa(), runtime->isa());
}

TEST(Runtime, AnEngineAddsNoThreads) {
  const auto runtime = std::make_shared<Runtime>(RuntimeOptions{.threads = 3});
  const size_t before = threads_of_process();
  const auto a = engine_of(runtime, 48), b = engine_of(runtime, 48);
  said_by(a), said_by(b), stepped(runtime);
  EXPECT_EQ(threads_of_process(), before);
}

// Whoever is the first of them may go before the others.
TEST(Runtime, TablesAreThereOnce) {
  const auto ids = some_ids(70, 3);
  const auto said = [&](Session& session) {
    const auto logits = session.prefill(ids);
    return Logits(logits.begin(), logits.end());
  };
  for (const char* policy : {"exact+qjl(paper=true),window=16", "exact+turboquant,window=16",
                             "exact+qjl(residual=2),window=16"}) {
    SCOPED_TRACE(policy);
    Session by_itself(engine_of(nullptr, 48), with_policy(policy));
    const auto want = said(by_itself);

    const auto runtime = two_threads();
    auto one = engine_of(runtime, 48);
    const auto other = engine_of(runtime, 48);
    const size_t empty = runtime->bytes_in_use();
    auto first = std::make_unique<Session>(one, with_policy(policy));
    const size_t tables = first->ledger().shared;
    EXPECT_EQ(runtime->bytes_in_use(), empty + tables);
    auto second = std::make_unique<Session>(other, with_policy(policy));
    EXPECT_EQ(second->ledger().shared, tables);
    // A layer has those of the models' first.
    LayerCacheOptions o = test::options_of(kShape, policy);
    const ModelConfig& config = demo()->config();
    o.query_heads = config.query_heads, o.kv_heads = config.kv_heads, o.head_dim = config.head_dim;
    o.seed = 0;
    const LayerCache layer(runtime, o);
    EXPECT_GT(layer.ledger().shared, 0u);
    EXPECT_EQ(runtime->bytes_in_use(), empty + tables);
    EXPECT_EQ(one->bytes_in_use(), one->ledger().total_bytes() + tables);
    EXPECT_EQ(said(*first), want);
    first.reset(), one.reset();
    EXPECT_EQ(said(*second), want);
    second.reset();
    EXPECT_EQ(runtime->bytes_in_use(),
              other->ledger().total_bytes() + layer.ledger().total_bytes());
  }
}

// Tables are counted apart from an engine's own bytes, whose most was at another time.
TEST(Runtime, APeakIsOfOneTime) {
  const auto engine = engine_of(two_threads(), 48);
  Session(engine, with_policy("exact")).append(some_ids(300, 1));
  const size_t before = engine->peak_bytes();
  const Session session(engine, with_policy("exact+qjl(paper=true)"));
  ASSERT_GT(session.ledger().shared, 0u);
  ASSERT_LT(engine->bytes_in_use(), before);
  EXPECT_EQ(engine->peak_bytes(), before);
}

TEST(Runtime, BytesOfAllAreCounted) {
  const auto runtime = two_threads();
  EXPECT_EQ(runtime->bytes_in_use(), 0u);
  const auto a = engine_of(runtime, 48);
  const size_t of_a = a->bytes_in_use();
  EXPECT_EQ(runtime->bytes_in_use(), of_a);
  {
    const auto b = engine_of(runtime, 96);
    LayerCache cache(runtime, test::options_of(kShape, kPolicy));
    Session session(b, with_policy(kPolicy));
    session.append(some_ids(100, 1));
    EXPECT_EQ(a->bytes_in_use(), of_a);
    EXPECT_EQ(runtime->bytes_in_use(), of_a + b->bytes_in_use() + cache.ledger().total_bytes());
    EXPECT_GE(runtime->peak_bytes(), of_a + b->peak_bytes());
  }
  EXPECT_EQ(runtime->bytes_in_use(), of_a);
}

TEST(Runtime, OneLimitIsForAll) {
  const auto open = two_threads();
  const auto first = engine_of(open, 48);
  said_by(first);
  const auto second = engine_of(open, 48);
  const size_t room = open->bytes_in_use() + (size_t{4} << 20);
  const auto runtime = two_threads(room);
  const auto a = engine_of(runtime, 48), b = engine_of(runtime, 48);
  EXPECT_EQ(a->options().memory_limit, room);
  // Sessions of one engine take what another then lacks.
  std::vector<Session> sessions;
  refused(ErrorCode::kOutOfMemory, "", [&] {
    for (size_t i = 0; i < 1000; ++i) {
      sessions.emplace_back(a, with_policy("exact"));
      sessions.back().append(some_ids(200, i));
    }
  });
  EXPECT_LE(runtime->peak_bytes(), room);
  refused(ErrorCode::kOutOfMemory, "", [&] { engine_of(runtime, 4096); });
  sessions.clear();
  EXPECT_EQ(said_by(b), said_by(first));
}

TEST(Runtime, LivesAsLongAsWhatWasMadeWithIt) {
  auto runtime = two_threads();
  LayerCache cache(runtime, test::options_of(kShape, kPolicy));
  auto session = std::make_unique<Session>(engine_of(runtime, 48), with_policy(kPolicy));
  const std::weak_ptr<Runtime> watched = runtime;
  runtime.reset();
  session->append(some_ids(20, 1));
  session.reset();
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(cache.tokens(), 0u);
}

TEST(Runtime, RefusesAnEngineThatSaysOtherwise) {
  const auto runtime = std::make_shared<Runtime>(
      RuntimeOptions{.threads = 2, .memory_limit = size_t{1} << 30, .isa = "scalar"});
  const auto made = [&](EngineOptions o) {
    o.runtime = runtime;
    const Engine engine(demo(), o);
  };
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  refused(kInvalid, "threads 3 and a runtime of 2", [&] { made({.threads = 3}); });
  refused(kInvalid, "isa avx2 and a runtime of scalar", [&] { made({.isa = "avx2"}); });
  refused(kInvalid, "memory_limit 5 and a runtime of", [&] { made({.memory_limit = 5}); });
  refused(kInvalid, "device cuda and a runtime of cpu", [&] { made({.device = Device::kCuda}); });
  made({.threads = 2, .isa = "scalar", .memory_limit = size_t{1} << 30});
  refused(kInvalid, "1025 threads", [] { const Runtime wrong({.threads = 1025}); });
  refused(kInvalid, "instruction set 'avx2'",
          [] { const Runtime wrong({.device = Device::kCuda, .isa = "avx2"}); });
}

}  // namespace
}  // namespace pith
