// Sessions on the GPU against sessions on the CPU: prefill in chunks and token by token, every part
// that a layer may have, forks, the ledger, and what is refused.

#include <algorithm>
#include <filesystem>

#include "cache/cuda/device_cache.h"
#include "paths.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "random_model.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

struct Case {
  const char* name;
  RandomModel model;
};

// A RoPE and a window a kind of layer, norms before and after, GeGLU, a scale of its own.
const RandomModel kGemma3{.dtype = DType::kF32,
                          .head_dim = 256,
                          .kv_heads = 1,
                          .layers = 3,
                          .tied = true,
                          .like = "Gemma3ForCausalLM",
                          .more = R"({"sliding_window": 40, "sliding_window_pattern": 3,
                                      "query_pre_attn_scalar": 200, "rope_theta": 1e6})"};
// Soft caps of scores and of logits, small enough to matter; every other layer slides.
const RandomModel kGemma2{.dtype = DType::kF32,
                          .head_dim = 64,
                          .layers = 3,
                          .tied = true,
                          .like = "Gemma2ForCausalLM",
                          .more = R"({"sliding_window": 40, "query_pre_attn_scalar": 20,
                                      "attn_logit_softcapping": 1.5,
                                      "final_logit_softcapping": 2})"};
// Fused matrices, 48 of 64 channels turn, by the long factors.
const RandomModel kPhi3{.like = "Phi3ForCausalLM", .more = R"({"partial_rotary_factor": 0.75,
                          "original_max_position_embeddings": 128,
                          "rope_scaling": {"type": "longrope",
                            "long_factor": [1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2,
                                            3, 3, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10],
                            "short_factor": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                             1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}})"};
const RandomModel kOlmo2{.dtype = DType::kF32, .head_dim = 128, .like = "Olmo2ForCausalLM"};
const RandomModel kGranite{.dtype = DType::kF32,
                           .like = "GraniteForCausalLM",
                           .more = R"({"embedding_multiplier": 12, "residual_multiplier": 0.22,
                                       "attention_multiplier": 0.05, "logits_scaling": 2})"};

RandomModel with_f16(RandomModel model) {
  model.dtype = DType::kF16;
  return model;
}

class CudaEngine : public testing::TestWithParam<Case> {};

// One token's products keep f32 activations; queries and probabilities are rounded to the rows'
// type: 11 bits of f16.
TEST_P(CudaEngine, TokenByTokenAgreesWithTheCpu) {
  const auto model = RandomModelFolder(GetParam().model).load();
  PITH_NEEDS_GPU();
  const auto ids = random_ids(40, model->config().vocab, 1);
  EXPECT_LT(difference(model, "exact", ids, 0, 512), 3e-3);
}

// A chunk's activations are rounded to the weights' type: 8 bits of bf16.
TEST_P(CudaEngine, ChunksAgreeWithTheCpu) {
  const auto model = RandomModelFolder(GetParam().model).load();
  PITH_NEEDS_GPU();
  const double bound = model->config().weights == DType::kBF16 ? 3e-2 : 4e-3;
  const auto ids = random_ids(300, model->config().vocab, 2);
  EXPECT_LT(difference(model, "exact", ids, 290, 512), bound);
  EXPECT_LT(difference(model, "exact", ids, 290, 97), bound);
  EXPECT_LT(difference(model, "exact+bf16", ids, 290, 130), 4e-2);
}

INSTANTIATE_TEST_SUITE_P(
    Models, CudaEngine,
    testing::Values(Case{"bf16", {}}, Case{"f16", {.dtype = DType::kF16, .head_dim = 128}},
                    Case{"f32", {.dtype = DType::kF32, .kv_heads = 4}},
                    Case{"biased",
                         {.dtype = DType::kF32, .qkv_bias = true, .biases = true, .tied = true}},
                    Case{"qwen2", {.head_dim = 128, .heads = 6, .kv_heads = 1, .qkv_bias = true}},
                    Case{"qwen3", {.dtype = DType::kF32, .head_dim = 128, .qk_norm = true}},
                    Case{"gemma2", kGemma2}, Case{"gemma3", kGemma3},
                    Case{"gemma3_f16", with_f16(kGemma3)}, Case{"phi3", kPhi3},
                    Case{"olmo2", kOlmo2}, Case{"granite", kGranite}),
    [](const auto& test) { return test.param.name; });

// Rows leave the window and are coded or dropped; the model's own rounding is f32's, so that codes
// are almost always the same on both devices. int8 and int4 rows are coded 32 at a time on the GPU,
// one by one on the CPU: some rows are still exact there.
TEST(CudaPolicies, AgreeWithTheCpu) {
  RandomModel shape{.dtype = DType::kF32, .head_dim = 128};
  const auto wide = RandomModelFolder(shape).load();
  shape.head_dim = 64;
  const auto narrow = RandomModelFolder(shape).load();
  PITH_NEEDS_GPU();
  const struct {
    const char* policy;
    double bound;
  } kCases[] = {{"exact+kivi,sink=0", 2e-2},
                {"exact+kivi(bits=4),sink=4,window=0", 1e-2},
                {"exact+kivi,sink=3,window=50", 2e-2},
                {"exact+int8", 1e-2},
                {"exact+int4,window=64,sink=0", 6e-2},
                {"exact+kivi(bits=4),sink=0;layers=0:exact", 1e-2},
                {"exact+qjl(paper=true),sink=2,window=40", 5e-2},
                {"exact+k:qjl(paper=true,m=256)+v:kivi(bits=2),window=64,sink=0", 5e-2},
                {"exact+qjl(paper=true,outliers=5,m_out=48,sketch=hadamard),sink=0", 5e-2},
                {"streaming_llm(window=60)", 4e-3},
                {"streaming_llm(window=96)+kivi", 4e-3},
                {"local(window=37)", 4e-3},
                {"exact,sink=4,window=9", 4e-3}};
  for (const auto& c : kCases) {
    if (left_out()) continue;
    for (const auto& model : {wide, narrow}) {
      const auto ids = random_ids(460, model->config().vocab, 8);
      EXPECT_LT(difference(model, c.policy, ids, 400, 512), c.bound) << c.policy;
      EXPECT_LT(difference(model, c.policy, ids, 360, 97), c.bound) << c.policy;
    }
    const auto ids = random_ids(200, narrow->config().vocab, 9);
    EXPECT_LT(difference(narrow, c.policy, ids, 0, 512), c.bound) << c.policy;
  }
}

TEST(CudaPolicies, WideHeadsAgreeWithTheCpu) {
  const auto model = RandomModelFolder(kGemma3).load();
  PITH_NEEDS_GPU();
  const auto ids = random_ids(300, model->config().vocab, 13);
  for (const auto& [policy, bound] : {std::pair{"exact+int8", 1e-2},
                                      {"exact+kivi(bits=4),sink=4,window=0", 1e-2},
                                      {"exact+turboquant(bits=4),sink=0,window=32", 6e-2}}) {
    EXPECT_LT(difference(model, policy, ids, 250, 97), bound) << policy;
  }
}

// The layers that see everything turn their sinks by their own RoPE, which is not the first
// layer's.
TEST(CudaPolicies, LayersTurnRowsByTheirOwnRope) {
  RandomModel two_ropes = kGemma3;
  two_ropes.head_dim = 128;
  const auto model = RandomModelFolder(two_ropes).load();
  PITH_NEEDS_GPU();
  const auto ids = random_ids(300, model->config().vocab, 12);
  EXPECT_LT(difference(model, "streaming_llm(window=60,rope=cache)", ids, 200, 97), 4e-3);
}

TEST(CudaPolicies, HoldTheRowsThatTheCpuHolds) {
  const auto model = RandomModelFolder({.dtype = DType::kF32}).load();
  PITH_NEEDS_GPU();
  for (const char* policy : {"exact+kivi,sink=3", "streaming_llm(window=60)",
                             "exact+kivi(bits=4),sink=0", "streaming_llm(window=33)+kivi"}) {
    Session cpu(model, options_for(Device::kCpu, policy, 128));
    Session gpu(model, options_for(Device::kCuda, policy, 128));
    const auto ids = random_ids(420, model->config().vocab, 10);
    all_logits(cpu, ids, 380);
    all_logits(gpu, ids, 380);
    EXPECT_EQ(cpu.rows(1, 1).positions, gpu.rows(1, 1).positions) << policy;
    EXPECT_EQ(cpu.ledger().payload, gpu.ledger().payload) << policy;
    EXPECT_EQ(cpu.ledger().rows_kept, gpu.ledger().rows_kept) << policy;
    EXPECT_LE(gpu.ledger().metadata, cpu.ledger().metadata) << policy;
    EXPECT_EQ(cpu.describe_policy(), gpu.describe_policy());
    Session fork = gpu.fork();
    Sampler greedy({.temperature = 0});
    EXPECT_EQ(fork.sample(greedy), gpu.sample(greedy)) << "a fork draws where it was made";
    const auto a = gpu.decode(3);
    const std::vector<float> first(a.begin(), a.end());
    const auto b = fork.decode(3);
    EXPECT_TRUE(std::equal(b.begin(), b.end(), first.begin())) << policy;
  }
}

// Rows are rounded to f16 from products that differ in their last bits, and a selection may go the
// other way where scores are close: what stays is nearly the same, and so are the logits. Not where
// balancekv halves what heavy rows leave it: one other row changes the halvings behind it (0.35 on
// the CPU alone, between rows of f32 and of f16). There the same rows are fed to both caches.
TEST(CudaPolicies, SelectorsAgreeWithTheCpu) {
  const auto model = RandomModelFolder({.dtype = DType::kF32, .head_dim = 128}).load();
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"express(heavy=0,s=64)",
        "uniform(budget=96)",
        "knorm(budget=96,interval=32)",
        "keydiff(budget=96,interval=32)",
        "snapkv(budget=96,interval=32)",
        "pyramidkv(budget=96,interval=32)",
        "tova(budget=96,interval=32)",
        "h2o(budget=96,interval=32)",
        "buzz(T=100)",
        "expected_attention(budget=96,interval=32)",
        "balancekv(heavy=0,rate=0.5,b=64)",
        "express(heavy=0,s=64);layers=0:exact+kivi,sink=0",
        "buzz(T=100,weights=true)",
        "uniform(budget=60,heavy=50,heavy_interval=20)",
        "express(s=64,heavy=40,heavy_interval=20)",
        "uniform",
        "express(s=64,heavy=40,heavy_interval=20);layers=0:express(heavy=0,s=32)",
        "uniform(budget=60,heavy=50,heavy_interval=20)+int8",
        "buzz(T=100,weights=true)+int8",
        "express(s=64,heavy=40,heavy_interval=20)+int8"}) {
    if (left_out()) continue;
    Session cpu(model, options_for(Device::kCpu, policy, 128));
    Session gpu(model, options_for(Device::kCuda, policy, 128));
    const auto ids = random_ids(450, model->config().vocab, 11);
    const auto want = all_logits(cpu, ids, 386), got = all_logits(gpu, ids, 386);
    EXPECT_LT(relative_error(got, {want.begin(), want.end()}), 0.15) << policy;
    EXPECT_EQ(cpu.ledger().rows_kept, gpu.ledger().rows_kept) << policy;
    // Over codes up to 31 rows of a head are still exact.
    const ModelConfig& c = model->config();
    const bool late = std::string(policy).ends_with("+int8");
    const int rows = late ? 31 * c.layers * c.kv_heads : 0;
    EXPECT_GE(gpu.ledger().payload, cpu.ledger().payload) << policy;
    EXPECT_LE(gpu.ledger().payload,
              cpu.ledger().payload + static_cast<uint64_t>(rows) * 4 * c.head_dim)
        << policy;
    EXPECT_EQ(cpu.describe_policy(), gpu.describe_policy()) << policy;
    Session fork = gpu.fork();
    const auto a = gpu.decode(3);
    const std::vector<float> first(a.begin(), a.end());
    const auto b = fork.decode(3);
    EXPECT_TRUE(std::equal(b.begin(), b.end(), first.begin())) << policy;
  }
}

TEST(CudaSession, TheDemoModelAgreesWithTheCpu) {
  PITH_NEEDS_GPU();
  const auto model = Model::load(repo_dir() / "models/demo", false);
  const auto ids = random_ids(220, model->config().vocab, 3);
  // The emulated card's products round otherwise.
  EXPECT_LT(difference(model, "exact", ids, 200, 128), emulated() ? 4e-2 : 3e-2);
}

TEST(CudaSession, ForksGoOnApart) {
  PITH_NEEDS_GPU();
  const auto model = RandomModelFolder({}).load();
  const auto ids = random_ids(200, model->config().vocab, 4);
  for (const char* policy : {"exact", "express(heavy=0,s=16)+int4,window=20",
                             "uniform(budget=20,heavy=20,heavy_interval=9)+int8,window=20"}) {
    SCOPED_TRACE(policy);
    Session whole(model, options_for(Device::kCuda, policy));
    Session base(model, options_for(Device::kCuda, policy));
    all_logits(whole, ids, 90);
    base.prefill(std::span<const int32_t>(ids).first(90));
    Session fork = base.fork();
    all_logits(base, random_ids(70, model->config().vocab, 5), 0);
    for (size_t i = 90; i < 200; ++i) fork.decode(ids[i]);
    const auto a = whole.decode(7), b = fork.decode(7);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()));
    EXPECT_EQ(fork.tokens(), 201u);
    EXPECT_EQ(base.tokens(), 160u);
  }
}

TEST(CudaSession, TheLedgerIsTheCpus) {
  PITH_NEEDS_GPU();
  const auto model = RandomModelFolder({}).load();
  const auto ids = random_ids(150, model->config().vocab, 6);
  Session cpu(model, options_for(Device::kCpu, "exact"));
  Session gpu(model, options_for(Device::kCuda, "exact"));
  all_logits(cpu, ids, 140);
  all_logits(gpu, ids, 140);
  const Ledger a = cpu.ledger(), b = gpu.ledger();
  EXPECT_EQ(a.payload, b.payload);
  EXPECT_EQ(a.metadata, b.metadata);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.rows_kept, b.rows_kept);
  EXPECT_EQ(a.channels_seen, b.channels_seen);
  EXPECT_EQ(cpu.rows(1, 1).positions, gpu.rows(1, 1).positions);
  EXPECT_EQ(cpu.describe_policy(), gpu.describe_policy());
}

TEST(CudaSession, PassingTheMemoryLimitIsAnError) {
  PITH_NEEDS_GPU();
  const auto model = RandomModelFolder({}).load();
  StandaloneOptions o = options_for(Device::kCuda, "exact", 64);
  Session probe(model, o);
  o.memory_limit = probe.ledger().total_bytes() + 200000;
  Session session(model, o);
  const auto ids = random_ids(1000, model->config().vocab, 7);
  testing_files::expect_error(ErrorCode::kOutOfMemory, {"limit"}, [&] { session.prefill(ids); });
}

TEST(CudaSession, DrawsWhatTheLogitsSay) {
  PITH_NEEDS_GPU();
  const auto model = RandomModelFolder({}).load();
  const auto ids = random_ids(70, model->config().vocab, 11);
  for (const int top_k : {1, 40, 0}) {
    SamplingOptions o;
    o.top_k = top_k, o.repeat_penalty = 1.5f, o.never = ids;
    o.never.resize(1);
    o.presence_penalty = 0.2f, o.frequency_penalty = 0.1f;
    o.logit_bias = {{5, 2.0f}, {ids[1], -1.0f}};
    Sampler on_device(o), on_host(o);
    Session session(model, options_for(Device::kCuda, "exact"));
    session.append(ids);
    Session other(model, options_for(Device::kCuda, "exact"));
    auto logits = other.prefill(ids);
    std::vector<int32_t> history = ids;
    for (int i = 0; i < 30; ++i) {
      if (i == 15) {
        const std::vector<uint32_t> mask(4, 0x33333333u);
        on_device.set_mask(mask), on_host.set_mask(mask);
      }
      const int32_t id = session.sample(on_device);
      if (i >= 15) {
        ASSERT_TRUE(id % 4 < 2 && id < 128) << id;
      }
      on_host.set_draw(history.size());
      ASSERT_EQ(id, on_host.sample(logits, history)) << top_k << " " << i;
      history.push_back(id);
      session.append({&id, 1});
      logits = other.decode(id);
    }
  }
}

}  // namespace
}  // namespace pith::cuda
