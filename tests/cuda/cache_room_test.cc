// Memory that is asked for before a pass on the GPU: none takes more, whatever the policy and
// however rows are cut into passes.

#include <cstdlib>
#include <random>

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

}  // namespace
}  // namespace pith::cuda
