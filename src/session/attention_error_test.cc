// The error probe in sessions: what it reports, and that generation stops where it says so.

#include <gtest/gtest.h>

#include <filesystem>

#include "paths.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "pith/session.h"

namespace pith {
namespace {

std::shared_ptr<const Model> demo() { return Model::load(repo_dir() / "models/demo", false); }

std::vector<int32_t> prompt() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 160; ++i) ids.push_back(300 + i * 37 % 211);
  return ids;
}

TEST(AttentionError, ALossyPolicyIsToldFromAnExactOne) {
  const auto model = demo();
  StandaloneOptions o;
  o.context = 256, o.error_probe = {.rows = 128, .every = 2};
  Session exact(model, o);
  o.policy = Policy::parse("local(window=12)");
  Session lossy(model, o);
  for (Session* s : {&exact, &lossy}) {
    s->prefill(prompt());
    for (int32_t t = 0; t < 5; ++t) s->decode(400 + t);
  }
  const auto none = exact.attention_errors(), some = lossy.attention_errors();
  ASSERT_EQ(some.size(), 8u);
  double most = 0;
  for (size_t l = 0; l < 8; ++l) {
    EXPECT_EQ(some[l].steps, 3u);
    EXPECT_LT(none[l].high, 0.01) << l;
    most = std::max(most, some[l].low);
  }
  EXPECT_GT(most, 0.1) << "12 rows of 160";
  EXPECT_GT(lossy.ledger().probe, 0u);
  EXPECT_GT(lossy.ledger().total_bytes(), lossy.ledger().cache_bytes() + lossy.ledger().probe - 1);
  o.error_probe = {};
  EXPECT_TRUE(Session(model, o).attention_errors().empty());
}

TEST(AttentionError, GenerationStopsAboveTheLimit) {
  const auto model = demo();
  GenerateOptions g;
  g.sampling.temperature = 0, g.max_tokens = 12, g.ignore_eos = true;
  StandaloneOptions o;
  o.context = 256, o.error_probe = {.rows = 128, .every = 4, .max_error = 0.05};
  Session exact(model, o);
  EXPECT_EQ(generate(exact, prompt(), g).reason, StopReason::kMaxTokens);
  o.policy = Policy::parse("local(window=12)");
  Session lossy(model, o);
  const GenerateResult r = generate(lossy, prompt(), g);
  EXPECT_EQ(r.reason, StopReason::kAttentionError);
  EXPECT_EQ(r.tokens.size(), 1u) << "the first step is compared";
  EXPECT_STREQ(to_string(r.reason), "attention error above the limit");
}

TEST(AttentionError, WhatCannotBeProbedIsRefused) {
  const auto model = demo();
  StandaloneOptions o;
  o.error_probe.rows = 5;
  EXPECT_THROW(Session(model, o), Error);
  o.error_probe.rows = 256;
  o.policy = Policy::parse("streaming_llm(rope=cache)");
  EXPECT_THROW(Session(model, o), Error);
}

}  // namespace
}  // namespace pith
