#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "core/copied.h"
#include "core/copy_on_write.h"
#include "core/dtype.h"
#include "core/memory.h"
#include "core/philox.h"
#include "core/thread_pool.h"
#include "pith/error.h"

namespace pith {
namespace {

TEST(Philox, MatchesThePublishedVectors) {
  // Random123's known-answer tests for philox4x32-10.
  EXPECT_EQ(philox4x32({{0, 0, 0, 0}}, 0, 0),
            (PhiloxWords{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  EXPECT_EQ(philox4x32({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u),
            (PhiloxWords{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  EXPECT_EQ(philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
            (PhiloxWords{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST(Philox, EveryPartOfTheKeyMatters) {
  const auto base = Philox(1, 2, 3).words(4, 5);
  EXPECT_NE(base, Philox(2, 2, 3).words(4, 5));
  EXPECT_NE(base, Philox(1, 3, 3).words(4, 5));
  EXPECT_NE(base, Philox(1, 2, 4).words(4, 5));
  EXPECT_NE(base, Philox(1, 2, 3).words(5, 5));
  EXPECT_NE(base, Philox(1, 2, 3).words(4, 6));
  EXPECT_NE(base, Philox(1, 2, 3).words((uint64_t{1} << 32) + 4, 5));
}

TEST(Philox, UniformHasTheRightMeanAndVariance) {
  const Philox random(7, 0, 0);
  constexpr int kDraws = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.uniform(i);
    sum += u;
    squares += u * u;
  }
  const double mean = sum / kDraws;
  EXPECT_NEAR(mean, 0.5, 4 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws - mean * mean, 1.0 / 12, 0.001);
}

TEST(DType, F16RoundTripsEveryPattern) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float x = f16_to_f32(static_cast<uint16_t>(h));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(x))));
    } else {
      EXPECT_EQ(f32_to_f16(x), h);
    }
  }
}

TEST(DType, RoundsToNearestEven) {
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f), 0x3C00);      // tie: stays even
  EXPECT_EQ(f32_to_f16(1.0f + 3 * 0x1p-11f), 0x3C02);  // tie: goes up to even
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-8f), 0x3F80);
  EXPECT_EQ(f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3F82);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(NAN))));
}

TEST(DType, UnknownNameIsRefusedWithTheList) {
  EXPECT_EQ(parse_dtype("bf16"), DType::kBF16);
  try {
    parse_dtype("fp8");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(e.what(), "unknown dtype 'fp8'; supported: f32, f16, bf16");
  }
}

TEST(Buffer, KeepsBytesThroughGrowthAndShrinkingAndCountsThem) {
  MemoryCounter counter;
  {
    Array<uint32_t> a(counter, MemoryKind::kPayload);
    for (uint32_t i = 0; i < 1000000; ++i) a.push_back(i);
    EXPECT_EQ(counter.bytes(MemoryKind::kPayload), a.capacity_bytes());
    EXPECT_LE(a.capacity_bytes(), size_t{4000000} * 9 / 8 + 8192);
    for (uint32_t i = 0; i < 1000000; i += 999) ASSERT_EQ(a[i], i);
    for (size_t n : {999999, 70000, 16384, 16383, 100, 3, 0}) {
      a.resize(n);
      a.shrink_to_fit();
      for (uint32_t i = 0; i < n; i += 7) ASSERT_EQ(a[i], i);
      EXPECT_LE(a.capacity_bytes(), n * 4 + 4096);
      EXPECT_EQ(counter.total(), a.capacity_bytes());
    }
  }
  EXPECT_EQ(counter.total(), 0u);
}

TEST(Buffer, ScratchThatComesAndGoesIsNotMappedAnew) {
  MemoryCounter counter;
  constexpr size_t kBytes = size_t{512} << 10;
  const auto faults_of = [&](int times) {
    rusage before{}, after{};
    getrusage(RUSAGE_THREAD, &before);
    for (int i = 0; i < times; ++i) {
      Buffer scratch(counter, MemoryKind::kScratch);
      scratch.resize(kBytes);
      std::memset(scratch.data(), 1, kBytes);
    }
    getrusage(RUSAGE_THREAD, &after);
    return after.ru_minflt - before.ru_minflt;
  };
  faults_of(1);
  EXPECT_LT(faults_of(100), 128);  // the pages of one: mapped anew they are 12,800
  EXPECT_EQ(counter.total(), 0u);
}

// Objects that end after the mapping that a thread keeps may take memory and give it back.
TEST(Buffer, ObjectsOfAThreadMayEndInAnyOrder) {
  static MemoryCounter counter;
  static const auto use = [] {
    Buffer scratch(counter, MemoryKind::kScratch);
    scratch.resize(size_t{512} << 10);
    std::memset(scratch.data(), 1, scratch.size());
  };
  struct Late {
    ~Late() { use(), use(); }
  };
  std::thread([] {
    thread_local Late late;
    (void)&late;
    use();
  }).join();
  EXPECT_EQ(counter.total(), 0u);
}

TEST(Buffer, CopiesAreDeepAndFreshMemoryIsPoisoned) {
  MemoryCounter counter(0, /*poison=*/true);
  Array<float> a(counter, MemoryKind::kScratch);
  a.resize(100);
  for (float x : a) EXPECT_TRUE(std::isnan(x));
  a[0] = 1;
  Array<float> b = a;
  b[0] = 2;
  EXPECT_EQ(a[0], 1);
  EXPECT_EQ(counter.total(), a.capacity_bytes() + b.capacity_bytes());
}

TEST(Buffer, CopiesThatGoOnKeepTheirRoom) {
  MemoryCounter from, to;
  Array<float> a(from, MemoryKind::kPayload);
  a.reserve(1000);
  a.resize(100);
  {
    const MemoryCounter::CopiesTo ours(from, to, true);
    Array<float> b = a;
    b[0] = 2;
    EXPECT_EQ(b.capacity_bytes(), a.capacity_bytes());
    EXPECT_EQ(to.total(), a.capacity_bytes());
  }
  const MemoryCounter::CopiesTo ours(from, to);
  Array<float> c = a;
  c[0] = 3;
  EXPECT_NE(a[0], c[0]);
  EXPECT_LT(c.capacity_bytes(), 500u);
  EXPECT_EQ(to.total(), c.capacity_bytes());
}

struct HoldsBuffers {
  Array<float> numbers;
  Copied<std::vector<int>> more;
};
static_assert(!std::is_nothrow_copy_assignable_v<HoldsBuffers>);
static_assert(!std::is_nothrow_copy_assignable_v<Copied<std::vector<int>>>);
static_assert(std::is_nothrow_move_assignable_v<HoldsBuffers>);

TEST(Buffer, AnAssignmentThatIsRefusedChangesNothingAndUnwinds) {
  MemoryCounter limited(1024);
  const auto assign = [](HoldsBuffers& to, const HoldsBuffers& from, MemoryCounter& counter) {
    const MemoryCounter::CopiesTo copies(counter, counter);
    to = from;
  };
  HoldsBuffers small, large;
  small.numbers = Array<float>(limited, MemoryKind::kScratch);
  small.numbers.reserve(16);
  small.numbers.push_back(1);
  large.numbers = Array<float>(limited, MemoryKind::kScratch);
  large.numbers.reserve(200);
  large.numbers.resize(200);
  const size_t before = limited.total();
  EXPECT_THROW(assign(small, large, limited), Error);
  EXPECT_THROW(assign(small, large, limited), Error) << "what the first locked is locked no more";
  EXPECT_EQ(limited.total(), before);
  ASSERT_EQ(small.numbers.size(), 1u);
  EXPECT_EQ(small.numbers[0], 1);
}

TEST(CopyOnWrite, IsSharedUntilOneWrites) {
  CopyOnWrite<std::vector<int>> a(std::make_unique<std::vector<int>>(3, 1));
  EXPECT_FALSE(a.shared());
  const int* place = a->data();
  CopyOnWrite<std::vector<int>> b = a, c = b;
  EXPECT_TRUE(a.shared());
  EXPECT_EQ(c->data(), place);
  b.own()[1] = 5;
  EXPECT_EQ(*a, std::vector({1, 1, 1}));
  EXPECT_EQ(*b, std::vector({1, 5, 1}));
  EXPECT_FALSE(b.shared());
  a = std::move(b);
  EXPECT_FALSE(c.shared());
  EXPECT_EQ(c.own().data(), place) << "the last one has what was there";
  EXPECT_EQ(a->at(1), 5);
}

// Copied, asked, written and dropped by many threads: ThreadSanitizer looks too.
TEST(CopyOnWrite, ManyThreadsGoTheirOwnWays) {
  const CopyOnWrite<std::vector<int>> base(std::make_unique<std::vector<int>>(1000, 1));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        CopyOnWrite<std::vector<int>> mine = base, other = mine;
        mine.own().assign(1000, t);
        wrong += other->at(999) != 1;
        other = mine;
        mine = base;
        other.own()[0] = -1;
        wrong += other->at(0) != -1 || other->at(1) != t || mine->at(0) != 1;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(MemoryCounter, RefusesWhatPassesTheLimitAndCountsNothingForIt) {
  MemoryCounter counter(1000);
  Array<uint8_t> a(counter, MemoryKind::kPayload);
  a.resize(640);
  try {
    a.resize(2000);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfMemory);
  }
  EXPECT_EQ(a.size(), 640u);
  EXPECT_EQ(counter.total(), 640u);
}

TEST(MemoryCounter, RoomSetAsideIsNobodyElses) {
  MemoryCounter all(1000);
  MemoryCounter other(all);
  const auto refused = [](auto&& f) {
    try {
      f();
    } catch (const Error& e) {
      return e.code() == ErrorCode::kOutOfMemory;
    }
    return false;
  };
  {
    MemoryCounter part(all);
    part.add(MemoryKind::kPayload, 100);
    part.set_floor(600);
    EXPECT_EQ(part.total(), 100u);
    EXPECT_EQ(part.held(), 600u);
    EXPECT_EQ(all.total(), 100u);
    EXPECT_EQ(all.held(), 600u);
    other.add(MemoryKind::kScratch, 400);
    EXPECT_TRUE(refused([&] { other.add(MemoryKind::kScratch, 1); }));
    EXPECT_TRUE(refused([&] { part.set_floor(601); }));
    part.add(MemoryKind::kPayload, 500);  // its own room
    EXPECT_EQ(all.held(), 1000u);
    EXPECT_TRUE(refused([&] { part.add(MemoryKind::kPayload, 1); }));
    other.sub(MemoryKind::kScratch, 400);
    part.add(MemoryKind::kPayload, 300);  // and beyond it
    EXPECT_EQ(all.held(), 900u);
    part.set_floor(0);
    EXPECT_EQ(all.held(), 900u);
    part.sub(MemoryKind::kPayload, 900);
    EXPECT_EQ(all.held(), 0u);
    part.set_floor(700);
    all.set_limit(500);
    part.add(MemoryKind::kPayload, 650);  // promised before the limit was lowered
    EXPECT_TRUE(refused([&] { other.add(MemoryKind::kScratch, 1); }));
    part.sub(MemoryKind::kPayload, 650);
    part.set_floor(300);
    other.add(MemoryKind::kScratch, 200);
  }
  {
    all.set_limit(1000);
    MemoryCounter from(all), to(all);
    from.set_floor(700);
    from.add(MemoryKind::kPayload, 100);
    EXPECT_TRUE(refused([&] { MemoryCounter::move_floor(from, to, 701); }));
    EXPECT_EQ(from.held() + to.held(), 700u);
    MemoryCounter::move_floor(from, to, 700);
    EXPECT_EQ(from.held(), 100u);
    EXPECT_EQ(to.held(), 700u);
    EXPECT_EQ(all.held(), 1000u);
    from.sub(MemoryKind::kPayload, 100);
  }
  EXPECT_EQ(all.held(), 200u) << "room goes with the part that it was set aside for";
  other.sub(MemoryKind::kScratch, 200);
  MemoryCounter limited(all, 100);
  EXPECT_TRUE(refused([&] { limited.set_floor(101); }));
  EXPECT_EQ(all.held(), 0u);
}

TEST(ThreadPool, RunsEachIndexOnceForAnyTeam) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (size_t n : {0, 1, 2, 3, 64, 1000}) {
      std::vector<std::atomic<int>> hits(n);
      pool.parallel_for(n, [&](size_t i, int worker) {
        ASSERT_LT(worker, threads);
        ++hits[i];
      });
      for (auto& h : hits) EXPECT_EQ(h, 1);
    }
  }
}

// Workers come late to loops that are over: each index is run once all the same, in its own loop.
TEST(ThreadPool, ShortLoopsOfALargeTeamStayApart) {
  ThreadPool pool(9);
  std::atomic<int> runs = 0;
  for (int loop = 1; loop <= 5000; ++loop) {
    std::array<std::atomic<int>, 3> seen{};
    pool.parallel_for(seen.size(), [&](size_t i, int) {
      seen[i] = loop;
      ++runs;
    });
    for (const auto& value : seen) ASSERT_EQ(value, loop);
  }
  EXPECT_EQ(runs, 15000);
}

TEST(ThreadPool, RethrowsTheFirstErrorAndStaysUsable) {
  ThreadPool pool(2);
  for (int round = 0; round < 100; ++round) {
    EXPECT_THROW(pool.parallel_for(50,
                                   [](size_t i, int) {
                                     if (i == 20) throw Error(ErrorCode::kIo, "x");
                                   }),
                 Error);
    std::atomic<int> sum = 0;
    pool.parallel_for(100, [&](size_t i, int) { sum += static_cast<int>(i); });
    EXPECT_EQ(sum, 4950);
  }
}

}  // namespace
}  // namespace pith
