// A card that is full of what others of the process hold: they are asked for room, once.

#include <gtest/gtest.h>

#include "cuda/layer_pair.h"
#include "cuda/random_model.h"
#include "cuda/sessions.h"
#include "emulated/emulated/asked.h"
#include "pith/engine.h"
#include "session/test_company.h"

namespace pith::cuda {
namespace {

constexpr LayerCase kCase{"knorm(budget=40,interval=24)+int8"};

/// One pass of 90 tokens under a Runtime of its own, and how often it asked for room.
struct Pass {
  explicit Pass(bool gives, bool asks = true) {
    RuntimeOptions o{.device = Device::kCuda, .threads = 1};
    if (asks)
      o.make_room = [this, gives] {
        ++asked;
        return gives;
      };
    runtime = std::make_shared<Runtime>(o);
    cache.emplace(runtime, layer_options(kCase));
  }
  std::vector<float> run() {
    constexpr size_t kTokens = 90;
    MemoryCounter memory;
    DeviceTensor q(memory, {kTokens, 4, 64}, {}, nullptr), k(memory, {kTokens, 2, 64}, {}, nullptr),
        out(memory, {kTokens, 4, 64}, {}, nullptr);
    q.set(values(kTokens * 4 * 64)), k.set(values(kTokens * 2 * 64));
    emulated::refuse_memory(refusals);
    cache->step(out.out(), q.view(), k.view(), k.view(), kTokens);
    return out.get();
  }
  static std::vector<float> values(size_t n) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i % 97) / 64 - 0.75f;
    return x;
  }

  int asked = 0;
  size_t refusals = 0;
  std::shared_ptr<Runtime> runtime;
  std::optional<LayerCache> cache;
};

TEST(EmulatedRoom, IsAskedForOnce) {
  Pass calm(true), full(true);
  const auto want = calm.run();
  EXPECT_EQ(calm.asked, 0);
  full.refusals = 1;
  EXPECT_EQ(full.run(), want);
  EXPECT_EQ(full.asked, 1);
}

TEST(EmulatedRoom, ThatIsNotThereIsAnError) {
  for (const bool gives : {true, false}) {
    Pass full(gives);
    full.refusals = gives ? 2 : 1;
    refused(ErrorCode::kOutOfMemory, "the GPU cannot give", [&] { full.run(); });
    EXPECT_EQ(full.asked, 1);
  }
  Pass alone(true, false);
  alone.refusals = 1;
  refused(ErrorCode::kOutOfMemory, "the GPU cannot give", [&] { alone.run(); });
  EXPECT_EQ(alone.asked, 0);
}

TEST(EmulatedRoom, APassThatTheCardHasNoMemoryForChangesNothing) {
  const auto model = RandomModelFolder({.hidden = 64, .inner = 64, .vocab = 61}).load();
  EngineOptions o;
  o.device = Device::kCuda;
  const auto engine = std::make_shared<Engine>(model, o);
  const auto ids = random_ids(250, 61, 1);
  const std::span<const int32_t> first(ids.data(), 20), then(ids.data() + 20, 200);
  for (const char* policy : {"exact", "exact+int4,window=16", "exact,prompt=exact"}) {
    SCOPED_TRACE(policy);
    Session session(engine, test::with_policy(policy)), alone(engine, test::with_policy(policy));
    for (Session* s : {&alone, &session}) s->append(first);
    alone.append(then);
    const auto right = alone.decode(3);
    const test::Logits want(right.begin(), right.end());
    emulated::leave_memory(size_t{64} << 10);
    refused(ErrorCode::kOutOfMemory, "the GPU has 0 MiB", [&] { session.append(then); });
    EXPECT_FALSE(session.try_reserve(200));
    emulated::leave_memory({});
    EXPECT_EQ(session.tokens(), 20u);
    EXPECT_EQ(engine->bytes_reserved(), 0u);
    session.append(then);
    const auto said = session.decode(3);
    EXPECT_TRUE(test::same_bits({said.begin(), said.end()}, want));
  }
}

}  // namespace
}  // namespace pith::cuda
