// The cache on the GPU against the CPU's under any cutting of tokens: its rows and weights, its
// attention and an oracle's, its bytes; saved wherever a pass ends, it goes on in another cache bit
// for bit. Rows are what int4 gives back as they came, so that codes change no selection.

#include "cache_pair.h"

namespace pith::cuda {
namespace {

struct Case {
  const char* policy;
  int64_t slides = 0;  ///< rows that a query of the second layer sees; 0: all
  /// The CPU's rows are held: not at each moment where they leave in blocks, or are hidden first.
  bool alike = true;
  /// Attention differs by the queries' rounding to 16 bits alone; a row too many, too few, or of
  /// another weight costs ten times as much.
  double bound = 4e-3;
};
constexpr double kOfInt8 = 1e-2;  // what its codes of those rows are off
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
    {"expected_attention(budget=40,interval=20),window=16"},
    {"adakv(budget=40,interval=20),sink=4,window=16"},
    {"adakv(budget=33,interval=19,by=h2o,safeguard=0),window=20"},
    {"adakv(budget=40,by=keydiff,safeguard=0.5),window=9"},
    {"adakv(budget=17,interval=1,by=knorm),sink=0,window=5"},
    {"adakv(budget=40,interval=24,by=knorm);heads=0:exact"},
    {"adakv(budget=40,interval=20),sink=4,window=16;heads=1:exact"},
    {"adakv(budget=40,interval=24)+int4,window=20"},
    {"adakv(budget=70,by=h2o,safeguard=0)+int4"},
    {"adakv(budget=33,interval=19,by=keydiff)+int4,window=9"},
    {"tova(budget=40,interval=25),window=9"},
    {"h2o(budget=30,interval=50,decay=0.5),sink=2,window=30"},
    {"buzz(T=60),window=20"},
    {"buzz(T=50,weights=true),window=20"},
    {"buzz(s=4,T=47,weights=true,swap=true,localmax=false),sink=0"},
    {"buzz(T=50,by_key=true),window=20"},
    {"buzz(s=4,T=50,by_key=true,weights=true)+int4,window=9"},
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
    {"balancekv(heavy=0,rate=0.125,b=16,flush=true),window=10"},
    {"balancekv(heavy=0,rate=0.25,b=16,flush=true,decode=exact)+int4,window=9"},
    {"balancekv(b=16,heavy=20,heavy_interval=14,decode=exact),window=20"},
    {"balancekv(b=16,rate=0.25,heavy=20,flush=true)+int4,window=20"},
    {"express(s=16,heavy=21,heavy_interval=7),sink=2,window=0"},
    {"knorm(budget=40,interval=24)+int4"},
    {"h2o(budget=33,interval=19,decay=0.5)+int4,window=20"},
    {"buzz(T=50,weights=true)+int4,window=20"},
    {"uniform(budget=40)+int4"},
    {"balancekv(b=16,heavy=20,heavy_interval=14)+int4,window=20"},
    {"balancekv(b=32,heavy=0)+int4,window=20"},
    {"uniform(rate=0.3)+int4", 0, false},
    {"uniform(rate=0.4,heavy=20,heavy_interval=50)+int4,window=20"},
    {"exact+ladder(rows=64,old=int4),window=20,sink=0", 0, true, kOfInt8},
    {"exact+int4,window=20,sink=0", 90, false},
    {"exact,window=9", 50, false},
    {"exact+ladder(rows=64,old=int4),window=21", 150, false, kOfInt8},
    {"exact+ladder(rows=64,old=int4),window=20", 90, false, kOfInt8},
    {"snapkv(budget=50,interval=16),window=9", 50, false},
    {"adakv(budget=60,by=knorm)+int4,window=20", 50, false},
    {"knorm(budget=40,interval=24);heads=0:exact"},
    {"exact;heads=1:express(heavy=0,s=32),window=20"},
    {"uniform(rate=0.3);heads=0:streaming_llm(window=60)"},
};

/// A cut is another each time but for its seed, which a failure names; PITH_CUTS of them are tried.
int cuts() {
  const char* asked = std::getenv("PITH_CUTS");
  return asked ? std::atoi(asked) : emulated() ? 1 : 3;
}

class CudaCuts : public testing::TestWithParam<Case> {
 protected:
  void try_cut(uint32_t seed);
};

void CudaCuts::try_cut(uint32_t seed) {
  SCOPED_TRACE(seed);
  const Case& c = GetParam();
  std::mt19937 random(seed);
  const auto draw = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  const bool turned = std::strstr(c.policy, "rope=cache"), slides = c.slides > 0;
  Pair pair(c.policy, 64, DType::kF16,
            slides ? std::vector{int64_t{0}, c.slides} : std::vector<int64_t>());
  pair.draw_codes();
  if (!turned && draw(2) == 0) {
    const int first = 8 + draw(82);
    pair.protect({{first, first + 1 + draw(39)}, {170, 171 + draw(9)}});
  }
  pair.watch_rounding();
  const int loaded = draw(4), cloned = draw(4);
  for (int pass = 0; pass < 4; ++pass) {
    // Hidden codes are given back 256 at a time.
    const int tokens = draw(slides ? 160 : 60);
    if (pass == loaded) pair.load_saved();
    if (draw(3) > 0) pair.run_chunk(static_cast<size_t>(tokens) + 1);
    for (int t = 0; t < tokens / 2; ++t) pair.run_token();
    if (pass == cloned) pair.use_clone();
    if (draw(4) == 0) pair.end_prefill();
  }
  pair.end_prefill();
  EXPECT_TRUE(pair.saved_is_same());
  // Of the rows that can be seen, but where two scores are nearly the same: there rounding changes
  // the choice on the CPU too.
  if (c.alike || slides) {
    EXPECT_GE(pair.same_rows(), std::min(0.97, pair.least_same_rows()));
  }
  if (!turned) {
    EXPECT_LT(pair.oracle_error(), 3 * c.bound);
  }
  EXPECT_LT(pair.worst(), c.bound);
  const Ledger cpu = pair.cpu_ledger(), gpu = pair.gpu_ledger();
  if (c.alike) {
    EXPECT_EQ(cpu.rows_kept, gpu.rows_kept);
  }
  EXPECT_EQ(cpu.tokens, gpu.tokens);
  EXPECT_LE(gpu.total_bytes(), pair.counted());
  EXPECT_LE(gpu.total_bytes(), pair.estimated());
}

TEST_P(CudaCuts, HoldWhatTheCpuHoldsAndGoOnWhereTheyWereSaved) {
  PITH_NEEDS_GPU();
  std::random_device seeds;
  for (int i = 0; i < cuts(); ++i) try_cut(seeds());
}

INSTANTIATE_TEST_SUITE_P(Policies, CudaCuts, testing::ValuesIn(kCases), [](const auto& test) {
  std::string name = test.param.policy;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

// Rows that share something leave the window in groups: a token brings several selections, each of
// the rows that the one before left.
TEST(CudaCuts, SelectionsOfOneTokenFollowEachOther) {
  PITH_NEEDS_GPU();
  for (const char* policy : {"knorm(budget=60)+kvquant(calibrate=32),window=16",
                             "keydiff(budget=60)+kvquant(calibrate=32),window=16"}) {
    SCOPED_TRACE(policy);
    Pair pair(policy, 64, DType::kF16);
    pair.run_chunk(100);
    pair.end_prefill();
    for (int t = 0; t < 100; ++t) pair.run_token();
    EXPECT_GE(pair.same_rows(), 0.97);
  }
}

}  // namespace
}  // namespace pith::cuda
