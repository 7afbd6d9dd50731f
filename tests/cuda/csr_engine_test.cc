// Sessions with csr on the GPU against sessions on the CPU: dictionaries drawn from first rows,
// trained ones, keys before RoPE.

#include "cache_pair.h"
#include "methods/codecs/csr/dictionary.h"
#include "methods/codecs/csr/test_rows.h"
#include "random_model.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

// The dictionary is drawn from the first rows that leave the window, which wait until then. Both
// devices code the same rows after a prompt whose rows fill whole blocks of both, and until the CPU
// codes 16 more.
TEST(CudaPolicies, CsrDrawsTheDictionariesOfTheCpu) {
  for (const int dim : {64, 128}) {
    const auto model = RandomModelFolder({.dtype = DType::kF32, .head_dim = dim}).load();
    PITH_NEEDS_GPU();
    for (const char* policy :
         {"exact+csr(rope=post,online=64),window=32,sink=0",
          "exact+csr(rope=post,s=16,solver=omp,online=96),window=32,sink=0",
          "exact+csr(rope=post,s=4,chunks=1,online=80,collect=96),window=32,sink=0",
          "exact+csr(online=64),window=32,sink=0", "exact+csr(online=64,s=6),sink=5,window=27",
          "exact+csr(online=40,s=2,chunks=2),window=32,sink=0",
          "exact+csr(online=64,s=6,pair_bits=16,solver=omp),window=32,sink=0",
          "exact+csr(rope=post,online=64,pair_bits=16),window=32,sink=0"}) {
      if (left_out()) continue;
      for (const size_t prompt : {size_t{64}, size_t{32 + 96}, size_t{32 + 320}}) {
        const auto ids = random_ids(prompt + 15, model->config().vocab, 11);
        EXPECT_LT(difference(model, policy, ids, prompt, 512), 3e-2) << policy << ", " << prompt;
      }
      // In chunks: rows that wait and codes are attended to by many queries.
      const auto ids = random_ids(32 + 320 + 15, model->config().vocab, 12);
      EXPECT_LT(difference(model, policy, ids, 32 + 320, 32), 3e-2) << policy;
    }
  }
}

// Ten rounds of clusters: one row that goes elsewhere, for a difference in the last bit of f16, is
// seen in the atoms. Wrong atoms would be no better than none.
TEST(CudaPolicies, CsrFindsTheClustersOfTheCpu) {
  for (const int dim : {64, 128}) {
    const auto model = RandomModelFolder({.dtype = DType::kF32, .head_dim = dim}).load();
    PITH_NEEDS_GPU();
    const auto ids = random_ids(32 + 320 + 15, model->config().vocab, 11);
    const char* policy = "exact+csr(online=32,draw=kmeans,collect=96,solver=omp),window=32,sink=0";
    EXPECT_LT(difference(model, policy, ids, 32 + 320, 512), 0.12);
    Session rows(model,
                 options_for(Device::kCuda, "exact+csr(online=32,collect=96),window=32,sink=0"));
    Session clusters(model, options_for(Device::kCuda, policy));
    EXPECT_NE(all_logits(rows, ids, 32 + 320), all_logits(clusters, ids, 32 + 320));
  }
}

TEST(CudaPolicies, CsrForksGoOnApart) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  const char* policy = "exact+csr(online=64),window=32,sink=0";
  const auto ids = random_ids(230, model->config().vocab, 13);
  for (const size_t before : {size_t{60}, size_t{200}}) {  // while rows wait, and after
    Session whole(model, options_for(Device::kCuda, policy));
    Session base(model, options_for(Device::kCuda, policy));
    all_logits(whole, ids, before);
    base.prefill(std::span<const int32_t>(ids).first(before));
    Session fork = base.fork();
    all_logits(base, random_ids(90, model->config().vocab, 14), 0);
    for (size_t i = before; i < ids.size(); ++i) fork.decode(ids[i]);
    const auto a = whole.decode(7), b = fork.decode(7);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin())) << before;
  }
}

/// A dictionary of random atoms for a model, both layers' or each its own.
std::filesystem::path write_random_dictionary(const testing_files::TemporaryFolder& folder,
                                              const ModelConfig& config, bool shared) {
  const auto heads = static_cast<size_t>(config.kv_heads),
             dim = static_cast<size_t>(config.head_dim);
  const auto group = [&](size_t first, size_t last, size_t d, uint32_t seed) {
    const size_t count = shared ? 1 : heads;
    return GroupAtoms{{first, last}, count, 90, d, csr_test::random_atoms(count * 90, d, seed)};
  };
  DictionarySides sides;
  if (shared) {
    sides = {{group(0, 1, dim, 1)}, {group(0, 1, dim / 2, 2)}};
  } else {
    sides = {{group(0, 0, dim, 3), group(1, 1, dim, 4)},
             {group(0, 0, dim / 2, 5), group(1, 1, dim / 2, 6)}};
  }
  const auto path = folder.path() / (shared ? "shared.safetensors" : "own.safetensors");
  write_dictionary(path, {"random", config.fingerprint, 2, heads, dim}, sides, {});
  return path;
}

TEST(CudaPolicies, CsrReadsTheDictionariesOfTheCpu) {
  for (const int dim : {64, 128}) {
    const auto model = RandomModelFolder({.dtype = DType::kF32, .head_dim = dim}).load();
    PITH_NEEDS_GPU();
    const testing_files::TemporaryFolder folder;
    for (const bool shared : {true, false}) {
      const std::string file = write_random_dictionary(folder, model->config(), shared).string();
      for (const char* rest : {"online=0", "online=64", "online=0,s=6,solver=omp"}) {
        const std::string policy = "exact+csr(dict=" + file + "," + rest + "),sink=0,window=32";
        const auto ids = random_ids(32 + 160 + 15, model->config().vocab, 15);
        EXPECT_LT(difference(model, policy, ids, 32 + 160, 512), 3e-2) << policy;
        EXPECT_LT(difference(model, policy, ids, 32 + 160, 32), 3e-2) << policy;
      }
    }
  }
}

// Atoms are drawn from the first rows, before any is selected from; then rows stand alone and move
// as codes. The CPU codes 16 rows at a time, the GPU 32: sizes are such that both hold the same
// codes, but for buzz. Two atoms may tie in f32, and a selection sees numbers of f16.
TEST(CudaPolicies, CsrRowsAreSelectedAgain) {
  PITH_NEEDS_GPU();
  for (const char* selector :
       {"snapkv(budget=96,interval=64)", "h2o(budget=96,interval=32,decay=0.5)",
        "tova(budget=96,interval=32)", "knorm(budget=96,interval=32)", "buzz(T=96,weights=true)",
        "uniform(budget=96)"}) {
    for (const char* codec :
         {"csr(rope=post,online=64)", "csr(rope=post,s=6,solver=omp,online=64)",
          "csr(rope=post,s=4,chunks=2,online=40,collect=90)", "csr(online=64)",
          "csr(s=6,solver=omp,online=64)", "csr(s=4,chunks=2,online=40,collect=90)"}) {
      for (const int dim : {64, 128}) {
        const DType dtype = dim == 64 ? DType::kBF16 : DType::kF16;
        const std::string policy =
            std::string(selector) + "+" + codec + ",sink=0,window=64,dtype=" + to_string(dtype);
        SCOPED_TRACE(policy);
        if (left_out()) continue;
        Pair pair(policy, dim, dtype);
        for (const size_t tokens : {32, 128, 64, 32, 192, 64}) pair.run_chunk(tokens);
        pair.end_prefill();
        EXPECT_GE(pair.same_rows(), 0.9);
        EXPECT_GE(pair.compared(), 0.4);
        if (!policy.starts_with("buzz")) {
          EXPECT_LT(pair.worst(), dtype == DType::kBF16 ? 2e-2 : 4e-3);
        }
        pair.use_clone();
        for (int t = 0; t < 64; ++t) pair.run_token();
        EXPECT_GE(pair.same_rows(), 0.9);
        EXPECT_EQ(pair.cpu_ledger().rows_kept, pair.gpu_ledger().rows_kept);
        EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
      }
    }
  }
}

TEST(CudaPolicies, CsrForksWithTrainedDictionaries) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  const testing_files::TemporaryFolder folder;
  const std::string file = write_random_dictionary(folder, model->config(), true).string();
  const auto ids = random_ids(150, model->config().vocab, 16);
  for (const char* online : {"0", "64"}) {
    Session whole(model,
                  options_for(Device::kCuda, "exact+csr(dict=" + file + ",online=" + online + ")"));
    all_logits(whole, ids, 140);
    Session fork = whole.fork();
    const auto a = whole.decode(7);
    const std::vector<float> first(a.begin(), a.end());
    const auto b = fork.decode(7);
    EXPECT_TRUE(std::equal(b.begin(), b.end(), first.begin())) << online;
    EXPECT_EQ(whole.ledger().shared, fork.ledger().shared);
  }
}

}  // namespace
}  // namespace pith::cuda
