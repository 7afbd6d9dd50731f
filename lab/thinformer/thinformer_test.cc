// Thinformer against softmax attention in double.

#include "thinformer/thinformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/kernels.h"
#include "pith/error.h"

namespace pith {
namespace {

struct Place {
  ThreadPool pool{1};
  MemoryCounter memory{0, /*poison=*/true};
  Context context{pool, memory, kernels_for()};
};

struct Problem {
  Problem(size_t queries, size_t rows, size_t query_heads, size_t kv_heads, size_t dim,
          float spread = 1)
      : q(queries * query_heads * dim), k(rows * kv_heads * dim), v(k.size()) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& x : q) x = normal(random) * spread;
    for (float& x : k) x = normal(random) * spread;
    for (float& x : v) x = normal(random) + 1;
    heads = {q.data(), k.data(), v.data(), queries, rows, query_heads, kv_heads, dim};
  }
  std::vector<float> q, k, v;
  UnmaskedHeads heads;
};

/// Attention of every query to the rows named (all if null).
std::vector<double> oracle(const UnmaskedHeads& in, const std::vector<uint32_t>* named = nullptr) {
  const size_t d = in.head_dim, group = in.query_heads / in.kv_heads;
  std::vector<uint32_t> rows;
  for (uint32_t i = 0; i < in.rows; ++i) rows.push_back(i);
  if (named) rows = *named;
  std::vector<double> out(in.queries * in.query_heads * d);
  for (size_t t = 0; t < in.queries; ++t)
    for (size_t h = 0; h < in.query_heads; ++h) {
      const size_t at = (t * in.query_heads + h) * d;
      double sum = 0;
      for (uint32_t j : rows) {
        const size_t row = (j * in.kv_heads + h / group) * d;
        double s = 0;
        for (size_t c = 0; c < d; ++c) s += double{in.q[at + c]} * in.k[row + c];
        const double p = std::exp(s / std::sqrt(static_cast<double>(d)));
        sum += p;
        for (size_t c = 0; c < d; ++c) out[at + c] += p * in.v[row + c];
      }
      for (size_t c = 0; c < d; ++c) out[at + c] /= sum;
    }
  return out;
}

template <class A, class B>
double relative_error(const A& got, const B& wanted) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    difference += (got[i] - wanted[i]) * (got[i] - wanted[i]);
    norm += double{wanted[i]} * wanted[i];
  }
  return std::sqrt(difference / norm);
}

std::vector<float> run(const Problem& p, const ThinformerRule& rule) {
  Place place;
  std::vector<float> out(p.q.size());
  thinformer_attention(place.context, out.data(), rule, p.heads);
  return out;
}

TEST(Thinformer, ExactWhereTheCoresetHoldsAll) {
  for (size_t rows : {1, 3, 63, 256}) {
    const Problem p(5, rows, 6, 2, 16);
    EXPECT_LT(relative_error(run(p, {.inflation = 4}), oracle(p.heads)), 1e-5) << rows;
  }
}

TEST(Thinformer, KeepsBetweenHalfAndAllOfTheRootTimesTwoToTheG) {
  Place place;
  for (size_t rows : {17, 64, 65, 100, 1000, 1024, 1025, 4096})
    for (uint32_t g : {0, 1, 2}) {
      const Problem p(1, rows, 1, 1, 16);
      const auto kept = thinformer_rows(place.context, {.inflation = g}, p.heads, 0);
      const double most = std::ldexp(std::sqrt(static_cast<double>(rows)), static_cast<int>(g));
      // Odd runs leave or drop a row: one a halving at most.
      EXPECT_LE(static_cast<double>(kept.size()), std::min<double>(rows, most + 8)) << rows;
      EXPECT_GE(static_cast<double>(kept.size()), most / 2 - 8) << rows;
      EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
      EXPECT_EQ(std::adjacent_find(kept.begin(), kept.end()), kept.end());
    }
}

TEST(Thinformer, EveryRowIsKeptEquallyOften) {
  constexpr size_t kRows = 69;
  constexpr int kSeeds = 3000;
  const Problem p(1, kRows, 1, 1, 16);
  Place place;
  std::vector<double> times(kRows);
  for (uint64_t seed = 0; seed < kSeeds; ++seed)
    for (uint32_t row : thinformer_rows(place.context, {.inflation = 2, .seed = seed}, p.heads, 0))
      ++times[row];
  // 69 rows, leaves of 17 or 18, J = 2: a quarter stays.
  for (double n : times) EXPECT_NEAR(n, kSeeds / 4.0, 4.5 * std::sqrt(kSeeds * 0.25 * 0.75));
}

TEST(Thinformer, ErrorFallsWithTheCoresetAndBeatsASampleOfAsManyRows) {
  const Problem p(20, 4096, 1, 1, 16, 0.5f);
  const auto exact = oracle(p.heads);
  Place place;
  std::vector<double> ours;
  double sampled = 0;
  for (uint32_t g : {0, 2}) {
    double sum = 0;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const ThinformerRule rule{.inflation = g, .seed = seed};
      sum += relative_error(run(p, rule), exact) / 4;
      if (g == 0) continue;
      std::vector<uint32_t> rows(p.heads.rows);
      for (uint32_t i = 0; i < rows.size(); ++i) rows[i] = i;
      std::mt19937 random(static_cast<uint32_t>(seed));
      std::shuffle(rows.begin(), rows.end(), random);
      rows.resize(thinformer_rows(place.context, rule, p.heads, 0).size());
      sampled += relative_error(oracle(p.heads, &rows), exact) / 4;
    }
    ours.push_back(sum);
  }
  EXPECT_LT(ours[1], ours[0] / 2);
  EXPECT_LT(ours[1], sampled / 1.3);
}

TEST(Thinformer, RefusesHeadsThatDoNotFit) {
  Problem p(1, 10, 4, 2, 16);
  p.heads.kv_heads = 3;
  EXPECT_THROW(run(p, {}), Error);
}

}  // namespace
}  // namespace pith
