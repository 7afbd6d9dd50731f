// Saved state on the GPU: saved and loaded state continues bit for bit, for every selector over
// every codec and in files of sessions, and bytes that are no state do no harm.

#include <fmt/format.h>

#include <cstring>
#include <filesystem>

#include "pairs.h"
#include "pith/engine.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "pith/saved.h"
#include "random_model.h"
#include "session/test_company.h"
#include "session/test_saved.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

using test::with_policy;

/// Saved at odd lengths; tokens come in chunks and one by one, and 500 after the last save.
void expect_goes_on(Pair& pair) {
  const auto tokens = [&](int count) {
    for (int t = 0; t < count; ++t) pair.run_token();
  };
  pair.load_saved();
  pair.run_chunk(1);
  pair.load_saved();
  pair.run_chunk(62);
  pair.load_saved();
  tokens(37);
  pair.run_chunk(200);
  pair.end_prefill();
  pair.load_saved();
  tokens(11);
  pair.load_saved();
  tokens(40);
  pair.run_chunk(260);
  pair.end_prefill();
  tokens(200);
  EXPECT_TRUE(pair.saved_is_same());
}

TEST(CudaState, EveryPairGoesOnWhereItWasSaved) {
  PITH_NEEDS_GPU();
  for_pairs(100, false, [](const std::string& policy, const SelectorRow&, const CodecRow& codec) {
    if (left_out()) return;
    Pair pair(policy, 64, dtype_of(codec));
    pair.watch_saved_alone();
    if (protects(policy)) pair.protect({{20, 31}, {95, 102}, {390, 401}});
    expect_goes_on(pair);
  });
}

// Not in the list of pairs: forms with state of their own, sliding layers, heads of
// different rules, the error probe.
TEST(CudaState, EveryFormGoesOnWhereItWasSaved) {
  PITH_NEEDS_GPU();
  for (const char* policy : {"uniform(rate=0.3,heavy=24,heavy_interval=16)+int4",
                             "uniform(budget=40,heavy=24)+kivi",
                             "express(s=32,heavy=32,heavy_interval=32)+kivi(bits=4),window=8",
                             "balancekv(rate=0.25,b=16,heavy=24,heavy_interval=16)+int8,window=8",
                             "buzz(T=64,weights=true)+int4,window=8",
                             "h2o(budget=50,decay=0.5)+qjl(paper=true)",
                             "expected_attention(budget=50)+turboquant(bits=3)",
                             "exact+qjl(center=0),sink=0",
                             "knorm(budget=60)+k:qjl(center=64)+v:int4",
                             "knorm(budget=60)+kvquant(calibrate=32),window=16",
                             "knorm(budget=60)+k:kvtc(calibrate=32)+v:int8,window=16",
                             "exact+kvtc(bits=3,calibrate=40),window=16",
                             "snapkv(budget=60)+int4(hadamard=true,center=32,pre_rope=true)",
                             "exact+k:turboquant(center=90,pre_rope=true)+v:int8,sink=0",
                             "exact+int4(hadamard=true,center=64),sink=0",
                             "exact+k:int8+v:int4,sink=0",
                             "exact+k:f16+v:int8,sink=0",
                             "exact+csr(s=4,online=48,collect=100,draw=kmeans),window=16,sink=0",
                             "snapkv(budget=60)+csr(s=4,online=32),window=16",
                             "snapkv(budget=60)+gear,window=16",
                             "adakv(budget=60,by=h2o)+int4,window=16",
                             "adakv(budget=60)",
                             "exact;heads=1:express(heavy=0,s=32)+int4,window=20",
                             "uniform(rate=0.3);heads=0:knorm(budget=60)"}) {
    SCOPED_TRACE(policy);
    for (const std::vector<int64_t>& sliding : {std::vector<int64_t>(), {0, 90}}) {
      if (!is_there(policy, 64, sliding)) continue;
      if (left_out()) continue;
      Pair pair(policy, policy, 64, DType::kF16, sliding);
      pair.watch_saved_alone();
      pair.start_error_probe({64, 9});
      expect_goes_on(pair);
    }
  }
}

// Counts are believed by nobody, and codes name nothing that is not there: a kernel that read past
// its tables would end all that comes after it.
TEST(CudaState, HostileStateDoesNoHarm) {
  PITH_NEEDS_GPU();
  for (const char* policy : {"exact",
                             "knorm(budget=40)+kivi,window=8",
                             "snapkv(budget=40)+gear,window=8",
                             "snapkv(budget=40)+qjl(paper=true),window=8",
                             "snapkv(budget=40)+qjl(center=32),window=8",
                             "exact+csr(s=4,online=32),window=8,sink=0",
                             "knorm(budget=40)+kvquant(calibrate=32),window=8",
                             "knorm(budget=40)+kvtc(calibrate=32),window=8",
                             "knorm(budget=40)+int8(center=32,pre_rope=true),window=8",
                             "express(heavy=0,s=16)+int4,window=8",
                             "uniform(rate=0.5)+turboquant,window=8",
                             "exact+ladder,window=8,sink=0",
                             "exact+gear(rows=32),window=8,sink=0",
                             "local(window=37)",
                             "streaming_llm(window=37,rope=cache),sink=7",
                             "h2o(budget=30,decay=0.5)+int4,window=8",
                             "adakv(budget=40,interval=20)",
                             "adakv(budget=33,by=h2o,safeguard=0)+int4,window=9",
                             "buzz(T=50,weights=true)+int4,window=8",
                             "uniform(rate=0.3,heavy=20,heavy_interval=12)",
                             "uniform(budget=40,heavy=20,heavy_interval=12)",
                             "expected_attention(budget=40)",
                             "balancekv(b=16,heavy=20,heavy_interval=14)+int4,window=20",
                             "balancekv(b=32,heavy=0)",
                             "knorm(budget=40,interval=24);heads=0:exact"}) {
    SCOPED_TRACE(policy);
    Pair pair(policy, 64, DType::kF16);
    pair.watch_saved_alone();
    pair.run_chunk(150);
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
    for (size_t at = 0; at < good.size(); at += at < 160 ? 1 : good.size() / 160 + 1) {
      if (left_out()) continue;
      std::string bad = good;
      constexpr uint64_t kCounts[] = {uint64_t{1} << 29, 0xffffffff, UINT64_MAX / 2, 3};
      if (tried % 2 == 0 && at + 8 <= bad.size()) {
        std::memcpy(bad.data() + at, kCounts + tried / 2 % 4, sizeof(uint64_t));
      } else {
        bad[at] = static_cast<char>(bad[at] ^ 0xff);
      }
      take(bad);
    }
    EXPECT_GT(refused, tried / 16);
    for (size_t length = 0; length < good.size(); length += good.size() / 20 + 1)
      EXPECT_THROW(pair.load_anything(good.substr(0, length)), Error) << length;
    EXPECT_THROW(pair.load_anything(good + '\0'), Error);
    pair.load_saved();
    for (int t = 0; t < (emulated() ? 4 : 40); ++t) pair.run_token();
    EXPECT_TRUE(pair.saved_is_same());
  }
}

const char* const kPolicies[] = {"exact",
                                 "exact+int4,sink=4,window=32",
                                 "snapkv(budget=64)+int4,window=32",
                                 "express(heavy=0,s=64)+kivi(bits=4)",
                                 "exact+csr(s=4,online=32),window=32,sink=0",
                                 "h2o(budget=48)"};

std::vector<float> go_on(Session& session) {
  std::vector<float> all;
  const int vocab = session.model().config().vocab;
  const auto add = [&](std::span<const float> x) { all.insert(all.end(), x.begin(), x.end()); };
  for (const int32_t id : random_ids(30, vocab, 1)) add(session.decode(id));
  add(session.prefill(random_ids(60, vocab, 2)));
  for (const int32_t id : random_ids(10, vocab, 3)) add(session.decode(id));
  return all;
}

TEST(CudaState, SessionsGoOnInAnotherEngine) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  const testing_files::TemporaryFolder folder;
  const auto path = folder.path() / "s.pith";
  const int vocab = model->config().vocab;
  for (const size_t parallel : {1, 4}) {
    for (const char* policy : kPolicies) {
      for (const size_t count : {63, 1, 513}) {
        if (left_out()) continue;
        StandaloneOptions o = options_for(Device::kCuda, policy, 100);
        o.parallel = parallel;
        o.context = 700;
        if (protects(policy)) o.protect = {{10, 20}};
        o.error_probe = {64, 4, 0};
        SCOPED_TRACE(fmt::format("{}, {} tokens", policy, count));
        test::expect_goes_on_from_file(model, o, random_ids(count, vocab, 7), path, go_on);
      }
    }
  }
}

// Neither device takes the other's state for its own: it is refused by that name, and so is an
// engine whose products are others.
TEST(CudaState, FilesAreOfOneDeviceAndOneKindOfEngine) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  const testing_files::TemporaryFolder folder;
  const int vocab = model->config().vocab;
  const auto write = [&](const StandaloneOptions& o, const char* name) {
    Session session(model, o);
    session.append(random_ids(40, vocab, 7));
    session.save(folder.path() / name);
  };
  StandaloneOptions gpu = options_for(Device::kCuda, "keydiff(budget=30)+int4"), many = gpu;
  const StandaloneOptions cpu = options_for(Device::kCpu, "keydiff(budget=30)+int4");
  many.parallel = 8;
  gpu.f32_arithmetic = many.f32_arithmetic = true;
  write(gpu, "gpu.pith");
  write(cpu, "cpu.pith");
  const auto refused = [&](const char* name, const StandaloneOptions& o, const char* word) {
    testing_files::expect_error(ErrorCode::kInvalidArgument, {name, word},
                                [&] { Session::restore(model, folder.path() / name, o); });
  };
  refused("gpu.pith", cpu, "its device");
  refused("cpu.pith", gpu, "its device");
  refused("gpu.pith", many, "its isa");
}

// A fork and a session that was saved have an account of their own, and their bytes come back.
TEST(CudaState, AccountsAreASessionsOwn) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  const testing_files::TemporaryFolder folder;
  EngineOptions o;
  o.device = Device::kCuda;
  o.parallel = 4;
  const auto engine = std::make_shared<Engine>(model, o);
  for (const char* policy :
       {"exact", "keydiff(budget=48)+int4,window=16", "exact+qjl(paper=true),window=32,sink=0"}) {
    Session base(engine, with_policy(policy));
    base.append(random_ids(150, model->config().vocab, 3));
    base.save(folder.path() / "s.pith", {.replace = true});
    const size_t before = engine->bytes_in_use(), shared = base.ledger().shared;
    {
      const Session fork = base.fork(Copy::kNow);
      const Session restored =
          Session::restore(engine, folder.path() / "s.pith", with_policy(policy));
      EXPECT_EQ(fork.ledger().cache_bytes(), base.ledger().cache_bytes()) << policy;
      EXPECT_EQ(restored.ledger().cache_bytes(), base.ledger().cache_bytes()) << policy;
      const size_t own = fork.ledger().total_bytes() + restored.ledger().total_bytes();
      EXPECT_EQ(engine->bytes_in_use(), before + own - 2 * shared)
          << policy << ": tables are there once";
    }
    EXPECT_EQ(engine->bytes_in_use(), before) << policy;
  }
}

// Forks have their original's rows until one of them goes on: then it takes what its ledger says,
// and each ends where a session that was never forked does.
TEST(CudaState, ForksTakeNothingUntilTheyGoOn) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  EngineOptions o;
  o.device = Device::kCuda;
  o.parallel = 4;
  const auto engine = std::make_shared<Engine>(model, o);
  const auto ids = random_ids(150, model->config().vocab, 3);
  for (const char* policy : {"exact", "keydiff(budget=48)+int4,window=16", "express(s=32)"}) {
    SCOPED_TRACE(policy);
    Session whole(engine, with_policy(policy)), base(engine, with_policy(policy));
    whole.append(ids);
    base.append(ids);
    const auto logits = [](Session& s, int32_t token) {
      const auto l = s.decode(token);
      return std::vector<float>(l.begin(), l.end());
    };
    const size_t before = engine->bytes_in_use();
    std::vector<Session> forks;
    for (int i = 0; i < 50; ++i) forks.push_back(base.fork());
    EXPECT_EQ(forks[3].rows(1, 0).positions, base.rows(1, 0).positions);
    EXPECT_EQ(forks[3].ledger().total_bytes(), base.ledger().total_bytes());
    EXPECT_EQ(engine->bytes_in_use(), before);
    const std::vector<float> third = logits(whole, 3);
    EXPECT_EQ(logits(base, 3), third);
    EXPECT_GE(engine->bytes_in_use(), before + base.ledger().cache_bytes());
    EXPECT_EQ(logits(forks[7], 3), third);
    const std::vector<float> fourth = logits(whole, 4);
    EXPECT_EQ(logits(forks[7], 4), fourth);
    EXPECT_EQ(logits(base, 4), fourth);
    forks.erase(forks.begin() + 1, forks.end());
    const size_t last = engine->bytes_in_use();
    EXPECT_EQ(logits(forks[0], 3), third) << "the last one goes on where its rows are";
    EXPECT_LT(engine->bytes_in_use(), last + forks[0].ledger().cache_bytes());
  }
}

// Separate sessions share what no row shapes, under whatever selector.
TEST(CudaState, TablesAreThereOnce) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  EngineOptions o;
  o.device = Device::kCuda;
  const auto engine = std::make_shared<Engine>(model, o);
  const auto ids = random_ids(80, model->config().vocab, 3);
  for (const char* codec : {"qjl(paper=true)", "qjl", "gear", "turboquant(bits=3)"}) {
    const std::string policy = std::string("exact+") + codec + ",window=16";
    Session first(engine, with_policy(policy));
    const size_t tables = first.ledger().shared, one = engine->bytes_in_use();
    Session second(engine, with_policy(policy));
    EXPECT_EQ(second.ledger().shared, tables) << codec;
    EXPECT_EQ(engine->bytes_in_use(), one + second.ledger().total_bytes() - tables) << codec;
    SessionOptions seeded = with_policy(policy);
    seeded.seed = 9;
    const Session third(engine, seeded);
    if (tables > 0) {
      EXPECT_EQ(engine->bytes_in_use(),
                one + second.ledger().total_bytes() - tables + third.ledger().total_bytes())
          << codec;
    }
    const auto a = first.prefill(ids);
    const std::vector<float> said(a.begin(), a.end());
    const auto b = second.prefill(ids);
    EXPECT_EQ(said, std::vector<float>(b.begin(), b.end())) << codec;
  }
}

}  // namespace
}  // namespace pith::cuda
