// What the cache asks of the card, counted: launches, copies, clears, allocations, and how often it
// waits. What this program itself copies and waits for is among it, the same for all.

#include <gtest/gtest.h>

#include <ostream>

#include "cuda/cache_pair.h"
#include "emulated/emulated/asked.h"

namespace emulated {

void PrintTo(const Asked& asked, std::ostream* out) {
  *out << "{" << asked.launches << ", " << asked.copies << ", " << asked.clears << ", "
       << asked.allocations << ", " << asked.waits << "}";
}

}  // namespace emulated

namespace pith::cuda {
namespace {

using emulated::Asked;

/// Of 64 tokens, and of a chunk of 96 behind them.
struct WorkCase {
  const char* policy;
  Asked tokens, chunk;
};

const WorkCase kCases[] = {
    {"exact", {192, 770, 0, 258, 320}, {2, 14, 0, 6, 4}},
    {"exact,sink=3,window=9", {192, 770, 0, 258, 320}, {2, 14, 0, 6, 4}},
    {"exact+int4,window=20", {196, 780, 8, 264, 320}, {14, 28, 8, 14, 4}},
    {"exact+ladder(rows=64),window=20,sink=0", {200, 780, 8, 264, 320}, {20, 36, 24, 34, 4}},
    {"streaming_llm(window=37,rope=cache),sink=7", {320, 772, 0, 260, 320}, {6, 20, 0, 5, 4}},
    {"knorm(budget=40,interval=24)", {216, 768, 0, 256, 320}, {34, 16, 0, 8, 4}},
    {"knorm(budget=40,interval=24)+int4", {252, 768, 24, 304, 320}, {90, 16, 32, 75, 4}},
    {"adakv(budget=40,interval=24)+int4,window=20",
     {532, 774, 24, 322, 326},
     {128, 24, 32, 102, 4}},
    {"uniform(rate=0.3)", {256, 768, 0, 256, 320}, {8, 22, 0, 7, 4}},
    {"uniform(rate=0.3)+int4", {200, 768, 16, 272, 320}, {20, 21, 0, 7, 4}},
    {"uniform(budget=40)+int8", {248, 768, 16, 304, 320}, {34, 24, 16, 39, 4}},
    {"balancekv(b=16,heavy=20,heavy_interval=14)+int4,window=20",
     {542, 768, 0, 392, 320},
     {310, 18, 0, 197, 4}},
    {"express(heavy=0,s=32),window=20", {256, 776, 0, 256, 320}, {7, 20, 0, 6, 4}},
    {"express(s=60),window=20", {380, 768, 0, 256, 320}, {11, 18, 0, 19, 4}},
    {"express(s=60)+int4,window=20", {856, 768, 192, 768, 320}, {60, 34, 32, 71, 4}},
    {"knorm(budget=40,interval=24);heads=0:exact", {600, 770, 0, 258, 320}, {36, 34, 0, 10, 4}},
};

TEST(EmulatedWork, StaysWhatItWas) {
  for (const WorkCase& c : kCases) {
    SCOPED_TRACE(c.policy);
    Pair pair(c.policy, 64, DType::kF16);
    pair.watch_saved_alone();
    pair.run_chunk(100);
    pair.end_prefill();
    for (int t = 0; t < 40; ++t) pair.run_token();
    const Asked before = emulated::asked();
    for (int t = 0; t < 64; ++t) pair.run_token();
    const Asked between = emulated::asked();
    pair.run_chunk(96);
    EXPECT_EQ(between - before, c.tokens);
    EXPECT_EQ(emulated::asked() - between, c.chunk);
  }
}

}  // namespace
}  // namespace pith::cuda
