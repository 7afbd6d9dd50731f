// The public generation step, sampling beside the ranks, scores of a text, and draws that do not
// depend on how a talk came to where it is.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "pith/error.h"
#include "pith/generate.h"
#include "pith/saved.h"
#include "pith/tokenizer.h"
#include "session/test_demo.h"
#include "session/test_refused.h"

namespace pith {
namespace {

using test::demo;

StandaloneOptions one_thread(const std::string& policy = "exact") {
  StandaloneOptions o;
  o.policy = Policy::parse(policy);
  o.context = 400;
  o.threads = 1;
  return o;
}

EngineOptions engine_options() {
  EngineOptions o;
  o.threads = 1;
  o.chunk = 400;  // what a session with an engine of its own has at this context
  return o;
}

std::vector<int32_t> ids_of(const std::string& text) { return demo()->tokenizer().encode(text); }

// NOLINTBEGIN(bugprone-use-after-move): that is what is tried.
TEST(Stepper, AndSamplerThatWereMovedFromAreRefused) {
  const auto moved = [](const std::function<void()>& call) {
    test::refused(ErrorCode::kInvalidArgument, "that was moved from", call);
  };
  SamplingOptions greedy;
  greedy.temperature = 0;
  greedy.never = {1};
  const std::vector<float> logits = {0, 2, 1};
  Sampler sampler(greedy);
  Sampler copy = sampler, kept = std::move(sampler);
  EXPECT_EQ(kept.sample(logits, {}), 2);
  EXPECT_EQ(copy.sample(logits, {}), 2) << "the token that is never drawn";
  moved([&] { sampler.sample(logits, {}); });
  moved([&] { sampler.sample_ranked({}); });
  moved([&] { (void)sampler.ranking({}, 3); });
  moved([&] { sampler.set_mask({}); });
  moved([&] { (void)sampler.options(); });
  moved([&] { Sampler(sampler).sample(logits, {}); });
  const auto engine = std::make_shared<Engine>(demo(), engine_options());
  SessionOptions small;
  small.context = 16;
  Session session(engine, small), other(engine, small);
  const std::vector<int32_t> ids = {5};
  Work works[] = {{&session, ids}, {&other, ids}};
  works[0].sampler = &sampler, works[1].sampler = &kept;
  engine->step(works);
  ASSERT_TRUE(works[0].failure);
  EXPECT_EQ(works[0].failure->code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(session.tokens(), 0u);
  EXPECT_GE(works[1].next, 0);
  sampler = std::move(kept);
  EXPECT_EQ(sampler.sample(logits, {}), 2) << "what is moved into may be used again";
  moved([&] { kept.sample(logits, {}); });

  Stepper stepper(*demo(), {});
  Stepper now = std::move(stepper);
  EXPECT_FALSE(now.at_limit());
  moved([&] { stepper.push(5, 10); });
  moved([&] { (void)stepper.mask(); });
  moved([&] { (void)stepper.sampling(); });
  moved([&] { (void)stepper.at_limit(); });
  moved([&] { (void)stepper.text(); });
  moved([&] { (void)stepper.tokens(); });
  moved([&] { (void)stepper.ended_text(); });
  moved([&] { stepper.finish(); });
}
// NOLINTEND(bugprone-use-after-move)

// A scheduler's loop over Engine::step with one Stepper per session says what generate() says.
TEST(Stepper, IsWhatGenerateDoes) {
  GenerateOptions options;
  options.sampling.seed = 5;
  options.max_tokens = 40;
  options.stop = {" the"};
  const auto prompt = ids_of("The old house stood on the hill and");
  Session whole(demo(), one_thread());
  const GenerateResult expected = generate(whole, prompt, options);

  const auto engine = std::make_shared<Engine>(demo(), engine_options());
  SessionOptions own;
  own.context = 400;
  Session session(engine, own);
  Stepper stepper(*demo(), options);
  Sampler sampler(stepper.sampling());
  std::string text;
  Work work{&session, prompt, Append::kPromptEnds};
  work.sampler = &sampler;
  std::optional<StopReason> stop;
  int32_t token = -1;
  while (!stop) {
    engine->step({&work, 1});
    ASSERT_FALSE(work.failure) << work.failure->what();
    token = work.next;
    const Stepper::Out out = stepper.push(token, session.context() - session.tokens());
    text += out.text;
    stop = out.stop;
    work.tokens = {&token, 1};
    work.append = Append::kWhole;
  }
  EXPECT_EQ(*stop, expected.reason);
  EXPECT_EQ(text, expected.text);
  EXPECT_EQ(stepper.text(), expected.text);
  EXPECT_EQ(stepper.tokens(), expected.tokens);
}

TEST(Stepper, SaysWhyItStops) {
  GenerateOptions options;
  options.max_tokens = 2;
  const auto ids = ids_of("abc def ghi");
  {
    Stepper s(*demo(), options);
    EXPECT_FALSE(s.at_limit());
    EXPECT_FALSE(s.push(ids[1], 10).stop);
    EXPECT_EQ(s.push(ids[2], 10).stop, StopReason::kMaxTokens);
    EXPECT_TRUE(s.at_limit());
    EXPECT_FALSE(s.ended_text());
  }
  options.max_tokens = -1;
  EXPECT_EQ(Stepper(*demo(), options).push(ids[1], 0).stop, StopReason::kContextFull);
  options.ends = {ids[2]};
  Stepper s(*demo(), options);
  EXPECT_EQ(s.push(ids[2], 9).stop, StopReason::kEndOfText);
  EXPECT_TRUE(s.ended_text());
  EXPECT_EQ(s.text(), "");
  options.max_tokens = 0;
  EXPECT_TRUE(Stepper(*demo(), options).at_limit());
}

TEST(GenerateOn, TheNextPromptGoesOnBehindTheWholeAnswer) {
  GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_tokens = 6;
  const auto prompt = ids_of("The old house");
  Session session(demo(), one_thread());
  const GenerateResult first = generate(session, prompt, options);
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), first.tokens.begin(), first.tokens.end());
  EXPECT_TRUE(std::ranges::equal(session.token_ids(), all));
  const GenerateResult more = generate(session, {}, options);  // goes on where it is
  Session twelve(demo(), one_thread());
  options.max_tokens = 12;
  EXPECT_EQ(generate(twelve, prompt, options).text, first.text + more.text);
  Session empty(demo(), one_thread());
  test::refused(ErrorCode::kInvalidArgument, "empty", [&] { generate(empty, {}, options); });
}

// Penalties look back at all that the session holds, and draws are numbered by positions.
TEST(GenerateOn, DrawsAreTheSameAfterSaveAndRestore) {
  GenerateOptions options;
  options.sampling.seed = 9;
  options.sampling.repeat_penalty = 1.7f;
  options.sampling.frequency_penalty = 0.3f;
  options.sampling.repeat_last_n = -1;
  options.max_tokens = 12;
  const auto prompt = ids_of("The old house"), second = ids_of(" and then");
  Session whole(demo(), one_thread());
  generate(whole, prompt, options);
  std::vector<std::byte> bytes;
  whole.save(
      [&](std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); },
      {.note = "a note"});
  const GenerateResult expected = generate(whole, second, options);
  const auto engine = std::make_shared<Engine>(demo(), engine_options());
  SessionOptions own;
  own.context = 400;
  Session other = Session::restore(engine, bytes, own);
  EXPECT_EQ(generate(other, second, options).tokens, expected.tokens);
  bytes[bytes.size() / 2] ^= std::byte{1};
  test::refused(ErrorCode::kCorrupt, "damaged", [&] { Session::restore(engine, bytes, own); });
}

TEST(Sampler, BiasPenaltiesAndMasks) {
  const std::vector<float> logits = {1, 2, 3, 4};
  SamplingOptions o;
  o.temperature = 0;
  const auto drawn = [&](const SamplingOptions& with, std::vector<int32_t> history = {}) {
    return Sampler(with).sample(logits, history);
  };
  EXPECT_EQ(drawn(o), 3);
  o.logit_bias = {{0, 3.5f}, {9, 100.0f}};
  EXPECT_EQ(drawn(o), 0);
  o.logit_bias = {{3, -100.0f}};
  EXPECT_EQ(drawn(o), 2);
  o.logit_bias.clear();
  o.presence_penalty = 1.5f;
  EXPECT_EQ(drawn(o, {3}), 2);
  EXPECT_EQ(drawn(o, {3, 3, 3, 2}), 3) << "once, however often";
  o.presence_penalty = 0;
  o.frequency_penalty = 0.6f;
  EXPECT_EQ(drawn(o, {3}), 3);
  EXPECT_EQ(drawn(o, {3, 3}), 2);
  o.frequency_penalty = 0;
  Sampler masked(o);
  const uint32_t word = 0b0011;
  masked.set_mask({&word, 1});
  EXPECT_EQ(masked.sample(logits, {}), 1);
  EXPECT_EQ(masked.ranking({}, 4).mask.size(), 1u);
  masked.set_mask({});
  EXPECT_EQ(masked.sample(logits, {}), 3);
  const uint32_t none = 0;
  masked.set_mask({&none, 1});
  test::refused(ErrorCode::kNonFinite, "none of the logits", [&] { masked.sample(logits, {}); });
  o.presence_penalty = std::nanf("");
  test::refused(ErrorCode::kInvalidArgument, "presence_penalty", [&] { Sampler{o}; });
}

TEST(Logprobs, AreTheLogSoftmaxOfRawLogits) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f), std::log(2.0f)};
  const TokenLogprobs p = log_probabilities(logits, 1, 3);
  EXPECT_NEAR(p.logprob, std::log(0.2), 1e-6);
  ASSERT_EQ(p.top.size(), 3u);
  EXPECT_EQ(p.top[0].id, 2);
  EXPECT_NEAR(p.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(p.top[1].id, 1) << "of equals the smaller id";
  EXPECT_EQ(p.top[2].id, 3);
  EXPECT_EQ(log_probabilities(logits, 0, 99).top.size(), 4u);
  EXPECT_TRUE(log_probabilities(logits, 0).top.empty());
  test::refused(ErrorCode::kInvalidArgument, "token 4", [&] { log_probabilities(logits, 4); });
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(log_probabilities(std::vector<float>{0, -kInf}, 1).logprob, -kInf);
  for (const float odd : {kInf, std::nanf("")})
    test::refused(ErrorCode::kNonFinite, "NaN or infinite", [&] {
      log_probabilities(std::vector<float>{odd, 0, odd}, 1);
    });
  test::refused(ErrorCode::kNonFinite, "NaN", [&] {
    log_probabilities(std::vector<float>{-kInf, -kInf}, 0);
  });
}

TEST(Session, ScoresATextAsItsTokensWouldBeOneByOne) {
  const auto ids = ids_of("The old house stood on the hill, and nobody had lived there for years.");
  StandaloneOptions o = one_thread();
  o.chunk = 7;
  Session session(demo(), o), one(demo(), one_thread());
  const auto half = static_cast<ptrdiff_t>(ids.size() / 2);
  const std::span all(ids);
  auto scores = session.score(all.first(ids.size() / 2));
  EXPECT_EQ(scores[0].likeliest, -1);
  const auto rest = session.score(all.subspan(ids.size() / 2));
  scores.insert(scores.end(), rest.begin(), rest.end());
  EXPECT_EQ(session.tokens(), ids.size());
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const auto logits = one.decode(ids[i]);
    const TokenLogprobs p = log_probabilities(logits, ids[i + 1], 1);
    EXPECT_NEAR(scores[i + 1].logprob, p.logprob, 0.05) << i;
    if (i + 1 != static_cast<size_t>(half)) continue;
    EXPECT_EQ(scores[i + 1].likeliest, p.top[0].id) << "across two calls";
  }
}

}  // namespace
}  // namespace pith
