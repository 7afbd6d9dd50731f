// How much the cache's host half gives the device beside kernels: copies, clears, allocations, and
// how often it waits. What this program itself copies and waits for is among it, the same for all.

#include <gtest/gtest.h>

#include <ostream>

#include "cuda/cache_pair.h"
#include "host_device.h"

namespace pith::cuda {

void PrintTo(const DeviceWork& work, std::ostream* out) {
  *out << "{" << work.copies << ", " << work.clears << ", " << work.allocations << ", "
       << work.waits << "}";
}

namespace {

/// Of 64 tokens, and of a chunk of 96 behind them.
struct WorkCase {
  const char* policy;
  DeviceWork tokens, chunk;
};

const WorkCase kCases[] = {
    {"exact", {770, 0, 258, 320}, {14, 0, 6, 4}},
    {"exact,sink=3,window=9", {770, 0, 258, 320}, {14, 0, 6, 4}},
    {"exact+int4,window=20", {776, 4, 260, 320}, {24, 4, 10, 4}},
    {"exact+ladder(rows=64),window=20,sink=0", {776, 8, 266, 320}, {32, 12, 22, 4}},
    {"streaming_llm(window=37,rope=cache),sink=7", {772, 0, 260, 320}, {20, 0, 5, 4}},
    {"knorm(budget=40,interval=24)", {768, 0, 256, 320}, {16, 0, 8, 4}},
    {"knorm(budget=40,interval=24)+int4", {768, 24, 280, 320}, {16, 32, 43, 4}},
    {"adakv(budget=40,interval=24)+int4,window=20", {774, 24, 298, 326}, {24, 32, 70, 4}},
    {"uniform(rate=0.3)", {768, 0, 256, 320}, {22, 0, 7, 4}},
    {"uniform(rate=0.3)+int4", {768, 8, 264, 320}, {21, 0, 7, 4}},
    {"uniform(budget=40)+int8", {768, 24, 280, 320}, {20, 12, 27, 4}},
    {"balancekv(b=16,heavy=20,heavy_interval=14)+int4,window=20",
     {768, 68, 324, 320},
     {18, 92, 105, 4}},
    {"express(heavy=0,s=32),window=20", {776, 0, 256, 320}, {20, 0, 6, 4}},
    {"knorm(budget=40,interval=24);heads=0:exact", {770, 0, 258, 320}, {34, 0, 10, 4}},
};

TEST(HostWork, StaysWhatItWas) {
  for (const WorkCase& c : kCases) {
    SCOPED_TRACE(c.policy);
    Pair pair(c.policy, c.policy, 64, DType::kF16, {});
    pair.watch_saved_alone();
    pair.run_chunk(100);
    pair.end_prefill();
    for (int t = 0; t < 40; ++t) pair.run_token();
    const DeviceWork before = device_work();
    for (int t = 0; t < 64; ++t) pair.run_token();
    const DeviceWork between = device_work();
    pair.run_chunk(96);
    EXPECT_EQ(between - before, c.tokens);
    EXPECT_EQ(device_work() - between, c.chunk);
  }
}

}  // namespace
}  // namespace pith::cuda
