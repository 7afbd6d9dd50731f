// Which rows every selector holds, and when it selects: streams cut in several ways against files
// that say what was held where. They hold behaviour while code moves; a change that is meant writes
// them again (PITH_WRITE_PLANS=1) and says so. Scalar kernels: the files are the same on every
// machine.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cache/kv_cache.h"
#include "paths.h"

namespace pith {
namespace {

constexpr size_t kTokens = 700, kPrompt = 300;
constexpr size_t kStops[] = {40, 150, kPrompt, 301, 450, kTokens};

/// Random rows of one layer that need no library: the same on every machine.
struct Stream {
  explicit Stream(int layers) : shape{layers, 4, 2, 16, {}, kTokens} {
    uint64_t state = 20;
    const auto normal = [&] {  // near enough: the sum of four uniform numbers
      float sum = -2;
      for (int i = 0; i < 4; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sum += static_cast<float>(state >> 40) * 0x1p-24f;
      }
      return 2 * sum;
    };
    q.resize(kTokens * 4 * 16);
    k.resize(kTokens * 2 * 16);
    v.resize(k.size());
    for (float& x : q) x = normal();
    for (float& x : k) x = normal() + 0.3f;
    for (float& x : v) x = normal();
  }
  CacheShape shape;
  std::vector<float> q, k, v;  // [T, 4, 16], [T, 2, 16]
};

struct Hash {
  uint64_t value = 14695981039346656037u;
  void add(uint64_t x) {
    for (int byte = 0; byte < 8; ++byte, x >>= 8) value = (value ^ (x & 255)) * 1099511628211u;
  }
};

class Run {
 public:
  Run(const Stream& stream, const std::string& policy)
      : stream_(stream),
        rope_(16, 10000.0),
        cache_(context_, stream.shape, Policy::parse(policy), 3, &rope_) {}

  /// Tokens up to `last`, cut into pieces whose sizes `size` gives.
  template <class F>
  void step(size_t last, F&& size) {
    for (size_t n; at_ < last; at_ += n) {
      n = std::min<size_t>(size(), last - at_);
      std::vector<float> out(n * 4 * 16);
      for (int l = 0; l < stream_.shape.layers; ++l) {
        const size_t before = cache_.held(l, 0).body;
        cache_.step(l, out.data(), stream_.q.data() + at_ * 64, stream_.k.data() + at_ * 32,
                    stream_.v.data() + at_ * 32, n);
        if (cache_.held(l, 0).body < before) ++shrank_, when_.add(at_ * 8 + size_t(l));
      }
    }
    if (last == kPrompt) cache_.end_prefill();
  }
  /// Rows in sink, body and window of each head, and which.
  std::string line() const {
    std::ostringstream text;
    Hash which;
    for (int l = 0; l < stream_.shape.layers; ++l)
      for (int g = 0; g < 2; ++g) {
        const Occupancy o = cache_.held(l, g);
        text << (l + g ? " " : "") << o.sink << '/' << o.body << '/' << o.window;
        const HeadRows rows = cache_.rows(l, g);
        for (size_t i = 0; i < rows.positions.size(); ++i) {
          which.add(static_cast<uint64_t>(rows.positions[i]));
          // Weights to four digits: mathematical libraries differ in the last.
          which.add(static_cast<uint64_t>(std::lround(rows.log_weights[i] * 1e4f)));
          which.add(static_cast<uint64_t>(rows.roles[i]));
        }
      }
    text << ' ' << std::hex << which.value << std::dec << ' ' << shrank_ << ':' << std::hex
         << when_.value;
    return text.str();
  }

 private:
  const Stream& stream_;
  ThreadPool pool_{1};
  MemoryCounter memory_{0, /*poison=*/true};
  Context context_{pool_, memory_, kernels_for("scalar")};
  Rope rope_;
  KvCache cache_;
  size_t at_ = 0, shrank_ = 0;
  Hash when_;
};

/// One line a stop of the stream, for each way to cut it.
std::string plan_of(const Stream& stream, const std::string& policy) {
  std::string text;
  for (const char* cut : {"1", "7", "64", "all", "random"}) {
    Run run(stream, policy);
    uint64_t state = 9;
    const auto size = [&]() -> size_t {
      if (cut == std::string("random")) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return 1 + (state >> 33) % ((state >> 20) % 3 == 0 ? 90 : 3);
      }
      return cut == std::string("all") ? kTokens : std::stoul(cut);
    };
    for (size_t stop : kStops) {
      run.step(stop, size);
      text += std::string(cut) + " " + std::to_string(stop) + ": " + run.line() + "\n";
    }
  }
  return text;
}

/// One file per policy, in the order of the list.
struct Case {
  const char* file;
  const char* policy;
  int layers = 1;
};
const Case kCases[] = {
    {"exact", "exact"},
    {"exact-window", "exact,sink=3,window=17"},
    {"exact-int4", "exact+int4,sink=4,window=20"},
    {"exact-kivi", "exact+kivi,sink=4,window=20"},
    {"local", "local(window=50)"},
    {"streaming", "streaming_llm(window=60)"},
    {"streaming-cache", "streaming_llm(window=33,rope=cache)"},
    {"uniform-rate", "uniform(rate=0.3),sink=4,window=16"},
    {"uniform-rate-plain", "uniform(rate=0.5,weights=false),sink=0,window=0"},
    {"uniform-rate-kivi", "uniform(rate=0.3)+kivi,sink=4,window=16"},
    {"uniform-rate-csr", "uniform(rate=0.4)+csr(s=4),sink=4,window=16"},
    {"uniform-budget", "uniform(budget=60),sink=4,window=16"},
    {"uniform-budget-straight", "uniform(budget=90),sink=2,window=0"},
    {"uniform-budget-int4", "uniform(budget=60)+int4,sink=4,window=16"},
    {"uniform-budget-kivi", "uniform(budget=60)+kivi,sink=4,window=16"},
    {"uniform-budget-csr", "uniform(budget=60)+csr(s=4),sink=4,window=16"},
    {"express", "express(heavy=0,s=32),sink=4,window=16"},
    {"express-straight", "express(heavy=0,s=16),sink=0,window=0"},
    {"express-g0", "express(heavy=0,s=64,g=0),sink=4,window=16"},
    {"express-g2", "express(heavy=0,s=128,g=2,weight=0.5),sink=4,window=16"},
    {"express-int4", "express(heavy=0,s=32)+int4,sink=4,window=16"},
    {"express-kivi", "express(heavy=0,s=32)+kivi,sink=4,window=16"},
    {"balance-block", "balancekv(heavy=0,rate=0.25,b=16),sink=4,window=16"},
    {"balance-block-8", "balancekv(heavy=0,rate=0.125,b=32,walk=exact),sink=4,window=0"},
    {"balance-block-budget", "balancekv(heavy=0,budget=25%,b=8),sink=0,window=16"},
    {"balance-block-1", "balancekv(heavy=0,rate=1,b=8),sink=4,window=16"},
    {"balance-block-int4", "balancekv(heavy=0,rate=0.25,b=16)+int4,sink=4,window=16"},
    {"balance-block-kivi", "balancekv(heavy=0,rate=0.25,b=16)+kivi,sink=4,window=16"},
    {"balance-stream", "balancekv(mode=stream,rate=0.25,b=16),sink=4,window=16"},
    {"balance-stream-rows", "balancekv(mode=stream,rate=0.5,b=8,walk=rows,side=coin),window=16"},
    {"balance-stream-endless", "balancekv(mode=stream,rate=0.125,b=8,endless=true),window=16"},
    {"balance-stream-int8", "balancekv(mode=stream,rate=0.25,b=16)+int8,sink=4,window=16"},
    {"buzz", "buzz(T=60),sink=4,window=16"},
    {"buzz-default", "buzz,sink=4,window=16"},
    {"buzz-weights", "buzz(s=4,T=50,weights=true,logn=true),sink=4,window=16"},
    {"buzz-intervals", "buzz(s=3,T=40,localmax=false,swap=true),sink=0,window=0"},
    {"buzz-int4", "buzz(T=60)+int4,sink=4,window=16"},
    {"h2o", "h2o(budget=60,interval=20),window=16"},
    {"h2o-decay", "h2o(budget=40,interval=1,decay=0.5),window=16"},
    {"h2o-kivi", "h2o(budget=60,interval=20)+kivi,window=16"},
    {"h2o-int4", "h2o(budget=25%,interval=33)+int4,sink=2,window=16"},
    {"tova", "tova(budget=60,interval=20)"},
    {"tova-window", "tova(budget=40,interval=7),sink=4,window=16"},
    {"snapkv", "snapkv(budget=60,interval=20),window=16"},
    {"snapkv-votes", "snapkv(budget=60,interval=50,queries=8,kernel=3),sink=4,window=32"},
    {"snapkv-int4", "snapkv(budget=60,interval=20)+int4,window=16"},
    {"pyramidkv", "pyramidkv(budget=60,interval=20),window=8", 3},
    {"pyramidkv-beta", "pyramidkv(budget=80,interval=10,beta=4),window=8", 3},
    {"keydiff", "keydiff(budget=60,interval=20),sink=4,window=16"},
    {"keydiff-kivi", "keydiff(budget=60,interval=20)+kivi,sink=4,window=16"},
    {"knorm", "knorm(budget=60,interval=20),sink=4,window=16"},
    {"knorm-1", "knorm(budget=100,interval=1),sink=0,window=0"},
    {"knorm-csr", "knorm(budget=60,interval=20)+csr(s=4),sink=4,window=16"},
    {"knorm-qjl", "knorm(budget=60,interval=20)+k:qjl(paper=true)+v:kivi,sink=4,window=16"},
    {"expected", "expected_attention(budget=60,interval=20),sink=4,window=16"},
    {"expected-mean", "expected_attention(budget=60,covariance=false,vnorm=false),window=16"},
    {"heavy-rate",
     "uniform(rate=0.3,heavy=24,heavy_keys=0,heavy_interval=16,heavy_queries=8),window=16"},
    {"heavy-budget",
     "uniform(budget=32,heavy=24,heavy_keys=0,heavy_interval=10,heavy_queries=8),window=16"},
    {"heavy-express",
     "express(s=32,heavy=24,heavy_keys=0,heavy_interval=16,heavy_queries=8),window=16"},
    {"heavy-balance",
     "balancekv(b=16,heavy=24,heavy_keys=0,heavy_interval=33,heavy_queries=8),window=16"},
    {"heavy-express-int4", "express(s=32,heavy=10%,heavy_keys=0,heavy_interval=16)+int4,window=16"},
    {"heavy-both", "express(s=32,heavy=24,heavy_interval=16,heavy_queries=8),window=16"},
    {"heavy-keys", "balancekv(b=16,heavy=40,heavy_keys=1)+int4,window=16"},
    {"ladder", "exact+ladder,sink=4,window=16"},
    {"mixed-heads",
     "express(heavy=0,s=32),window=16;heads=0:knorm(budget=60,interval=20),sink=2,window=8"},
};

class Plans : public testing::TestWithParam<Case> {};

TEST_P(Plans, RowsAreHeldAsTheFileSays) {
  const Case& one = GetParam();
  const Stream stream(one.layers);
  const std::string text = std::string(one.policy) + "\n" + plan_of(stream, one.policy);
  const auto path = repo_dir() / "tests" / "data" / "plans" / (std::string(one.file) + ".txt");
  if (std::getenv("PITH_WRITE_PLANS")) {
    std::ofstream(path) << text;
    return;
  }
  std::stringstream file;
  file << std::ifstream(path).rdbuf();
  EXPECT_EQ(text, file.str());
}

INSTANTIATE_TEST_SUITE_P(Policies, Plans, testing::ValuesIn(kCases), [](const auto& test) {
  std::string name = test.param.file;
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace pith
