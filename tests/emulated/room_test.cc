// A card that is full of what others of the process hold: they are asked for room, once.

#include <gtest/gtest.h>

#include "cuda/layer_pair.h"
#include "emulated/emulated/asked.h"

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

}  // namespace
}  // namespace pith::cuda
