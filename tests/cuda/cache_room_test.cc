// Memory that is asked for before a pass on the GPU: none takes more, whatever the policy and
// however rows are cut into passes.

#include <cstdlib>
#include <random>

#include "harness.h"
#include "methods/registry_cuda.h"
#include "pairs.h"
#include "policy_forms.h"

namespace pith::cuda {
namespace {

/// Every selector, every codec, and some of their other forms.
std::vector<std::string> forms() {
  std::vector<std::string> all = test::registered_forms("keydiff(budget=96)");
  for (const char* more :
       {"uniform(budget=96,heavy=32)+int4", "express(s=64,heavy=32)+turboquant,window=16",
        "express(s=64)+csr(online=32),window=16", "balancekv(mode=stream,rate=0.5)+int8",
        "uniform(rate=0.25,heavy=0)+kivi,sink=4,window=16", "snapkv(budget=96)+gear",
        "h2o(budget=48,interval=40)+csr(online=32),window=16", "adakv(budget=96)+int8,window=16",
        "streaming_llm(window=60,rope=cache)", "exact;heads=1:knorm(budget=40)+int4,window=16",
        "exact+k:int4+v:ladder(rows=64,old=csr,new=int8)"})
    all.emplace_back(more);
  return all;
}

void expect_room(const std::string& policy, uint32_t seed, double& ratios, size_t& passes) {
  Pair pair(policy, 64, DType::kF16);
  pair.watch_saved_alone();
  if (protects(policy) && seed % 2 == 0) pair.protect({{20, 31}, {95, 102}, {390, 401}});
  std::mt19937 random(seed);
  const size_t all = 560;
  for (size_t at = 0; at < all;) {
    const bool token = random() % 3 != 0;
    const size_t n = token ? 1 : std::min<size_t>(1 + random() % 200, all - at);
    const size_t times = token ? std::min<size_t>(1 + random() % 40, all - at) : 1;
    const size_t room = pair.room({n * times, n, n > 1});
    pair.peak();
    for (size_t i = 0; i < times; ++i) token ? pair.run_token() : pair.run_chunk(n);
    if (!token && random() % 2 == 0) pair.end_prefill();
    const size_t took = pair.peak();
    EXPECT_LE(took, room) << times << " times " << n << " tokens after " << at;
    ratios += static_cast<double>(room) / static_cast<double>(took);
    ++passes;
    if (std::getenv("PITH_SHOW_ESTIMATES"))
      std::printf("%-50s %4zu %3zu x %3zu %9zu %9zu %.2f\n", policy.c_str(), at, times, n, took,
                  room, static_cast<double>(room) / static_cast<double>(took));
    at += n * times;
  }
}

TEST(CudaRoom, NoPassTakesMoreThanWasAskedFor) {
  PITH_NEEDS_GPU();
  double ratios = 0;
  size_t passes = 0;
  uint32_t seed = 0;
  for (const std::string& policy : forms()) {
    SCOPED_TRACE(policy);
    ++seed;
    if (!is_there(policy, 64) || left_out()) continue;
    expect_room(policy, seed, ratios, passes);
  }
  EXPECT_LE(ratios / static_cast<double>(passes), 3.0) << "bounds are loose";
}

// Rows come a few at a time, behind a chunk that took what chunks take: what a codec needs for its
// tables, and to code with them, is the most there is.
TEST(CudaRoom, WhatACodecCodesWithIsAskedFor) {
  PITH_NEEDS_GPU();
  Pair pair("exact+csr(online=256),window=16", 64, DType::kF16);
  pair.run_chunk(300);
  for (size_t at = 300; at < 344; at += 4) {
    const size_t room = pair.room({4, 4, false});
    pair.peak();
    pair.run_chunk(4);
    EXPECT_LE(pair.peak(), room) << "4 tokens after " << at;
  }
}

TEST(CudaRoom, ACodecSaysWhatItLearnsAndCodesWith) {
  PITH_NEEDS_GPU();
  constexpr int kDim = 64, kHeads = 3;
  std::vector<double> frequencies(kDim / 2, 0.25);
  for (const char* form : {"csr(online=256)", "csr(online=8,draw=kmeans,collect=320)", "kvtc"}) {
    SCOPED_TRACE(form);
    MemoryCounter counter, scratch;
    const PolicyPart part = *Policy::parse(std::string("exact+") + form).rules.front().key_codec;
    const CodecRow& row = codec_row(part.name);
    const TableSite site{&counter, nullptr, kDim, kHeads, 0, 3, 0, &frequencies, 0, &scratch};
    const auto codec = find_device_codec(part.name)->make(row.read(part))->with_tables(site);
    ASSERT_TRUE(codec);
    const size_t rows = codec->learns_from(), n = kHeads * rows * kDim;
    const auto x = to_device(counter, normals(n, DType::kF16, 51));
    codec->learn({x.data(), x.data(), rows * kDim, 0}, DType::kF16, 0, nullptr);
    const GroupedBytes bytes = codec->block_bytes(kDim);
    const auto codes = [&](size_t block) {
      return DeviceArray<char>(counter, MemoryKind::kPayload, kHeads * rows / 32 * block + 1,
                               nullptr);
    };
    const auto key_codes = codes(bytes.key_codes), key_side = codes(bytes.key_side),
               value_codes = codes(bytes.value_codes), value_side = codes(bytes.value_side);
    const CodeJob keys{x.data(), rows * kDim, key_codes.data(), key_side.data(), rows / 32};
    const CodeJob values{x.data(), rows * kDim, value_codes.data(), value_side.data(), rows / 32};
    codec->code({DType::kF16, kHeads, static_cast<int>(rows), kDim}, {&keys, 1}, {&values, 1},
                nullptr);
    check(cudaStreamSynchronize(nullptr), form);
    EXPECT_GT(codec->scratch_bytes(), 0u);
    EXPECT_EQ(scratch.peak(), codec->scratch_bytes());
    EXPECT_EQ(scratch.total(), 0u);
  }
}

}  // namespace
}  // namespace pith::cuda
