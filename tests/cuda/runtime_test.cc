// Engines and a layer's cache of one runtime on the GPU: one stream, one account, the bits of
// separate ones.

#include "pith/runtime.h"

#include <array>
#include <thread>

#include "layer_pair.h"
#include "random_model.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

constexpr char kPolicy[] = "knorm(budget=40,interval=24)+int8,window=8";
constexpr LayerCase kLayer{"knorm(budget=40,interval=24)+int8"};

std::shared_ptr<Runtime> gpu_runtime(size_t limit = 0) {
  return std::make_shared<Runtime>(
      RuntimeOptions{.device = Device::kCuda, .threads = 1, .memory_limit = limit});
}

std::shared_ptr<Engine> engine_of(const std::shared_ptr<const Model>& model,
                                  std::shared_ptr<Runtime> runtime, size_t parallel = 1) {
  return std::make_shared<Engine>(
      model, EngineOptions{.chunk = 32, .parallel = parallel, .runtime = std::move(runtime)});
}

std::vector<float> said_by(const std::shared_ptr<Engine>& engine) {
  const SessionOptions options{.policy = Policy::parse(kPolicy)};
  Session session(engine, options);
  return all_logits(session, random_ids(60, engine->model()->config().vocab, 1), 50);
}

std::vector<float> stepped(const std::shared_ptr<Runtime>& runtime) {
  constexpr size_t kTokens = 90;
  LayerCache cache(runtime, layer_options(kLayer));
  MemoryCounter memory;
  DeviceTensor q(memory, {kTokens, 4, 64}, {}, nullptr), k(memory, {kTokens, 2, 64}, {}, nullptr),
      out(memory, {kTokens, 4, 64}, {}, nullptr);
  std::vector<float> x(kTokens * 4 * 64);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) / 64 - 0.75f;
  q.set(x), k.set(x);
  cache.step(out.out(), q.view(), k.view(), k.view(), kTokens);
  return out.get();
}

TEST(CudaRuntime, AnswersAreThoseOfSeparateOnes) {
  const auto model = RandomModelFolder(RandomModel{}).load();
  PITH_NEEDS_GPU();
  const auto runtime = gpu_runtime();
  const auto one = engine_of(model, runtime), many = engine_of(model, runtime, 4);
  const auto want_one = said_by(engine_of(model, gpu_runtime())),
             want_many = said_by(engine_of(model, gpu_runtime(), 4)),
             want_layer = stepped(gpu_runtime());
  EXPECT_EQ(said_by(one), want_one);
  EXPECT_EQ(said_by(many), want_many);
  EXPECT_EQ(stepped(runtime), want_layer);
  EXPECT_EQ(said_by(one), want_one);

  // All three at once, on their threads.
  std::vector<float> said_one, said_many, said_layer;
  std::array threads = {std::thread([&] { said_one = said_by(one); }),
                        std::thread([&] { said_many = said_by(many); }),
                        std::thread([&] { said_layer = stepped(runtime); })};
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(said_one, want_one);
  EXPECT_EQ(said_many, want_many);
  EXPECT_EQ(said_layer, want_layer);
}

// Whoever is the first of them may go before the others.
TEST(CudaRuntime, TablesAreThereOnce) {
  const auto model = RandomModelFolder(RandomModel{}).load();
  PITH_NEEDS_GPU();
  const auto ids = random_ids(70, model->config().vocab, 3);
  for (const char* policy :
       {"exact+qjl(paper=true),window=16", "exact+qjl,window=16", "exact+gear,window=16"}) {
    SCOPED_TRACE(policy);
    const SessionOptions options{.policy = Policy::parse(policy)};
    const auto said = [&](Session& session) { return all_logits(session, ids, 50); };
    const auto alone = engine_of(model, gpu_runtime());
    const size_t without = alone->runtime()->bytes_in_use();
    Session by_itself(alone, options);
    const size_t session = alone->runtime()->bytes_in_use() - without;
    const auto want = said(by_itself);

    const auto runtime = gpu_runtime();
    auto one = engine_of(model, runtime);
    const auto other = engine_of(model, runtime);
    auto first = std::make_unique<Session>(one, options);
    const size_t tables = first->ledger().shared, before = runtime->bytes_in_use();
    constexpr size_t kAngles = 64 / 2 * sizeof(double);
    {
      Session second(other, options);
      EXPECT_EQ(second.ledger().shared, tables);
      EXPECT_EQ(runtime->bytes_in_use(), before + session - tables - kAngles);
      EXPECT_EQ(said(*first), want);
      first.reset();
      one.reset();
      EXPECT_EQ(said(second), want);
    }
    EXPECT_EQ(runtime->bytes_in_use(), other->ledger().total_bytes());
  }
}

TEST(CudaRuntime, BytesAndTheirLimitAreOfAll) {
  const auto model = RandomModelFolder(RandomModel{}).load();
  PITH_NEEDS_GPU();
  const auto open = gpu_runtime();
  const auto first = engine_of(model, open);
  const auto want = said_by(first);
  {
    const auto second = engine_of(model, open);
    EXPECT_EQ(open->bytes_in_use(), first->bytes_in_use() + second->bytes_in_use());
    stepped(open);  // leaves what layers of its shape use in turn
    EXPECT_GT(open->bytes_in_use(), first->bytes_in_use() + second->bytes_in_use());
  }
  const size_t room = open->peak_bytes();
  const auto runtime = gpu_runtime(room);
  const auto engine = engine_of(model, runtime);
  refused(ErrorCode::kOutOfMemory, "", [&] {
    std::vector<LayerCache> layers;
    for (size_t i = 0; i < 10000; ++i) {
      layers.emplace_back(runtime, layer_options(kLayer));
      LayerCache& cache = layers.back();
      MemoryCounter memory;
      DeviceTensor k(memory, {90, 2, 64}, {}, nullptr);
      k.set(std::vector<float>(90 * 2 * 64, 0.5f));
      cache.append(k.view(), k.view(), 90);
    }
  });
  EXPECT_LE(runtime->peak_bytes(), room);
  EXPECT_EQ(said_by(engine), want);
}

TEST(CudaRuntime, RefusesAnEngineThatSaysOtherwise) {
  const auto model = RandomModelFolder(RandomModel{}).load();
  PITH_NEEDS_GPU();
  const auto runtime = gpu_runtime();
  refused(ErrorCode::kInvalidArgument, "isa avx2 and a runtime of cuda",
          [&] { Engine(model, {.isa = "avx2", .runtime = runtime}); });
  const auto cpu = std::make_shared<Runtime>();
  refused(ErrorCode::kInvalidArgument, "device cuda and a runtime of cpu",
          [&] { Engine(model, {.device = Device::kCuda, .runtime = cpu}); });
  EXPECT_EQ(engine_of(model, runtime)->options().device, Device::kCuda);
}

}  // namespace
}  // namespace pith::cuda
