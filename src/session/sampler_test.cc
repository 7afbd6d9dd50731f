#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "pith/error.h"
#include "pith/generate.h"

namespace pith {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Everything off but temperature 1: draws from softmax(logits).
SamplingOptions plain(uint64_t seed = 1) {
  SamplingOptions o;
  o.temperature = 1, o.top_k = 0, o.top_p = 1, o.min_p = 0, o.seed = seed;
  return o;
}

std::vector<float> test_logits(int vocabulary) {
  std::vector<float> x;
  for (int i = 0; i < vocabulary; ++i) x.push_back(2.5f * std::sin(1.7f * static_cast<float>(i)));
  return x;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  for (float x : logits) p.push_back(std::exp(double{x} / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

// An oracle that filters a probability vector instead of logits, by definition, in double.
std::vector<double> filtered(const SamplingOptions& o, const std::vector<float>& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (o.top_k > 0) order.resize(std::min<size_t>(order.size(), static_cast<size_t>(o.top_k)));
  double sum = 0;
  for (size_t i : order) sum += std::exp(double{logits[i]});
  std::vector<size_t> nucleus;
  double held = 0;
  for (size_t i : order) {
    if (!nucleus.empty() && held / sum >= o.top_p) break;
    nucleus.push_back(i);
    held += std::exp(double{logits[i]});
  }
  std::vector<double> p(logits.size(), 0.0);
  double total = 0;
  for (size_t i : nucleus) {
    if (std::exp(double{logits[i]} - logits[nucleus[0]]) < o.min_p) continue;
    p[i] = std::exp(double{logits[i]} / o.temperature);
    total += p[i];
  }
  for (double& x : p) x /= total;
  return p;
}

// Each token's count within 4 standard deviations of binomial; impossible tokens never.
void expect_distribution(const SamplingOptions& options, const std::vector<float>& logits,
                         const std::vector<double>& wanted) {
  constexpr int kDraws = 40000;
  Sampler sampler(options);
  std::vector<int> counts(logits.size(), 0);
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(sampler.sample(logits, {}))];
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = wanted[i], sigma = std::sqrt(kDraws * p * (1 - p));
    EXPECT_LE(std::abs(counts[i] - kDraws * p), 4 * sigma + 1e-9) << "token " << i << " p " << p;
  }
}

TEST(Sampler, DrawsFromTheSoftmax) {
  const auto logits = test_logits(50);
  expect_distribution(plain(), logits, softmax(logits, 1));
}

TEST(Sampler, TemperatureDividesTheLogits) {
  const auto logits = test_logits(50);
  for (float t : {0.25f, 0.7f, 3.0f}) {
    auto o = plain(2);
    o.temperature = t;
    expect_distribution(o, logits, softmax(logits, t));
  }
}

TEST(Sampler, EveryCombinationMatchesTheDefinition) {
  const auto logits = test_logits(40);
  uint64_t seed = 10;
  for (int top_k : {0, 1, 7, 40, 1000}) {
    for (float top_p : {0.0f, 0.4f, 0.95f, 1.0f}) {
      for (float min_p : {0.0f, 0.2f, 1.0f}) {
        auto o = plain(seed++);
        o.temperature = 0.8f, o.top_k = top_k, o.top_p = top_p, o.min_p = min_p;
        SCOPED_TRACE(testing::Message() << top_k << " " << top_p << " " << min_p);
        expect_distribution(o, logits, filtered(o, logits));
      }
    }
  }
}

TEST(Sampler, TemperatureComesAfterTheFilters) {
  // At temperature 100 nearly everything is likely; a nucleus taken before knows better.
  auto o = plain();
  o.temperature = 100, o.top_p = 0.9f;
  const std::vector<float> logits{10, 1, 1, 1};
  Sampler sampler(o);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(sampler.sample(logits, {}), 0);
}

TEST(Sampler, GreedyTakesTheFirstOfTheHighest) {
  auto o = plain();
  o.temperature = 0;
  Sampler sampler(o);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3, 2}, {}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-kInf, -5, -kInf}, {}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{kNaN, -2, kNaN, -1}, {}), 3);
}

TEST(Sampler, TopKKeepsTheFirstOfEquals) {
  auto o = plain();
  o.top_k = 2;
  Sampler sampler(o);
  std::set<int32_t> seen;
  for (int i = 0; i < 500; ++i) seen.insert(sampler.sample(std::vector<float>(9, 0.5f), {}));
  EXPECT_EQ(seen, (std::set<int32_t>{0, 1}));
}

TEST(Sampler, NeverDrawsWhatIsNotFinite) {
  const std::vector<float> logits{kNaN, 0, -kInf, 0, kInf};
  for (int top_k : {0, 2, 40}) {
    for (float top_p : {0.5f, 1.0f}) {
      auto o = plain();
      o.top_k = top_k, o.top_p = top_p;
      Sampler sampler(o);
      for (int i = 0; i < 200; ++i) {
        const int32_t id = sampler.sample(logits, {});
        EXPECT_TRUE(id == 1 || id == 3) << id;
      }
    }
  }
}

TEST(Sampler, RefusesWhenNothingIsFinite) {
  for (float temperature : {0.0f, 1.0f}) {
    auto o = plain();
    o.temperature = temperature;
    for (const auto& logits : {std::vector<float>(5, -kInf), std::vector<float>(5, kNaN),
                               std::vector<float>{kNaN, kInf, -kInf}, std::vector<float>{}}) {
      try {
        Sampler(o).sample(logits, {});
        ADD_FAILURE() << "drew a token";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kNonFinite);
      }
    }
  }
}

TEST(Sampler, ExtremeLogitsAndTemperatures) {
  auto o = plain();
  for (float temperature : {1e-30f, 1e30f}) {
    o.temperature = temperature;
    Sampler sampler(o);
    for (int i = 0; i < 100; ++i) {
      const int32_t id = sampler.sample(std::vector<float>{-3e38f, 3e38f, -3e38f}, {});
      EXPECT_TRUE(id >= 0 && id < 3);
      if (temperature < 1) {
        EXPECT_EQ(id, 1);
      }
    }
  }
}

TEST(Sampler, PenaltyFollowsItsDefinition) {
  auto o = plain();
  o.temperature = 0, o.repeat_penalty = 2;
  const std::vector<float> logits{4, 3, -1, -1.5f};
  EXPECT_EQ(Sampler(o).sample(logits, std::vector<int32_t>{}), 0);
  EXPECT_EQ(Sampler(o).sample(logits, std::vector<int32_t>{0}), 1);        // 2 against 3
  EXPECT_EQ(Sampler(o).sample(logits, std::vector<int32_t>{0, 1}), 0);     // 2 against 1.5
  EXPECT_EQ(Sampler(o).sample(logits, std::vector<int32_t>{0, 0, 1}), 0);  // once, not twice
  const std::vector<float> negative{-4, -1, -1.5f, -9};
  EXPECT_EQ(Sampler(o).sample(negative, std::vector<int32_t>{1}), 2);  // -2 against -1.5
}

TEST(Sampler, PenaltyLooksBackAsFarAsItIsTold) {
  auto o = plain();
  o.temperature = 0, o.repeat_penalty = 10;
  const std::vector<float> logits{4, 3};
  const std::vector<int32_t> history{0, 1, 1};
  const std::map<int, int32_t> wanted{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {-1, 0}};
  for (const auto& [back, id] : wanted) {
    o.repeat_last_n = back;
    EXPECT_EQ(Sampler(o).sample(logits, history), id) << back;
  }
  const std::vector<int32_t> early{0, 7, -3};  // ids out of range are ignored
  o.repeat_last_n = 2;
  EXPECT_EQ(Sampler(o).sample(logits, early), 0);
  o.repeat_last_n = 3;
  EXPECT_EQ(Sampler(o).sample(logits, early), 1);
  o.repeat_last_n = -1;
  EXPECT_EQ(Sampler(o).sample(logits, early), 1);
  o.repeat_last_n = 1000;
  EXPECT_EQ(Sampler(o).sample(logits, early), 1);
}

// A device's answer to a ranking, by a full sort.
std::vector<Sampler::Candidate> ranked(const Sampler::Ranking& ranking, std::vector<float> logits) {
  for (const auto& [id, bias, divisor, minus] : ranking.adjusted) {
    float& x = logits[static_cast<size_t>(id)];
    x += bias;
    x = x > 0 ? x / divisor : x * divisor;
    x -= minus;
  }
  for (size_t i = 0; i < logits.size() && !ranking.mask.empty(); ++i)
    if (i / 32 >= ranking.mask.size() || (ranking.mask[i / 32] >> i % 32) % 2 == 0)
      logits[i] = -kInf;
  std::vector<Sampler::Candidate> all;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) all.push_back({logits[i], static_cast<int32_t>(i)});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.logit > b.logit; });
  if (ranking.count > 0) all.resize(std::min(all.size(), ranking.count));
  return all;
}

TEST(Sampler, RankedCandidatesGiveTheSameDraws) {
  auto logits = test_logits(300);
  for (size_t i = 0; i < 20; ++i) logits[7 * i] = 2.25f;  // equals
  for (const float temperature : {0.0f, 0.8f}) {
    for (const int top_k : {1, 5, 40, 299, 1000}) {
      for (const float top_p : {0.5f, 1.0f}) {
        SamplingOptions o;
        o.temperature = temperature, o.top_k = top_k, o.top_p = top_p, o.seed = 7;
        o.repeat_penalty = 1.3f, o.repeat_last_n = 8, o.never = {3, 9, 9, 1000, -1};
        o.presence_penalty = 0.4f, o.frequency_penalty = 0.1f;
        o.logit_bias = {{7, 1.0f}, {299, 4.0f}, {3, 50.0f}, {7, 1.5f}, {1000, 100.0f}, {14, -9}};
        Sampler whole(o), some(o);
        std::vector<int32_t> history;
        for (int i = 0; i < 60; ++i) {
          if (i == 40) {  // 290, 291, ... have no word
            const std::vector<uint32_t> mask(9, 0x55555555u);
            whole.set_mask(mask), some.set_mask(mask);
          }
          const auto best = ranked(some.ranking(history, logits.size()), logits);
          const int32_t id = whole.sample(logits, history);
          ASSERT_EQ(some.sample_ranked(best), id) << temperature << " " << top_k << " " << top_p;
          ASSERT_TRUE(id != 3 && id != 9);
          if (i >= 40) {
            ASSERT_TRUE(id % 2 == 0 && id < 288) << id;
          }
          history.push_back(id);
        }
      }
    }
  }
}

TEST(Sampler, RankingSaysWhatIsLookedAt) {
  SamplingOptions o;
  EXPECT_EQ(Sampler(o).ranking({}, 10).count, 40u);
  o.top_k = 0;
  EXPECT_EQ(Sampler(o).ranking({}, 10).count, 0u);
  o.temperature = 0;
  EXPECT_EQ(Sampler(o).ranking({}, 10).count, 1u);
  o.repeat_penalty = 2, o.repeat_last_n = 4;
  o.frequency_penalty = 0.5f, o.logit_bias = {{8, 3.0f}};
  const auto adjusted = Sampler(o).ranking(std::vector<int32_t>{1, 8, 2, 8, 12}, 10).adjusted;
  ASSERT_EQ(adjusted.size(), 2u);
  EXPECT_EQ(adjusted[0].id, 2);
  EXPECT_EQ(adjusted[0].minus, 0.5f);
  EXPECT_EQ(adjusted[1].id, 8);
  EXPECT_EQ(adjusted[1].bias, 3.0f);
  EXPECT_EQ(adjusted[1].divisor, 2.0f);
  EXPECT_EQ(adjusted[1].minus, 1.0f);
}

TEST(Sampler, WhatIsNeverDrawnMayBeEverything) {
  auto o = plain();
  o.never = {0, 1};
  EXPECT_EQ(Sampler(o).sample(std::vector<float>{5, 4, -3}, {}), 2);
  EXPECT_THROW(Sampler(o).sample(std::vector<float>{5, 4}, {}), Error);
  EXPECT_THROW(Sampler(o).sample_ranked({}), Error);
}

TEST(Sampler, SameSeedSameDraws) {
  const auto logits = test_logits(1000);
  const auto draws = [&](uint64_t seed, uint64_t first, int n) {
    Sampler sampler(plain(seed), first);
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(sampler.sample(logits, {}));
    return ids;
  };
  EXPECT_EQ(draws(5, 0, 40), draws(5, 0, 40));
  EXPECT_NE(draws(5, 0, 40), draws(6, 0, 40));
  const auto all = draws(5, 0, 40);
  EXPECT_EQ(draws(5, 10, 30), std::vector<int32_t>(all.begin() + 10, all.end()));
}

TEST(Sampler, RefusesNonsense) {
  const auto refused = [](auto change) {
    SamplingOptions o;
    change(o);
    try {
      Sampler sampler(o);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument;
    }
    return false;
  };
  EXPECT_TRUE(refused([](auto& o) { o.temperature = -1; }));
  EXPECT_TRUE(refused([](auto& o) { o.temperature = kNaN; }));
  EXPECT_TRUE(refused([](auto& o) { o.temperature = kInf; }));
  EXPECT_TRUE(refused([](auto& o) { o.top_k = -1; }));
  EXPECT_TRUE(refused([](auto& o) { o.top_p = 1.5f; }));
  EXPECT_TRUE(refused([](auto& o) { o.top_p = kNaN; }));
  EXPECT_TRUE(refused([](auto& o) { o.min_p = -0.1f; }));
  EXPECT_TRUE(refused([](auto& o) { o.repeat_penalty = 0; }));
  EXPECT_TRUE(refused([](auto& o) { o.repeat_penalty = kInf; }));
  EXPECT_TRUE(refused([](auto& o) { o.repeat_last_n = -2; }));
  EXPECT_TRUE(refused([](auto& o) { o.logit_bias = {{-1, 1.0f}}; }));
  EXPECT_TRUE(refused([](auto& o) { o.logit_bias = {{1, kInf}}; }));
  EXPECT_TRUE(refused([](auto& o) { o.logit_bias = {{1, kNaN}}; }));
  EXPECT_FALSE(refused([](auto& o) { o.logit_bias = {{1, -kInf}}; }));
  EXPECT_FALSE(refused([](auto&) {}));
}

}  // namespace
}  // namespace pith
