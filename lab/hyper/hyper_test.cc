// HyperAttention against causal softmax attention in double.

#include "hyper/hyper.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/kernels.h"
#include "pith/error.h"

namespace pith {
namespace {

struct Problem {
  Problem(size_t tokens, size_t query_heads, size_t kv_heads, size_t dim, uint32_t seed)
      : q(tokens * query_heads * dim), k(tokens * kv_heads * dim), v(k.size()) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::vector<float>* x : {&q, &k, &v})
      for (float& y : *x) y = normal(random);
    heads = {q.data(), k.data(), v.data(), tokens, query_heads, kv_heads, dim};
  }
  std::vector<float> q, k, v;
  CausalHeads heads;
};

std::vector<double> oracle(const CausalHeads& in) {
  const size_t d = in.head_dim, group = in.query_heads / in.kv_heads;
  std::vector<double> out(in.tokens * in.query_heads * d);
  for (size_t t = 0; t < in.tokens; ++t)
    for (size_t h = 0; h < in.query_heads; ++h) {
      const float* q = in.q + (t * in.query_heads + h) * d;
      std::vector<double> p(t + 1);
      double top = -INFINITY, sum = 0;
      for (size_t j = 0; j <= t; ++j) {
        const float* k = in.k + (j * in.kv_heads + h / group) * d;
        for (size_t c = 0; c < d; ++c) p[j] += double{q[c]} * k[c];
        p[j] /= std::sqrt(static_cast<double>(d));
        top = std::max(top, p[j]);
      }
      for (double& x : p) sum += x = std::exp(x - top);
      for (size_t j = 0; j <= t; ++j)
        for (size_t c = 0; c < d; ++c)
          out[(t * in.query_heads + h) * d + c] +=
              p[j] / sum * in.v[(j * in.kv_heads + h / group) * d + c];
    }
  return out;
}

std::vector<float> run(const CausalHeads& heads, const HyperRule& rule, int threads = 1) {
  ThreadPool pool(threads);
  MemoryCounter memory(0, /*poison=*/true);
  const Context context{pool, memory, kernels_for()};
  std::vector<float> out(heads.tokens * heads.query_heads * heads.head_dim);
  hyper_attention(context, out.data(), rule, heads);
  return out;
}

double relative_error(const std::vector<float>& got, const std::vector<double>& wanted) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    difference += (got[i] - wanted[i]) * (got[i] - wanted[i]);
    norm += wanted[i] * wanted[i];
  }
  return std::sqrt(difference / norm);
}

TEST(Hyper, ExactWhereTheSampleCoversAll) {
  for (size_t tokens : {1, 2, 3, 63, 129, 300})
    for (size_t group : {1, 3}) {
      const Problem p(tokens, 2 * group, 2, 16, 1);
      const auto wanted = oracle(p.heads);
      for (size_t block : {1, 16, 1000}) {
        const HyperRule rule{.block = block, .samples = 1000, .least = 8};
        EXPECT_LT(relative_error(run(p.heads, rule), wanted), 1e-5) << tokens << " " << block;
      }
      const HyperRule no_sample{.block = 1000, .samples = 0, .least = 8};
      EXPECT_LT(relative_error(run(p.heads, no_sample), wanted), 1e-5) << "one block is all";
      const HyperRule no_recursion{.block = 1, .samples = 0, .least = 1000};
      EXPECT_LT(relative_error(run(p.heads, no_recursion), wanted), 1e-5);
    }
}

TEST(Hyper, ErrorFallsWithTheSample) {
  const Problem p(512, 2, 1, 16, 2);
  const auto wanted = oracle(p.heads);
  std::vector<double> errors;
  for (size_t samples : {8, 32, 128}) {
    double sum = 0;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const HyperRule rule{.block = 16, .samples = samples, .least = 32, .seed = seed};
      sum += relative_error(run(p.heads, rule), wanted) / 6;
    }
    errors.push_back(sum);
  }
  EXPECT_LT(errors[1], errors[0] * 0.75);
  EXPECT_LT(errors[2], errors[1] * 0.75);
}

// Each query looks like one key: the hash brings them together, a sample of as many rows does not.
TEST(Hyper, TheHashFindsHeavyEntries) {
  constexpr size_t kTokens = 1024, kDim = 16;
  Problem p(kTokens, 1, 1, kDim, 3);
  std::mt19937 random(4);
  for (size_t t = kTokens / 2; t < kTokens; ++t) {
    const size_t like = random() % (kTokens / 2);
    for (size_t c = 0; c < kDim; ++c) p.q[t * kDim + c] = 4 * p.k[like * kDim + c];
  }
  const auto wanted = oracle(p.heads);
  double hashed = 0, sampled = 0;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    hashed += relative_error(run(p.heads, {.block = 64, .samples = 64, .least = 512, .seed = seed}),
                             wanted);
    sampled += relative_error(
        run(p.heads, {.block = 1, .samples = 127, .least = 512, .seed = seed}), wanted);
  }
  EXPECT_LT(hashed, sampled * 0.9);
}

TEST(Hyper, IsCausalAndTheSameForAnyThreads) {
  Problem p(300, 4, 2, 16, 5);
  const HyperRule rule{.block = 16, .samples = 16, .least = 20, .seed = 9};
  const auto one = run(p.heads, rule), three = run(p.heads, rule, 3);
  EXPECT_EQ(one, three);
  for (size_t i = 200 * 2 * 16; i < p.k.size(); ++i) p.k[i] = p.v[i] = 7;
  const auto changed = run(p.heads, rule);
  // The runs end at 150: what comes after 200 changes the hashes of no earlier pair of runs.
  for (size_t i = 0; i < 150 * 4 * 16; ++i) ASSERT_EQ(one[i], changed[i]) << i;
  for (float x : changed) ASSERT_TRUE(std::isfinite(x));
}

TEST(Hyper, RefusesSizesThatDoNotFit) {
  const Problem p(4, 3, 3, 16, 6);
  CausalHeads odd = p.heads;
  odd.kv_heads = 2;
  EXPECT_THROW(run(odd, {}), Error);
  EXPECT_THROW(run(p.heads, {.block = 0}), Error);
  EXPECT_THROW(run(p.heads, {.bits = 32}), Error);
  CausalHeads empty = p.heads;
  empty.tokens = 0;
  EXPECT_TRUE(run(empty, {}).empty());
}

}  // namespace
}  // namespace pith
