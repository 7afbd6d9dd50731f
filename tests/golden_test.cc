// The forward pass against transformers: tiny random models of every architecture with the logits
// that transformers computed in f32 (tools/golden/make_models.py), some of them as GGUF files too.
// Exact cache, f32 arithmetic.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <vector>

#include "cache/kv_cache.h"
#include "core/safetensors.h"
#include "model/forward.h"
#include "model/loaders/weights.h"
#include "paths.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr double kTolerance = 2e-4;

std::filesystem::path models() { return repo_dir() / "tests" / "data" / "models"; }
/// A folder of models(), or what tools/golden/make_gguf_models.py made of one: NAME.gguf.
std::filesystem::path model_path(const std::string& name) {
  return (name.ends_with(".gguf") ? repo_dir() / "tests" / "data" / "gguf" : models()) / name;
}

/// ids [T] and logits [T, V] as transformers saw them.
struct Golden {
  explicit Golden(const std::string& name)
      : file(SafeTensors::open(models() / std::filesystem::path(name).stem() /
                               "golden.safetensors")) {
    const Tensor& id = file.at("ids");
    const auto* first = reinterpret_cast<const int64_t*>(id.data);
    ids.assign(first, first + id.count());
    logits = reinterpret_cast<const float*>(file.at("logits").data);
    vocab = file.at("logits").shape.at(1);
  }
  SafeTensors file;
  std::vector<int32_t> ids;
  const float* logits = nullptr;
  size_t vocab = 0;
};

/// One conversation with its own threads.
struct Engine {
  Engine(std::shared_ptr<const Model> m, const std::string& policy, int threads,
         MatmulPrecision precision, size_t max_chunk, std::string_view isa = "")
      : model(std::move(m)),
        pool(threads),
        memory(0, /*poison=*/true),
        context{pool, memory, kernels_for(isa)},
        cache(context, shape(model->config()), Policy::parse(policy), 0,
              model->weights().ropes(static_cast<size_t>(model->config().context))),
        forward(context, *model, max_chunk, precision),
        // One token is never rounded to bf16, a chunk may be.
        last_tolerance(precision == MatmulPrecision::kF32 ? kTolerance : 0.05) {}

  static CacheShape shape(const ModelConfig& c) {
    return {.layers = c.layers,
            .query_heads = c.query_heads,
            .kv_heads = c.kv_heads,
            .head_dim = c.head_dim,
            .sliding_window = c.sliding_window,
            .context = static_cast<size_t>(c.context),
            .soft_cap = c.attention_soft_cap};
  }
  /// Logits [T, V] of all tokens, run in chunks of the sizes given (the last one repeats).
  std::vector<float> run(const std::vector<int32_t>& ids, const std::vector<size_t>& chunks) {
    std::vector<float> out;
    size_t done = 0;
    for (size_t c = 0; done < ids.size(); ++c) {
      const size_t count = std::min(chunks[std::min(c, chunks.size() - 1)], ids.size() - done);
      forward.run(cache, {ids.data() + done, count}, static_cast<int64_t>(done));
      forward.logits().all(forward.states(), [&](size_t first, size_t rows, const float* logits) {
        EXPECT_EQ(first, out.size() / vocab() - done);
        out.insert(out.end(), logits, logits + rows * vocab());
      });
      const auto last = forward.logits().last(forward.states());
      EXPECT_EQ(last.size(), vocab());
      for (size_t i = 0; i < vocab(); ++i) {
        EXPECT_NEAR(last[i], out[out.size() - vocab() + i], last_tolerance);
      }
      done += count;
    }
    return out;
  }
  size_t vocab() const { return static_cast<size_t>(model->config().vocab); }

  std::shared_ptr<const Model> model;
  ThreadPool pool;
  MemoryCounter memory;
  Context context;
  KvCache cache;
  Forward forward;
  double last_tolerance;
};

constexpr const char* kExact = "exact,dtype=f32";

double max_difference(const std::vector<float>& logits, const Golden& golden) {
  EXPECT_EQ(logits.size(), golden.ids.size() * golden.vocab);
  double worst = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double difference = std::abs(static_cast<double>(logits[i]) - golden.logits[i]);
    if (!(difference <= worst)) worst = difference;  // NaN becomes the worst
  }
  return worst;
}

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Model> model_ = Model::load(model_path(GetParam()));
  Golden golden_{GetParam()};
  double difference(const std::vector<size_t>& chunks, std::string_view isa = "") {
    Engine engine(model_, kExact, 2, MatmulPrecision::kF32, 64, isa);
    return max_difference(engine.run(golden_.ids, chunks), golden_);
  }
};

TEST_P(GoldenTest, TheReferenceIsWorthMatching) {
  // Logits that hardly vary would match whatever the model computed.
  ASSERT_EQ(golden_.ids.size(), 64u);
  double sum = 0, squares = 0;
  const size_t count = golden_.ids.size() * golden_.vocab;
  for (size_t i = 0; i < count; ++i) {
    sum += golden_.logits[i];
    squares += double{golden_.logits[i]} * golden_.logits[i];
  }
  const double mean = sum / static_cast<double>(count);
  EXPECT_GT(std::sqrt(squares / static_cast<double>(count) - mean * mean), 0.5);
}

TEST_P(GoldenTest, PrefillInOneChunk) { EXPECT_LE(difference({64}), kTolerance); }

TEST_P(GoldenTest, PrefillInUnevenChunks) {
  EXPECT_LE(difference({1, 17, 2, 9, 31, 3}), kTolerance);
}

TEST_P(GoldenTest, TokenByToken) { EXPECT_LE(difference({1}), kTolerance); }

TEST_P(GoldenTest, OnEveryInstructionSet) {
  for (std::string_view isa : available_isas()) {
    EXPECT_LE(difference({40, 1}, isa), kTolerance) << isa;
  }
}

TEST_P(GoldenTest, TheNumberOfThreadsChangesNoBit) {
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 5}) {
    Engine engine(model_, kExact, threads, MatmulPrecision::kFast, 64);
    results.push_back(engine.run(golden_.ids, {33, 1}));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST_P(GoldenTest, FastArithmeticStaysClose) {
  // bf16 activations have 8 significant bits; logits have a standard deviation of 1 to 2.
  Engine engine(model_, kExact, 2, MatmulPrecision::kFast, 64);
  EXPECT_LE(max_difference(engine.run(golden_.ids, {64}), golden_), 0.2);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         testing::Values("llama2", "llama31", "llama_bias", "mistral", "qwen2",
                                         "qwen3", "deepseek_r1_distill", "gemma2", "gemma3", "phi3",
                                         "phi4_mini", "olmo2", "granite", "phi3.gguf",
                                         "phi4_mini.gguf", "olmo2.gguf", "granite.gguf"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST(Golden, TheModelsAreWhatTheyClaim) {
  const auto config = [](const char* name) { return Model::load(models() / name)->config(); };
  EXPECT_EQ(config("llama2").weights, DType::kF16);
  EXPECT_EQ(config("llama31").weights, DType::kF32);
  EXPECT_EQ(config("llama31").eos, (std::vector<int32_t>{2, 7, 9}));
  EXPECT_EQ(config("deepseek_r1_distill").weights, DType::kBF16);
  EXPECT_TRUE(config("qwen2").qkv_bias);
  EXPECT_EQ(config("qwen2").sliding_window, (std::vector<int64_t>{0, 20}));
  EXPECT_EQ(config("mistral").sliding_window, (std::vector<int64_t>{24, 24}));
  EXPECT_TRUE(config("qwen3").qk_norm);
  EXPECT_EQ(config("qwen3").head_dim, 32);
  EXPECT_TRUE(config("qwen3").tied_embeddings);
  EXPECT_EQ(config("gemma2").sliding_window, (std::vector<int64_t>{20, 0, 20}));
  EXPECT_EQ(config("gemma2").attention_soft_cap, 2.5f);
  EXPECT_EQ(config("gemma3").sliding_window, (std::vector<int64_t>{20, 20, 0}));
  EXPECT_EQ(config("phi3").sliding_window, (std::vector<int64_t>{23}));
}

TEST(Golden, LongRopeFollowsTheContextThatIsExpected) {
  const auto model = Model::load(models() / "phi4_mini");
  const auto& weights = model->weights();
  const auto slowest = [&](size_t context) {
    return weights.ropes(context).of(0)->frequencies()[11];
  };
  EXPECT_NEAR(slowest(32) / slowest(33), 16 / 2.2, 1e-9);
  EXPECT_EQ(weights.rope.frequencies()[12], 0) << "a channel that stands still";
  // sqrt(1 + ln(512 / 32) / ln 32) on the channels that turn.
  EXPECT_NEAR(weights.head_factors[0], std::sqrt(1.8), 1e-6);
  EXPECT_EQ(weights.head_factors[24], 1);
}

TEST(Golden, WrongChunksAndTokensAreRefusedBeforeAnythingHappens) {
  Engine engine(Model::load(models() / "llama31"), kExact, 1, MatmulPrecision::kF32, 8);
  const auto refused = [&](std::vector<int32_t> ids) {
    try {
      engine.forward.run(engine.cache, ids, 0);
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    }
    EXPECT_EQ(engine.cache.tokens(0), 0u);
  };
  refused({});
  refused(std::vector<int32_t>(9, 1));
  refused({1, 101});
  refused({-1});
  EXPECT_THROW(engine.forward.logits().last(engine.forward.states()), Error);
}

TEST(Golden, LogitsThatAreNotFiniteAreReported) {
  Engine engine(Model::load(models() / "llama31"), kExact, 1, MatmulPrecision::kF32, 8);
  const Golden golden("llama31");
  // The weights are mapped read-only, so the last one is replaced by an infinite one.
  auto& weights = const_cast<Model::Weights&>(engine.model->weights());
  const std::vector<float> infinite(101 * 64, INFINITY);
  weights.head.data = infinite.data();
  engine.forward.run(engine.cache, {golden.ids.data(), 4}, 0);
  try {
    engine.forward.logits().last(engine.forward.states());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNonFinite);
  }
}

}  // namespace
}  // namespace pith
