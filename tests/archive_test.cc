// Saved state: a cache that is saved, loaded into a new one and goes on gives the bits of one that
// was never interrupted, for every selector over every codec, and bytes that are not state are
// refused without harm.

#include "core/archive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <tuple>

#include "cache_harness.h"
#include "pith/error.h"

namespace pith {
namespace {

using test::Rows;
using test::Shape;

// Saved here: before the first row, within a group of 32, at its end, in the middle of a prompt.
constexpr size_t kSaved[] = {0, 1, 63, 64, 511, 513};
constexpr size_t kGoesOn = 500, kTokens = 513 + kGoesOn;
constexpr size_t kPromptEnds[] = {63, 513};
const std::vector<TokenRange> kProtected = {{0, 5}, {40, 71}, {200, 201}, {505, 530}};

Shape shape_of() {
  Shape s;
  s.group = 2;
  s.layers = 2;
  s.context = 1100;
  return s;
}

/// Layer 0 sees everything, layer 1 the last 90 rows.
class Kept {
 public:
  explicit Kept(const std::string& policy, bool probe = true)
      : context_{pool_, memory_, kernels_for()}, rope_(64, 10000.0) {
    const Shape s = shape_of();
    cache_ = std::make_unique<KvCache>(
        context_, CacheShape{s.layers, s.query_heads(), s.kv_heads, s.head_dim, {0, 90}, s.context},
        Policy::parse(policy), 7, &rope_);
    if (probe) cache_->start_error_probe({64, 3, 0}, 7);
  }
  void protect() { cache_->protect(kProtected); }

  /// Rows [first, last) in the cuts that `cut` makes; returns every answer.
  std::vector<float> run(const Rows& rows, size_t first, size_t last) {
    const Shape s = shape_of();
    std::vector<float> all;
    for (size_t t = first, n = 0; t < last; t += n) {
      n = cut(t);
      for (int l = 0; l < s.layers; ++l) {
        std::vector<float> out(n * s.q_size());
        cache_->step(l, out.data(), rows.q.data() + t * s.q_size(), rows.k.data() + t * s.kv_size(),
                     rows.v.data() + t * s.kv_size(), n);
        all.insert(all.end(), out.begin(), out.end());
      }
      if (std::ranges::count(kPromptEnds, t + n) > 0) cache_->end_prefill();
    }
    return all;
  }
  std::string save() {
    std::string bytes;
    Archive saved([&](std::span<const std::byte> more) {
      bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
    });
    Archive counted;
    for (Archive* a : {&saved, &counted}) {
      cache_->archive(*a);
      for (int l = 0; l < shape_of().layers; ++l) cache_->archive_layer(l, *a);
    }
    EXPECT_EQ(counted.bytes(), bytes.size());
    return bytes;
  }
  void load(const std::string& bytes) {
    Archive a({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "a test");
    cache_->archive(a);
    for (int l = 0; l < shape_of().layers; ++l) cache_->archive_layer(l, a);
    a.end();
  }
  KvCache& cache() { return *cache_; }
  MemoryCounter& memory() { return memory_; }

 private:
  /// Tokens of the pass at token t: prompts in pieces of up to 50, decoding in between.
  static size_t cut(size_t t) {
    const bool decodes = (t >= 64 && t < 100) || (t >= 513 && t < 600);
    size_t n = decodes ? 1 : 50;
    for (size_t end : {size_t{1}, size_t{63}, size_t{64}, size_t{511}, size_t{513}, kTokens})
      if (end > t) n = std::min(n, end - t);
    return n;
  }

  ThreadPool pool_{1};
  MemoryCounter memory_{0, /*poison=*/true};
  Context context_;
  Rope rope_;
  std::unique_ptr<KvCache> cache_;
};

size_t next_saved(size_t t) { return *std::ranges::upper_bound(kSaved, t); }

void expect_same_errors(const std::vector<AttentionError>& a,
                        const std::vector<AttentionError>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].steps, b[i].steps);
    EXPECT_EQ(a[i].estimate, b[i].estimate);
    EXPECT_EQ(a[i].low, b[i].low);
    EXPECT_EQ(a[i].high, b[i].high);
  }
}

void expect_goes_on(const std::string& policy, bool probe = true) {
  static const Rows rows(shape_of(), kTokens, 21);
  Kept whole(policy, probe);
  whole.protect();
  std::vector<float> answers;
  std::vector<size_t> ends;  // of the answers, by kSaved
  std::vector<std::string> files;
  for (size_t t = 0; t < kTokens;) {
    const bool saves = std::ranges::count(kSaved, t) > 0;
    if (saves) files.push_back(whole.save()), ends.push_back(answers.size());
    const size_t end = t < 513 ? next_saved(t) : kTokens;
    const auto more = whole.run(rows, t, end);
    answers.insert(answers.end(), more.begin(), more.end());
    t = end;
  }
  const std::string last = whole.save();
  for (size_t i = 0; i < files.size(); ++i) {
    Kept loaded(policy, probe);
    loaded.load(files[i]);
    ASSERT_EQ(loaded.save(), files[i]) << kSaved[i] << " tokens";
    ASSERT_EQ(loaded.cache().ledger().cache_bytes() + loaded.cache().ledger().slack,
              loaded.memory().bytes(MemoryKind::kPayload) +
                  loaded.memory().bytes(MemoryKind::kMetadata) +
                  loaded.memory().bytes(MemoryKind::kShared));
    const auto more = loaded.run(rows, kSaved[i], kTokens);
    ASSERT_EQ(more.size(), answers.size() - ends[i]);
    ASSERT_EQ(std::memcmp(more.data(), answers.data() + ends[i], more.size() * sizeof(float)), 0)
        << "another answer after " << kSaved[i] << " tokens";
    ASSERT_EQ(loaded.save(), last) << "another state after " << kSaved[i] << " tokens";
    expect_same_errors(loaded.cache().attention_errors(), whole.cache().attention_errors());
  }
}

// Selector, codec.
class Saved : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  std::string policy() const {
    const auto& [selector, codec] = GetParam();
    const SelectorRow& row = selector_row(selector);
    std::string text = selector;
    bool interval = false;
    for (const ParameterInfo& p : row.info.parameters) interval |= p.name == "interval";
    if (row.info.size_parameter == "rate")
      text += "(rate=0.25)";
    else if (!row.info.size_parameter.empty())
      text += "(" + row.info.size_parameter + "=64" + (interval ? ",interval=16)" : ")");
    text += "+" + codec + ",sink=2";
    return row.owns_window ? text : text + ",window=16";
  }
};

TEST_P(Saved, GoesOnBitForBit) { expect_goes_on(policy()); }

std::vector<std::tuple<std::string, std::string>> pairs() {
  std::vector<std::tuple<std::string, std::string>> all;
  for (const SelectorRow& s : selector_rows())
    for (const CodecRow& c : codec_rows()) all.emplace_back(s.info.name, c.info.name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Registry, Saved, testing::ValuesIn(pairs()), [](const auto& i) {
  return std::get<0>(i.param) + "_" + std::get<1>(i.param);
});

// Not in the list of pairs: forms of selectors and codecs with state of their own.
class SavedForm : public testing::TestWithParam<const char*> {};

TEST_P(SavedForm, GoesOnBitForBit) {
  const std::string policy = GetParam();
  expect_goes_on(policy, policy.find("rope=cache") == std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, SavedForm,
    testing::Values(
        "uniform(rate=0.3),window=16", "uniform(budget=40,heavy=24,heavy_interval=16)+int4",
        "express(s=32,heavy=24,heavy_interval=16)+kivi,window=8",
        "uniform(rate=0.3,heavy=24,heavy_interval=16)+int4",
        "balancekv(rate=0.25,b=16,heavy=24,heavy_interval=16)+int8,window=8",
        "balancekv(mode=stream,rate=0.25,b=16),window=8",
        "balancekv(mode=stream,rate=0.25,b=16,endless=true)+int4,window=8",
        "streaming_llm(window=60,rope=cache)", "h2o(budget=50,decay=0.5)+qjl(paper=true)",
        "adakv(budget=50,by=expected_attention)", "expected_attention(budget=50,covariance=false)",
        "exact+int4(hadamard=true,center=40)", "exact+turboquant(bits=3,center=40,pre_rope=true)",
        "express(s=32,heavy=24,heavy_interval=16)+kivi(center=16,pre_rope=true),window=8",
        "snapkv(budget=50)+int4(center=500,pre_rope=true)", "exact+kivi(bits=4,center=64)",
        "exact+qjl(paper=true,outliers=0)", "exact+qjl(paper=true,slack=0.1)",
        "exact+csr(s=4,online=48,collect=100,draw=kmeans)",
        "exact+csr(s=4,online=32,collect=200,outliers=0.5)",
        "exact+csr(s=4,online=48,collect=100,pair_bits=16)", "exact+gear(rank=0)", "exact+f32",
        "exact+k:kivi+v:int8,window=0,sink=0", "exact,window=0,sink=0", "exact+kivi,window=32",
        "exact+int4;layers=1:streaming_llm(window=40);heads=1:knorm(budget=30)+int8"));

// Untrusted bytes: loading refuses, or gives a cache that continues, whatever it answers.
class Hostile : public testing::TestWithParam<const char*> {
 protected:
  static constexpr size_t kDim = 16, kSeen = 101, kMore = 45;

  std::unique_ptr<KvCache> fresh() {
    return std::make_unique<KvCache>(context_, CacheShape{1, 1, 1, kDim, {}, 160},
                                     Policy::parse(GetParam()), 3, &rope_);
  }
  void step(KvCache& cache, size_t first, size_t last) {
    std::vector<float> out(kDim);
    for (size_t t = first; t < last; ++t) {
      const float* x = numbers_.data() + t * kDim;
      cache.step(0, out.data(), x, x + kDim, x + 2 * kDim, 1);
    }
  }
  std::string saved() {
    const auto cache = fresh();
    const TokenRange range{20, 30};
    cache->protect({&range, 1});
    step(*cache, 0, 60);
    cache->end_prefill();
    step(*cache, 60, kSeen);
    std::string bytes;
    Archive a([&](std::span<const std::byte> more) {
      bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
    });
    cache->archive(a);
    cache->archive_layer(0, a);
    return bytes;
  }
  /// True if the bytes were taken.
  bool take(const std::string& bytes) {
    const auto cache = fresh();
    try {
      // A copy of its own, so that a sanitizer sees what is read past its end.
      const std::vector<char> own(bytes.begin(), bytes.end());
      Archive a({reinterpret_cast<const std::byte*>(own.data()), own.size()}, "a test");
      cache->archive(a);
      cache->archive_layer(0, a);
      a.end();
    } catch (const Error& e) {
      EXPECT_TRUE(e.code() == ErrorCode::kCorrupt || e.code() == ErrorCode::kInvalidArgument)
          << e.what();
      return false;
    }
    const size_t tokens = cache->tokens(0);
    try {
      step(*cache, tokens, std::min<size_t>(tokens + kMore, 160));
      cache->end_prefill();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kNonFinite) << e.what();
    }
    EXPECT_LE(cache->rows(0, 0).positions.size(), 3u * 160);
    return true;
  }

  ThreadPool pool_{1};
  MemoryCounter memory_{size_t{64} << 20, /*poison=*/true};
  Context context_{pool_, memory_, kernels_for()};
  Rope rope_{kDim, 10000.0};
  std::vector<float> numbers_ = [] {
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    std::vector<float> x((160 + 2) * kDim);
    for (float& y : x) y = normal(random);
    return x;
  }();
};

TEST_P(Hostile, EveryByteFlipped) {
  const std::string good = saved();
  ASSERT_TRUE(take(good));
  size_t refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (i % 3 == 0 ? 0x80 : i % 3 == 1 ? 0xff : 0x01));
    refused += !take(bad);
  }
  EXPECT_GT(refused, 0u);
}

TEST_P(Hostile, EveryTruncationIsRefused) {
  const std::string good = saved();
  for (size_t i = 0; i < good.size(); ++i) ASSERT_FALSE(take(good.substr(0, i))) << i;
  EXPECT_FALSE(take(good + '\0'));
}

TEST_P(Hostile, EveryCountMadeLarge) {
  const std::string good = saved();
  constexpr uint64_t kCounts[] = {uint64_t{1} << 29, 0xffffffff, UINT64_MAX / 2, 3};
  for (size_t i = 0; i + 8 <= good.size(); ++i) {
    std::string bad = good;
    std::memcpy(bad.data() + i, kCounts + i % 4, sizeof(uint64_t));
    take(bad);
  }
  EXPECT_EQ(memory_.total(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, Hostile,
    testing::Values("exact+f32,window=8", "uniform(rate=0.5)+int4,window=8",
                    "uniform(budget=20,heavy=12,heavy_interval=8)+kivi,window=8",
                    "express(heavy=0,s=16)+kivi(bits=4),window=8", "buzz(T=24)+int8,window=8",
                    "balancekv(heavy=0,rate=0.25,b=8)+qjl(paper=true,outliers=4),window=8",
                    "balancekv(mode=stream,rate=0.5,b=8,endless=true)+f32,window=8",
                    "expected_attention(budget=24,interval=8)+turboquant,window=8",
                    "adakv(budget=24,by=h2o)+int4(hadamard=true,center=8),window=8",
                    "exact+kvquant(bits=3,calibrate=32),window=8", "exact+gear(rows=32),window=8",
                    "exact+kvtc(calibrate=16),window=8",
                    "exact+csr(s=2,online=16,collect=24,outliers=0.4),window=8",
                    "exact+csr(s=2,online=64,collect=200),window=8", "exact+ladder,window=8",
                    "exact+qjl(center=16),window=8", "exact+int4(center=16,pre_rope=true),window=8",
                    "express(heavy=0,s=16)+int8(center=90,pre_rope=true),window=8"));

}  // namespace
}  // namespace pith
