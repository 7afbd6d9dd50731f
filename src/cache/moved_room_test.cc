// Room of caches that were forked or restored: what they hold is not what the plain one holds (a
// copy has less room to grow, a restored one what it loads), and no pass takes more than was asked
// for either.

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "cache/test_counted.h"
#include "policy_forms.h"

namespace pith {
namespace {

using test::Counted;
using test::Moved;
using test::Rows;
using test::Shape;

std::vector<std::string> forms() {
  std::vector<std::string> all = test::registered_forms("keydiff(budget=96)");
  for (const char* more :
       {"exact+csr(online=32),window=16", "exact+csr(online=64,draw=kmeans,outliers=0.5)",
        "exact+csr(online=32,solver=omp),window=0", "h2o(budget=48,interval=40)+csr(online=32)",
        "balancekv(rate=0.5)+csr(online=32)", "exact+kvtc,window=16", "exact+kvquant,window=16",
        "snapkv(budget=40)+gear", "snapkv(budget=40)+kvtc", "keydiff(budget=48)+kvquant",
        "express(heavy=0,s=32)+int4,window=16", "buzz(T=64,s=8)",
        "exact+k:int4+v:ladder(rows=64,old=csr,new=int8)"})
    all.emplace_back(more);
  return all;
}

/// Steps of `n` tokens from `at` on, each layer given each; no more than was asked for.
void expect_room(Moved& m, const Shape& shape, const Rows& rows, size_t at, size_t n, bool ends) {
  const PassRoom room = m.cache->room(n, n, false);
  m.own->reset_peak(), m.whole->reset_peak();
  std::vector<float> out(n * shape.q_size());
  for (int l = 0; l < shape.layers; ++l)
    m.cache->step(l, out.data(), rows.q.data() + at * shape.q_size(),
                  rows.k.data() + at * shape.kv_size(), rows.v.data() + at * shape.kv_size(), n);
  if (ends) m.cache->end_prefill();
  ASSERT_LE(m.own->peak(), room.cache) << n << " tokens before " << at;
  ASSERT_LE(m.whole->peak(), room.total()) << n << " tokens before " << at;
}

TEST(MovedRoom, NoStepOfAForkOrARestoredCacheTakesMoreThanWasAskedFor) {
  constexpr size_t kTokens = 300;
  Shape shape;
  shape.layers = 8;  // what a layer keeps beyond its rows adds up
  shape.group = 3;
  const Rows rows(shape, kTokens, 3);
  size_t seed = 0;
  for (const std::string& form : forms()) {
    SCOPED_TRACE(form);
    Counted c(form, shape, 2);
    std::mt19937 random(static_cast<uint32_t>(++seed));
    std::deque<Moved> all;
    all.emplace_back(c.all, c.all, *c.empty, false);
    for (size_t at = 0; at < kTokens && !testing::Test::HasFailure();) {
      const size_t how = random() % 4;
      SCOPED_TRACE(how);
      Moved& now = all.back();
      if (how == 0) {  // restored
        const auto bytes = now.save(shape.layers);
        all.emplace_back(c.all, c.all, *c.empty, false);
        all.back().load(bytes, shape.layers);
      } else if (how < 3) {  // the fork goes on, and the first once more as well
        all.emplace_back(*now.own, c.all, *now.cache, how == 1);
        const size_t n = std::min(kTokens - at, 1 + random() % 40);
        expect_room(now, shape, rows, at, n, random() % 2 == 0);
      }
      const size_t n = std::min(kTokens - at, random() % 3 == 0 ? 1 + random() % 90 : 1);
      expect_room(all.back(), shape, rows, at, n, random() % 3 == 0);
      at += n;
      while (all.size() > 3) all.pop_front();
    }
  }
}

}  // namespace
}  // namespace pith
