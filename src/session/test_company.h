#pragma once
// For tests of engines: conversations alone and in a batch, which must be the same.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/philox.h"
#include "pith/session.h"

namespace pith::test {

using Logits = std::vector<float>;

/// A conversation of its own: a prompt, then tokens one by one.
struct Talk {
  std::string policy;
  std::vector<int32_t> prompt, answer;
};

inline std::vector<int32_t> some_ids(size_t count, uint64_t seed, uint64_t vocab = 8000) {
  const Philox random(seed, 0, 0);
  std::vector<int32_t> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(random.words(i)[0] % vocab);
  return ids;
}

/// Selectors of every kind, codecs of every kind, tables that are learnt, positions that move, and
/// sizes that make them select and code on the way.
inline const std::vector<std::string>& policies() {
  static const std::vector<std::string> all = {
      "exact",
      "exact+int4,sink=4,window=32",
      "keydiff(budget=48,interval=24)+int4,sink=4,window=16",
      "h2o(budget=48,interval=40),window=16",
      "snapkv(budget=40)+int8",
      "streaming_llm(window=60,rope=cache)",
      "express(heavy=0,s=32)+int4,window=16",
      "exact+kivi(bits=2),window=32",
      "exact+turboquant(bits=3),window=16",
      "exact+k:qjl(paper=true,m=128)+v:int4,window=16",
      "exact+csr(online=32),window=16",
      "balancekv(heavy=0,rate=0.5)+int4,window=16",
      "uniform(rate=0.25)+bf16,sink=4,window=16",
      "buzz(T=64,s=8)",
      "exact,dtype=f32;layers=0-1:exact+int4,window=16",
  };
  return all;
}

inline SessionOptions with_policy(const std::string& policy, size_t context = 400) {
  SessionOptions o;
  o.policy = Policy::parse(policy);
  o.context = context;
  return o;
}

inline bool same_bits(const Logits& a, const Logits& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

/// The logits after the prompt and after each token of the answer, the session alone.
inline std::vector<Logits> alone(const std::shared_ptr<Engine>& engine, const Talk& t) {
  Session session(engine, with_policy(t.policy));
  std::vector<Logits> all;
  const auto keep = [&](std::span<const float> x) { all.emplace_back(x.begin(), x.end()); };
  keep(session.prefill(t.prompt));
  for (const int32_t id : t.answer) keep(session.decode(id));
  return all;
}

/// Session i joins in step i % joins with its prompt, and leaves when its answer is through; in
/// some steps the works stand in the other direction. Each one's answer is compared with its
/// answer alone, on an engine of its own.
inline void expect_company_changes_nothing(const std::shared_ptr<Engine>& engine,
                                           const std::shared_ptr<Engine>& other,
                                           const std::vector<Talk>& talks, size_t joins,
                                           const std::function<bool(size_t step)>& turned) {
  const auto vocab = static_cast<size_t>(engine->model()->config().vocab);
  std::vector<Session> sessions;
  for (const Talk& t : talks) sessions.emplace_back(engine, with_policy(t.policy));
  std::vector<size_t> said(talks.size(), 0);  // steps that a session was part of
  std::vector<std::vector<Logits>> got(talks.size());
  for (size_t step = 0; step < joins + talks[0].answer.size() + 1; ++step) {
    std::vector<size_t> who;
    for (size_t i = 0; i < talks.size(); ++i) {
      if (step >= i % joins && said[i] <= talks[i].answer.size()) who.push_back(i);
    }
    if (turned(step)) std::ranges::reverse(who);
    std::vector<Work> works;
    for (const size_t i : who) {
      got[i].emplace_back(vocab);
      Work w{&sessions[i], talks[i].prompt};
      if (said[i] > 0) w.tokens = {&talks[i].answer[said[i] - 1], 1};
      w.logits = got[i].back().data();
      works.push_back(w);
      ++said[i];
    }
    engine->step(works);
    for (const Work& w : works) ASSERT_FALSE(w.failure) << w.failure->what();
  }
  for (size_t i = 0; i < talks.size(); ++i) {
    const std::vector<Logits> expected = alone(other, talks[i]);
    ASSERT_EQ(got[i].size(), expected.size());
    for (size_t t = 0; t < expected.size(); ++t) {
      ASSERT_TRUE(same_bits(got[i][t], expected[t]))
          << talks[i].policy << ", session " << i << " of " << talks.size() << ", token " << t;
    }
  }
}

}  // namespace pith::test
