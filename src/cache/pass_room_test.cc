// Room that is asked for before a pass: no step takes more, whatever the policy and however rows
// are cut into steps.

#include "cache/pass_room.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "cache/test_counted.h"
#include "policy_forms.h"

namespace pith {
namespace {

using test::Rows;
using test::Shape;

/// Every selector, every codec, and some of their other forms.
std::vector<std::string> forms() {
  std::vector<std::string> all = test::registered_forms("keydiff(budget=96)");
  for (const char* more :
       {"uniform(budget=96,heavy=32)+int4", "express(s=64,heavy=32)+turboquant,window=16",
        "balancekv(mode=stream,rate=0.5)", "balancekv(rate=0.5)+csr(online=32)",
        "exact+csr(online=64,draw=kmeans,outliers=0.5)", "snapkv(budget=96)+gear",
        "h2o(budget=48,interval=40)+csr(online=32),window=16",
        "streaming_llm(window=60,rope=cache)", "exact,dtype=f32;heads=1:knorm(budget=40)+kivi",
        "exact+k:int4+v:ladder(rows=64,old=csr,new=int8)"})
    all.emplace_back(more);
  return all;
}

class PassRoomOf : public testing::TestWithParam<int> {};

TEST_P(PassRoomOf, NoStepTakesMoreThanWasAskedFor) {
  Shape shape;
  shape.layers = 2;
  double loosest = 0, sum = 0;
  size_t cases = 0;
  for (const std::string& form : forms()) {
    test::Counted c(form, shape, GetParam());
    const auto& cache = c.cache;
    if (form.find("cache") == std::string::npos && cases % 2 == 0)
      cache->start_error_probe({.rows = 64, .every = 2}, 1);
    const Rows rows(shape, 700, 3);
    std::vector<float> out(300 * shape.q_size());
    std::mt19937 random(static_cast<uint32_t>(cases));
    for (size_t at = 0; at < 700;) {
      size_t n = random() % 3 == 0 ? 1 + random() % 300 : 1 + random() % 5;
      n = std::min(n, 700 - at);
      const size_t times = random() % 3 == 0 ? 1 : std::min<size_t>(8, (700 - at) / n);
      const PassRoom room = cache->room(n * times, n, false);
      c.own.reset_peak(), c.whole.reset_peak();
      for (size_t i = 0; i < times; ++i, at += n)
        for (int l = 0; l < shape.layers; ++l)
          cache->step(l, out.data(), rows.q.data() + at * shape.q_size(),
                      rows.k.data() + at * shape.kv_size(), rows.v.data() + at * shape.kv_size(),
                      n);
      if (random() % 2 == 0) cache->end_prefill();
      ASSERT_LE(c.own.peak(), room.cache) << form << ": " << n << " tokens before " << at;
      ASSERT_LE(c.whole.peak(), room.total()) << form << ": " << n << " tokens before " << at;
      const double ratio = static_cast<double>(room.total()) / static_cast<double>(c.whole.peak());
      loosest = std::max(loosest, ratio), sum += ratio, ++cases;
      if (std::getenv("PITH_SHOW_ESTIMATES"))
        std::printf("%-50s %4zu %4zu %9zu %9zu %9zu %9zu %.2f\n", form.c_str(), at, n, c.own.peak(),
                    room.cache, c.whole.peak(), room.total(), ratio);
    }
  }
  EXPECT_LE(sum / static_cast<double>(cases), 2.0);
  std::printf("the loosest is %.2f of what was taken, the mean %.2f\n", loosest,
              sum / static_cast<double>(cases));
}

INSTANTIATE_TEST_SUITE_P(Threads, PassRoomOf, testing::Values(1, 3));

}  // namespace
}  // namespace pith
