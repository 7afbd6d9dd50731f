// Policies as values: what is refused on either device and how that reads, needs neither a GPU nor
// a build that has one.

#include "policy/resolved.h"

#include <gtest/gtest.h>

#include "pith/error.h"
#include "policy/refusal.h"
#include "policy/support.h"

namespace pith {
namespace {

const CacheShape kShape{2, 4, 2, 64, {}, 1000, 12345};

CacheShape shape_of(int dim, const std::vector<int64_t>& sliding = {}) {
  return {2, 4, 2, dim, sliding, 1000, 12345};
}

/// Why the GPU refuses; empty if it does not.
std::string refusal(const CacheShape& shape, const std::string& policy) {
  try {
    ResolvedPolicy(Policy::parse(policy), shape, 0, Device::kCuda);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported) << policy;
    return e.what();
  }
  return "";
}

void expect_refused(const CacheShape& shape, const std::string& policy, const std::string& what) {
  const std::string why = refusal(shape, policy);
  for (const std::string& part : {what, std::string("on the GPU yet"), std::string("--device cpu")})
    EXPECT_NE(why.find(part), std::string::npos) << policy << ": '" << why << "' lacks " << part;
}

TEST(Refusals, SayWhatIsNotThere) {
  const std::pair<const char*, const char*> kCases[] = {
      {"exact,dtype=f32", "f32"},
      {"exact+k:f16+v:bf16", "different types"},
      {"exact+f16,dtype=bf16", "body is in another type"},
      {"exact;layers=1:exact+bf16", "one type"},
      {"exact;heads=1:exact+bf16", "one type"},
      {"exact+ladder(old=csr(rope=post))", "ladder(old=csr(rope=post))"},
      {"balancekv+ladder", "balancekv over"},
      {"exact+qjl(m=64)", "qjl(m=64)"},
      {"exact+qjl(center=100)", "center=100"},
      {"exact+qjl(paper=true,center=64)", "center"},
      {"exact+qjl(paper=true,outliers=9)", "outliers=9"},
      {"exact+qjl(paper=true,slack=0.05)", "slack=0.05"},
      {"exact+qjl(paper=true,unbias=true)", "unbias=true"},
      {"exact+qjl(paper=true,m=96)", "m=96"},
      {"exact+k:qjl(paper=true)+v:int8", "different codecs"},
      {"exact+k:bf16+v:int8", "dtype=bf16"},
      {"exact+k:f32+v:int8,dtype=f16", "different codecs"},
      {"exact+k:f16+v:csr", "different codecs"},
      {"exact+k:int8+v:csr", "different codecs"},
      {"exact+csr(s=40)", "s=40"},
      {"exact+csr(outliers=0.5)", "outliers"},
      {"exact+csr(online=600)", "online=600"},
      {"exact+turboquant(center=100)", "center=100"},
      {"exact+gear(center=32)", "center=32"},
      {"exact+ladder(new=int8(center=32,pre_rope=true),old=int4(center=32,pre_rope=true))",
       "keys after RoPE"},
      {"exact+gear(rows=512)", "rows=512"},
      {"exact+gear(outliers=9)", "outliers=9"},
      {"exact+gear(rank=9)", "rank=9"},
      {"exact+kvquant(calibrate=50)", "calibrate=50"},
      {"exact+kvquant(calibrate=288)", "calibrate=288"},
      {"exact+kvquant(outliers=9)", "outliers=9"},
      {"exact+kvtc(calibrate=4097)", "calibrate=4097"},
      {"snapkv(budget=96)+kvtc", "the first 256 rows"},
      {"exact+int8(center=33)", "center=33"},
      {"adakv(budget=100)+kivi", "adakv over kivi"},
      {"balancekv(mode=stream)", "one of softmax's two sums alone"},
      {"uniform(heavy=10)+qjl(paper=true)", "share nothing"},
      {"uniform(rate=0.5,heavy=10)+int8(center=32)", "share nothing"},
      {"uniform(rate=0.5,heavy=10)+kvquant", "keys after RoPE"},
      {"uniform+csr(rope=post)", "tables of first rows"},
      {"uniform+kvquant", "uniform over"},
      {"uniform+ladder", "uniform over"},
      {"express(s=64,heavy=10,heavy_interval=9)+qjl(paper=true)", "a multiple of 32"},
      {"express(s=64,heavy=10,heavy_interval=96)+kivi(center=64)", "a multiple of 64"},
      {"express(s=64,heavy=50,heavy_interval=64)+kvquant", "store of heavy rows"},
      {"h2o(budget=64)+qjl(paper=true,center=32)", "center"},
      {"uniform(budget=300,heavy=10,heavy_interval=20)+csr", "store of heavy rows"},
      {"snapkv(budget=96)+csr(rope=post)", "the first 256 rows"},
      {"snapkv(budget=96)+kvquant", "the first 128 rows"},
      {"exact+k:kivi+v:csr", "different codecs"}};
  for (const auto& [policy, what] : kCases) expect_refused(kShape, policy, what);
  expect_refused({2, 4, 2, 64, {}, 100000}, "express(heavy=0,s=32768)", "at most 16384");
  expect_refused(shape_of(80), "exact", "head_dim of 80");
  expect_refused(shape_of(256), "exact+qjl(paper=true)", "at head_dim 256");
  expect_refused(shape_of(256), "exact+csr", "head_dim is 64 or 128");
  expect_refused(shape_of(256), "exact+int8(center=256)", "0, 32, 64 or 128");
  expect_refused({2, 4, 2, 256, {}, 100000}, "express(heavy=0,s=16384)", "at most 8192");
  expect_refused(shape_of(256), "adakv(budget=100)+int4", "in codes at head_dim 64 and 128");
  expect_refused(shape_of(256), "uniform(rate=0.5)+int4", "in codes at head_dim 64 and 128");
  expect_refused(shape_of(64, {0, 128}), "snapkv(budget=64)", "slides over a window of 128");
  expect_refused(shape_of(64, {0, 128}), "snapkv(budget=130)", "slides over a window of 128");
  expect_refused(shape_of(64, {0, 128}), "pyramidkv(budget=500)", "slides over a window of 128");
  expect_refused(shape_of(64, {0, 128}), "uniform(budget=500)", "slides over a window of 128");
  expect_refused({2, 3, 3, 64, {}, 1000, 1}, "adakv(budget=100);heads=1:exact",
                 "others between them");
}

// A budget of all rows that a layer can see: nothing is selected there, but in other layers it is.
TEST(ResolvedPolicy, SelectorsThatLoseNothingInASlidingLayerAreExactThere) {
  for (const char* policy : {"snapkv(budget=128,interval=32)+int4", "h2o(budget=147)",
                             "adakv(budget=200)", "knorm(budget=128,interval=1)"}) {
    const ResolvedPolicy gpu(Policy::parse(policy), shape_of(64, {0, 128}), 0, Device::kCuda);
    EXPECT_FALSE(gpu.layer(0)[0].selector.needs.all()) << policy;
    EXPECT_TRUE(gpu.layer(1)[0].selector.needs.all()) << policy;
    EXPECT_EQ(gpu.layer(0)[0].selector.text, gpu.layer(1)[0].selector.text);
    const ResolvedPolicy cpu(Policy::parse(policy), shape_of(64, {0, 128}), 0, Device::kCpu);
    EXPECT_FALSE(cpu.layer(1)[0].selector.needs.all()) << policy;
  }
}

// Groups are dropped whole there: what stays takes no more than as many rows of a short text.
TEST(ResolvedPolicy, CodesOfASlidingLayerTakeWhatTheirRowsTake) {
  const CacheShape shape = shape_of(64, {0, 128});
  for (const CodecRow& codec : codec_rows()) {
    SCOPED_TRACE(codec.info.name);
    PolicyRule rule = pair_rule(selector_row("exact"), codec, 0);
    rule.window = 64;
    const CohortPolicy all = resolve_rule(rule, {shape, 0, {0}, 0, Device::kCpu}),
                       slides = resolve_rule(rule, {shape, 1, {0}, 0, Device::kCpu});
    Ledger few, most;
    slides.estimate(most, 900);
    all.estimate(few, most.rows_kept);
    EXPECT_EQ(most.rows_kept, few.rows_kept);
    EXPECT_LE(most.payload, few.payload + few.payload / 8);
  }
}

// With a budget of no fewer rows than `exact` has in a layer that slides a selector would hold rows
// that nobody can see, or sample those that fit.
TEST(ResolvedPolicy, SelectorsWithMoreRowsThanASlidingLayerNeedsAreExactThere) {
  const CacheShape shape = shape_of(64, {0, 128});
  for (const SelectorRow& row : selector_rows()) {
    if (row.owns_window) continue;
    for (const char* codec : {"f16", "int4"}) {
      SCOPED_TRACE(row.info.name + "+" + codec);
      PolicyRule rule = pair_rule(row, codec_row(codec), 900);
      rule.window = 64;
      PolicyRule all = pair_rule(selector_row("exact"), codec_row(codec), 0);
      all.window = 64;
      const auto place = [&](int layer) { return RulePlace{shape, layer, {0}, 0, Device::kCpu}; };
      EXPECT_EQ(resolve_rule(rule, place(0)).selector.needs.all(), row.info.name == "exact");
      const CohortPolicy slides = resolve_rule(rule, place(1)), exact = resolve_rule(all, place(1));
      EXPECT_EQ(slides.describe(), exact.describe());
      Ledger held, whole;
      slides.estimate(held, 1000), exact.estimate(whole, 1000);
      EXPECT_EQ(held.rows_kept, whole.rows_kept);
      EXPECT_EQ(held.total_bytes(), whole.total_bytes());
    }
  }
  // One policy has one name.
  const Policy wide = Policy::parse("snapkv(budget=900)");
  EXPECT_EQ(ResolvedPolicy(wide, shape, 0, Device::kCuda).describe(),
            ResolvedPolicy(wide, shape, 0, Device::kCpu).describe());
}

// Of every selector over every codec this and no more is refused on the GPU, and nothing on the
// CPU.
TEST(Refusals, OfPairsAreThese) {
  for (const SelectorRow& selector : selector_rows())
    for (const CodecRow& codec : codec_rows()) {
      const std::string name = selector.info.name, over = codec.info.name;
      SCOPED_TRACE(name + "+" + over);
      for (const int dim : {64, 80, 96, 128, 256})
        EXPECT_TRUE(why_not(selector, codec, Device::kCpu, dim).empty());
      const bool keeps_none = selector.owns_window;
      const bool refused =
          over == "f32" ||
          (name == "adakv" && (over == "kivi" || over == "qjl" || over == "kvquant" ||
                               over == "gear" || over == "csr" || over == "kvtc")) ||
          (over == "ladder" && name != "exact" && !keeps_none);
      for (const int dim : {64, 128, 256})
        EXPECT_EQ(!why_not(selector, codec, Device::kCuda, dim).empty(),
                  refused || (dim == 256 && !keeps_none &&
                              (over == "csr" || (name == "adakv" && !codec.dense))));
    }
}

TEST(Refusals, AreNoneWhereKernelsAre) {
  for (const char* policy : {"exact",
                             "exact,sink=4,window=9",
                             "exact+bf16",
                             "exact+k:int8+v:int4",
                             "exact+k:f16+v:int8",
                             "exact+k:bf16+v:int8,dtype=bf16",
                             "exact+k:qjl(paper=true)+v:kivi",
                             "exact+k:qjl+v:int8",
                             "exact+k:gear+v:qjl(residual=1)",
                             "express(heavy=0,s=64)+qjl",
                             "exact+k:kivi+v:qjl(paper=true)",
                             "exact+k:kvquant+v:gear",
                             "exact+k:kvtc(calibrate=33)+v:turboquant",
                             "exact+k:f16+v:kvtc",
                             "snapkv(budget=300)+kvtc",
                             "exact+ladder(old=int4)",
                             "exact+csr",
                             "uniform",
                             "uniform(rate=0.5)+qjl(paper=true)",
                             "uniform(heavy=10)",
                             "uniform(rate=0.5,heavy=10)+int8",
                             "uniform(budget=60)+gear",
                             "uniform(budget=300,heavy=200)+kvquant",
                             "express(heavy=0,s=64)+csr",
                             "express(s=64,heavy=500)+csr(rope=post)",
                             "express(s=64,heavy=200)+kvquant",
                             "express(s=64,heavy=32,heavy_interval=64)+qjl(paper=true)",
                             "balancekv(heavy=0)+kvquant",
                             "balancekv(heavy=0,rate=1)+qjl(paper=true)",
                             "balancekv(heavy=300)+csr(rope=post)",
                             "buzz(T=128)+kvquant",
                             "snapkv(budget=127)+kvquant",
                             "snapkv(budget=300)+csr",
                             "adakv(budget=64)",
                             "adakv(budget=64)+int4",
                             "adakv(budget=64)+k:turboquant+v:int8",
                             "streaming_llm(rope=cache)",
                             "local(window=9)+ladder",
                             "expected_attention(budget=64)+turboquant"})
    EXPECT_EQ(refusal(kShape, policy), "");
  EXPECT_EQ(refusal(kShape, "express(s=500)+turboquant(center=128)"), "");
  EXPECT_EQ(refusal(shape_of(256), "h2o(budget=64),dtype=bf16"), "");
  EXPECT_EQ(refusal(shape_of(256), "express(s=500)+k:qjl+v:gear"), "");
  EXPECT_EQ(refusal(shape_of(256), "express(s=500)+k:kvtc+v:int8"), "");
  EXPECT_EQ(refusal(shape_of(256, {100, 0}), "streaming_llm"), "");
  EXPECT_EQ(refusal(shape_of(64, {100, 0}), "exact+kivi"), "");
  EXPECT_EQ(refusal(kShape, "buzz(T=96,by_key=true)+int4"), "");
  EXPECT_EQ(refusal(kShape, "balancekv(flush=true,decode=exact)"), "");
  // A window as long as the context hides nothing.
  EXPECT_EQ(refusal(shape_of(64, {1000, 0}), "snapkv(budget=64)"), "");
}

// A refusal has the request, both lists, the difference, and a policy that works.
TEST(Refusals, NameTheNearestPolicyThatWorks) {
  const std::pair<const char*, const char*> kCases[] = {
      {"exact+gear(rank=9)", "'exact+gear'"},
      {"exact+k:qjl(paper=true)+v:int8", "'exact+k:qjl+v:int8'"},
      {"snapkv(budget=96)+kvquant", "'snapkv(budget=96)+"},
      {"uniform(rate=0.5,heavy=10)+qjl(paper=true)", "'uniform(rate=0.5)+qjl(paper=true)'"},
      {"express(s=64,heavy=50,heavy_interval=64)+kvquant", "+kvquant'"},
      {"balancekv(mode=stream)", "'balancekv'"},
      {"exact,dtype=f32", "'exact'"},
      {"adakv(budget=100)+kivi", "'adakv(budget=100)+"},
      {"snapkv(budget=96)+int4,prompt=once", "is 'snapkv(budget=96)+int4,prompt=exact'"},
      {"exact+gear(rank=9),prompt=exact", "is 'exact+gear,prompt=exact'"},
      {"snapkv(budget=96)+int4,prompt=once", "prompt=once is not there"},
      {"h2o(budget=96)+ladder", "'h2o(budget=96)+"}};
  for (const auto& [policy, nearest] : kCases) {
    const std::string why = refusal(kShape, policy);
    EXPECT_NE(why.find(std::string("The nearest that works is ")), std::string::npos) << why;
    EXPECT_NE(why.find(nearest), std::string::npos) << why;
  }
  EXPECT_NE(refusal(kShape, "snapkv(budget=96)+kvquant").find("attention mass"), std::string::npos);
  EXPECT_NE(refusal(kShape, "snapkv(budget=96)+kvquant").find("keys before RoPE"),
            std::string::npos);
  EXPECT_EQ(refusal(shape_of(80), "exact").find("nearest"), std::string::npos) << "none is";
}

TEST(Codecs, MeansBeforeRopeSayOfHowManyRows) {
  for (const char* name : {"int8", "int4", "kivi", "turboquant", "gear"}) {
    const CodecRow& row = codec_row(name);
    try {
      row.read({name, {{"pre_rope", "true"}}});
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(e.what()).find("(center=32,pre_rope=true)"), std::string::npos);
    }
    const MethodOptions both = row.read({name, {{"center", "32"}, {"pre_rope", "true"}}});
    EXPECT_TRUE(row.make(both, Side::kKeys)->pre_rope()) << name;
    EXPECT_FALSE(row.make(both, Side::kValues)->pre_rope()) << name;
  }
  EXPECT_TRUE(codec_row("qjl")
                  .make(codec_row("qjl").read({"qjl", {{"pre_rope", "true"}}}), Side::kKeys)
                  ->pre_rope());
}

// Every policy that is offered instead is one that is not refused.
TEST(Refusals, OfferNothingThatIsRefused) {
  for (const SelectorRow& selector : selector_rows())
    for (const CodecRow& codec : codec_rows())
      for (const int dim : {64, 256}) {
        const CacheShape shape = shape_of(dim, {100, 0});
        const PolicyRule rule =
            Policy::parse(selector.info.name + "+" + codec.info.name).rules.front();
        const auto other = nearest(rule, {shape, 0, {0, 1}, 0, Device::kCuda}, true);
        ASSERT_TRUE(other) << selector.info.name << "+" << codec.info.name;
        EXPECT_TRUE(
            compare(place_rule(*other, {shape, 0, {0, 1}, 0, Device::kCuda}).asked(true)).empty());
      }
}

TEST(ResolvedPolicy, ProtectsWhereRowsCanBeTold) {
  const auto check = [](const char* policy, Device device) {
    ResolvedPolicy(Policy::parse(policy), kShape, 0, device).check_protect();
  };
  for (const char* policy : {"exact+csr", "exact+kvquant", "streaming_llm(rope=cache)"}) {
    EXPECT_NO_THROW(check(policy, Device::kCpu));
    EXPECT_THROW(check(policy, Device::kCuda), Error);
  }
  for (const char* policy : {"exact+csr(rope=post)", "snapkv(budget=300)+kvquant", "exact+kivi"})
    EXPECT_NO_THROW(check(policy, Device::kCuda));
  // Sliding layers protect nothing.
  const ResolvedPolicy sliding(Policy::parse("exact+kvquant"), shape_of(64, {200, 200}), 0,
                               Device::kCuda);
  EXPECT_NO_THROW(sliding.check_protect());
}

// Rows leave the window as the device's stores take them.
TEST(ResolvedPolicy, SchedulesAreTheDevices) {
  const struct {
    const char* policy;
    size_t window, on_cpu, on_gpu;  // rows that leave together
  } kCases[] = {{"exact+int4,window=7", 7, 1, 32},
                {"exact+kivi,window=7", 7, 32, 32},
                {"exact+int8(center=64),window=7", 7, 32, 64},
                {"exact+csr,window=7", 7, 16, 32},
                {"snapkv(budget=64)+int4,window=7", 7, 1, 1},
                {"snapkv(budget=64)+int4(center=64),window=7", 7, 32, 64},
                {"express(heavy=0,s=64)+int4,window=7", 7, 1, 32},
                {"express(s=64,heavy=9)+int4,window=7", 7, 1, 1},
                {"uniform+int4,window=7", 7, 1, 32},
                {"balancekv+int4,window=7", 7, 1, 1},
                {"local(window=7)+int4", 7, 1, 1}};
  for (const auto& c : kCases)
    for (const Device device : {Device::kCpu, Device::kCuda}) {
      const ResolvedPolicy policy(Policy::parse(c.policy), kShape, 0, device);
      const ScheduleShape& schedule = policy.layer(0).front().schedule;
      EXPECT_EQ(schedule.window, c.window) << c.policy;
      EXPECT_EQ(schedule.block, device == Device::kCpu ? c.on_cpu : c.on_gpu) << c.policy;
    }
}

TEST(ResolvedPolicy, FirstRowsStayExactBeforeCodes) {
  const struct {
    const char* policy;
    size_t sink;
  } kCases[] = {{"exact", 0},
                {"exact+bf16,dtype=bf16", 0},
                {"exact+int4", 4},
                {"exact+int4,sink=0", 0},
                {"exact+k:kivi+v:f16", 4},
                {"exact+csr,sink=9", 9},
                {"snapkv(budget=64)", 0},
                {"snapkv(budget=64)+int4", 0}};
  for (const auto& c : kCases)
    EXPECT_EQ(ResolvedPolicy(Policy::parse(c.policy), kShape, 0, Device::kCpu)
                  .layer(0)
                  .front()
                  .schedule.sink,
              c.sink)
        << c.policy;
}

TEST(ResolvedPolicy, SaysTheSameOfBothDevices) {
  for (const char* text :
       {"exact", "snapkv(budget=10%)+int4,sink=2;layers=1:exact;layers=0/heads=1:local(window=20)",
        "express(heavy=0,s=100)", "h2o(budget=256KiB)"}) {
    const ResolvedPolicy cpu(Policy::parse(text), kShape, 0, Device::kCpu);
    const ResolvedPolicy gpu(Policy::parse(text), kShape, 0, Device::kCuda);
    EXPECT_EQ(cpu.describe(), gpu.describe());
  }
  const ResolvedPolicy policy(Policy::parse("local(window=10%);layers=1/heads=1:exact+int8"),
                              kShape, 0, Device::kCpu);
  ProtectedRows rows;
  const std::vector<TokenRange> ranges{{10, 20}};
  rows.add(ranges, 0, 0);
  EXPECT_EQ(policy.describe(rows),
            "layers 0-0: local(window=100)+k:f16+v:f16,sink=0,window=100 [protected 10:20]\n"
            "layers 1-1: heads 0: local(window=100)+k:f16+v:f16,sink=0,window=100 [protected "
            "10:20] | heads 1: exact+k:int8+v:int8,sink=4,window=128 [protected 10:20]");
}

// A form that a text of 8,000 tokens can have is refused for a sample of 2,040: its share of heavy
// rows is less than kvtc learns from. tune leaves it out for that (tools/eval/tune.cc).
TEST(Refusals, SharesOfShortContextsAreTooFewRowsToLearnFrom) {
  const char* const policy =
      "express(heavy=12.5%,heavy_keys=0.15,s=6.4%)+k:kvtc(bits=2.25)+v:turboquant(bits=3),"
      "window=32";
  EXPECT_EQ(refusal({2, 4, 2, 64, {}, 8000}, policy), "");
  expect_refused({2, 4, 2, 64, {}, 2040}, policy, "first 256 rows behind the window");
}

TEST(ResolvedPolicy, RefusesContextsThatACodecIsNoGoodFor) {
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    const auto resolve = [&](const char* policy, size_t context) {
      ResolvedPolicy(Policy::parse(policy), {2, 4, 2, 64, {}, context}, 0, device);
    };
    EXPECT_NO_THROW(resolve("exact+csr(rope=post)", 4096));
    EXPECT_NO_THROW(resolve("exact+csr", 4097));
    EXPECT_THROW(resolve("exact+csr(rope=post)", 4097), Error);
    EXPECT_THROW(resolve("exact;layers=1:exact+csr(rope=post)", 4097), Error);
    if (device == Device::kCpu) {
      EXPECT_THROW(resolve("exact+ladder(old=csr(rope=post))", 4097), Error);
    }
  }
}

TEST(ResolvedPolicy, ChecksTheShape) {
  const auto resolve = [](const char* policy, const CacheShape& shape) {
    ResolvedPolicy(Policy::parse(policy), shape, 0, Device::kCpu);
  };
  EXPECT_THROW(resolve("exact;layers=2:exact", kShape), Error);
  EXPECT_THROW(resolve("exact;heads=-3:exact", kShape), Error);
  EXPECT_THROW(resolve("exact", {2, 3, 2, 64, {}, 10}), Error);
  EXPECT_THROW(resolve("exact", shape_of(72)), Error);
  EXPECT_THROW(resolve("local(window=9),window=3", kShape), Error);
  const ResolvedPolicy exact(Policy::parse("exact"), kShape, 0, Device::kCpu);
  EXPECT_GT(exact.estimate(size_t{1} << 40).total_bytes(), size_t{1} << 47);
  EXPECT_THROW(exact.estimate(size_t{1} << 60), Error) << "bytes would overflow";
}

}  // namespace
}  // namespace pith
