// The GPU's cache with its kernels as loops on the host (host_device.h), against the CPU's cache:
// the host half's books, moves and spans, under any cutting of tokens. Needs no GPU.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "cuda/cache_pair.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

/// Rows in codes are those of f16 here, so that the CPU's policy is the one without codes.
struct Case {
  const char* policy;
  const char* on_cpu = nullptr;
  int64_t slides = 0;  ///< rows that a query of the second layer sees; 0: all
  /// The CPU's rows are held: not at each moment where they leave in blocks, or are hidden first.
  bool alike = true;
};
const Case kCases[] = {
    {"exact"},
    {"exact,sink=3,window=9"},
    {"local(window=37)"},
    {"streaming_llm(window=40)"},
    {"streaming_llm(window=37,rope=cache),sink=7"},
    {"knorm(budget=40,interval=24)"},
    {"keydiff(budget=31,interval=20),window=20"},
    {"snapkv(budget=40,interval=20,queries=7,kernel=3),sink=4,window=16"},
    {"pyramidkv(budget=40,interval=20,beta=3),window=16"},
    {"adakv(budget=40,interval=20),sink=4,window=16"},
    {"adakv(budget=33,interval=19,by=h2o,safeguard=0),window=20"},
    {"adakv(budget=40,by=keydiff,safeguard=0.5),window=9"},
    {"adakv(budget=17,interval=1,by=knorm),sink=0,window=5"},
    {"adakv(budget=40,interval=24,by=knorm);heads=0:exact"},
    {"adakv(budget=40,interval=20),sink=4,window=16;heads=1:exact"},
    {"adakv(budget=40,interval=24)+int4,window=20", "adakv(budget=40,interval=24),window=20"},
    {"adakv(budget=70,by=h2o,safeguard=0)+int8", "adakv(budget=70,by=h2o,safeguard=0)"},
    {"adakv(budget=33,interval=19,by=keydiff)+int4,window=9",
     "adakv(budget=33,interval=19,by=keydiff),window=9"},
    {"tova(budget=40,interval=25),window=9"},
    {"h2o(budget=30,interval=50,decay=0.5),sink=2,window=30"},
    {"buzz(T=60),window=20"},
    {"buzz(T=50,weights=true),window=20"},
    {"buzz(s=4,T=47,weights=true,swap=true,localmax=false),sink=0"},
    {"uniform(budget=40)"},
    {"uniform(budget=30,weights=false),sink=0,window=33"},
    {"uniform(budget=40,heavy=20,heavy_interval=12,heavy_queries=8)"},
    {"uniform(rate=0.3)"},
    {"uniform(rate=0.3,heavy=20,heavy_interval=12,heavy_queries=8)"},
    {"uniform(rate=0.6,heavy=33,heavy_keys=1),sink=0,window=5"},
    {"balancekv(b=32,heavy=0),window=20"},
    {"balancekv(heavy=0,rate=0.125,b=16,weight=0.7),window=10"},
    {"balancekv(b=16,heavy=20,heavy_interval=14,heavy_queries=10),window=20"},
    {"express(heavy=0,s=32),window=20"},
    {"express(s=60),window=20"},
    {"balancekv(budget=90),window=20"},
    {"express(s=16,heavy=21,heavy_interval=7),sink=2,window=0"},
    {"knorm(budget=40,interval=24)+int4", "knorm(budget=40,interval=24)"},
    {"h2o(budget=33,interval=19,decay=0.5)+int8,window=20",
     "h2o(budget=33,interval=19,decay=0.5),window=20"},
    {"buzz(T=50,weights=true)+int4,window=20", "buzz(T=50,weights=true),window=20"},
    {"uniform(budget=40)+int8", "uniform(budget=40)"},
    {"balancekv(b=16,heavy=20,heavy_interval=14)+int4,window=20",
     "balancekv(b=16,heavy=20,heavy_interval=14),window=20"},
    {"balancekv(b=32,heavy=0)+int4,window=20", "balancekv(b=32,heavy=0),window=20"},
    {"uniform(rate=0.3)+int4", "uniform(rate=0.3)", 0, false},
    {"uniform(rate=0.4,heavy=20,heavy_interval=50)+int4,window=20",
     "uniform(rate=0.4,heavy=20,heavy_interval=50),window=20"},
    {"exact+ladder(rows=64),window=20,sink=0", "exact,window=20"},
    {"exact+int4,window=20,sink=0", "exact,window=20", 90, false},
    {"exact,window=9", nullptr, 50, false},
    {"exact+ladder(rows=64),window=21", "exact,window=21", 150, false},
    {"exact+ladder(rows=64),window=20", "exact,window=20", 90, false},
    {"snapkv(budget=50,interval=16),window=9", nullptr, 50, false},
    {"adakv(budget=60,by=knorm)+int4,window=20", "adakv(budget=60,by=knorm),window=20", 50, false},
    {"knorm(budget=40,interval=24);heads=0:exact"},
    {"exact;heads=1:express(heavy=0,s=32),window=20"},
    {"uniform(rate=0.3);heads=0:streaming_llm(window=60)"},
};

class HostCache : public testing::TestWithParam<Case> {};

/// Attention differs by the queries' rounding to 16 bits alone; a row too many, too few, or of
/// another weight costs ten times as much.
constexpr double kBound = 4e-3;

TEST_P(HostCache, HoldsTheCpusRowsUnderAnyCut) {
  const Case& c = GetParam();
  EXPECT_TRUE(rc::check([&] {
    const std::vector<int64_t> sliding =
        c.slides > 0 ? std::vector{int64_t{0}, c.slides} : std::vector<int64_t>();
    Pair pair(c.on_cpu ? c.on_cpu : c.policy, c.policy, 64, DType::kF16, sliding);
    const bool turned = std::string(c.policy).find("rope=cache") != std::string::npos;
    if (!turned && *rc::gen::arbitrary<bool>()) {
      const int64_t first = *rc::gen::inRange<int64_t>(8, 90);
      pair.protect({{first, first + *rc::gen::inRange<int64_t>(1, 40)}});
    }
    for (int pass = 0; pass < 4; ++pass) {
      // Hidden codes are given back 256 at a time.
      const int tokens = *rc::gen::inRange(0, c.slides > 0 ? 160 : 60);
      if (*rc::gen::arbitrary<bool>()) pair.run_chunk(static_cast<size_t>(tokens) + 1);
      for (int t = 0; t < tokens / 2; ++t) pair.run_token();
      if (pass == 1) pair.use_clone();
    }
    pair.end_prefill();
    // Of the rows that can be seen, but where two scores are nearly the same.
    if (c.alike || c.slides > 0) RC_ASSERT(pair.same_rows() >= 0.97);
    if (!turned) RC_ASSERT(pair.oracle_error() < 3 * kBound);
    RC_ASSERT(pair.worst() < kBound);
    const Ledger cpu = pair.cpu_ledger(), gpu = pair.gpu_ledger();
    if (c.alike) RC_ASSERT(cpu.rows_kept == gpu.rows_kept);
    RC_ASSERT(cpu.tokens == gpu.tokens);
    RC_ASSERT(gpu.total_bytes() <= pair.counted());
    // Codes are rows of f16 here.
    if (!c.on_cpu) RC_ASSERT(gpu.total_bytes() <= pair.estimated());
  }));
}

// Saved wherever a pass ends, it goes on in another cache bit for bit, is then the same in every
// byte, and may be saved again.
TEST_P(HostCache, GoesOnWhereItWasSaved) {
  const Case& c = GetParam();
  const bool turned = std::string(c.policy).find("rope=cache") != std::string::npos;
  EXPECT_TRUE(rc::check([&] {
    const std::vector<int64_t> sliding =
        c.slides > 0 ? std::vector{int64_t{0}, c.slides} : std::vector<int64_t>();
    Pair pair(c.on_cpu ? c.on_cpu : c.policy, c.policy, 64, DType::kF16, sliding);
    pair.watch_saved_alone();
    if (!turned && *rc::gen::arbitrary<bool>()) pair.protect({{8, 20}, {70, 75}, {160, 171}});
    const int saved_first = *rc::gen::inRange(0, 5);
    for (int pass = 0; pass < 6; ++pass) {
      if (pass == saved_first || pass == 4) pair.load_saved();
      const int tokens = *rc::gen::inRange(0, 70);
      if (*rc::gen::arbitrary<bool>()) pair.run_chunk(static_cast<size_t>(tokens) + 1);
      for (int t = 0; t < tokens / 2; ++t) pair.run_token();
      if (*rc::gen::inRange(0, 3) == 0) pair.end_prefill();
    }
    RC_ASSERT(static_cast<bool>(pair.saved_is_same()));
  }));
}

// Whatever is handed over as state is refused, or is a cache that goes on.
TEST_P(HostCache, HostileStateDoesNoHarm) {
  const Case& c = GetParam();
  const std::vector<int64_t> sliding =
      c.slides > 0 ? std::vector{int64_t{0}, c.slides} : std::vector<int64_t>();
  Pair pair(c.on_cpu ? c.on_cpu : c.policy, c.policy, 64, DType::kF16, sliding);
  pair.run_chunk(101);
  pair.end_prefill();
  for (int t = 0; t < 7; ++t) pair.run_token();
  const std::string good = pair.save();
  pair.load_anything(good);
  size_t refused = 0, tried = 0;
  const auto take = [&](const std::string& bytes) {
    ++tried;
    try {
      pair.load_anything(bytes);
    } catch (const Error& e) {
      EXPECT_TRUE(e.code() == ErrorCode::kCorrupt || e.code() == ErrorCode::kInvalidArgument ||
                  e.code() == ErrorCode::kUnsupported)
          << e.what();
      ++refused;
    }
  };
  // Counts lie among the first bytes, and behind each array.
  for (size_t at = 0; at < good.size(); at += at < 120 ? 2 : good.size() / 40 + 1) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (at % 3 == 0 ? 0x80 : at % 3 == 1 ? 0xff : 0x01));
    take(bad);
    constexpr uint64_t kCounts[] = {uint64_t{1} << 29, 0xffffffff, UINT64_MAX / 2, 3};
    if (at + 8 > good.size()) continue;
    bad = good;
    std::memcpy(bad.data() + at, kCounts + at % 4, sizeof(uint64_t));
    take(bad);
  }
  EXPECT_GT(refused, tried / 8);
  for (size_t length = 0; length < good.size(); length += good.size() / 20 + 1)
    EXPECT_THROW(pair.load_anything(good.substr(0, length)), Error) << length;
  EXPECT_THROW(pair.load_anything(good + '\0'), Error);
}

INSTANTIATE_TEST_SUITE_P(Policies, HostCache, testing::ValuesIn(kCases), [](const auto& test) {
  std::string name = test.param.policy;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

}  // namespace
}  // namespace pith::cuda
