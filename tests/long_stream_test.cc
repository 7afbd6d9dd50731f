// Streams far past any context: memory is flat, rows are bounded, weights still sum to tokens.
// PITH_LONG_STREAM=10000000 gives each policy so many tokens; `make test` has 8,192.

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

#include "gguf_test_model.h"
#include "pith/session.h"

namespace pith {
namespace {

size_t stream_tokens() {
  const char* asked = std::getenv("PITH_LONG_STREAM");
  return asked == nullptr ? 8'192 : std::stoul(asked);
}

/// Bytes that malloc has handed out.
size_t allocated() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

class LongStream : public ::testing::TestWithParam<const char*> {
 protected:
  static std::shared_ptr<Engine> engine() {
    static const testing_gguf::TwoForms forms("llama");
    static const auto model = Model::load(forms.write_gguf());
    EngineOptions options;
    options.threads = 1;
    options.chunk = 512;
    return std::make_shared<Engine>(model, options);
  }
};

/// Of a head's rows, how many tokens they stand for.
double weight_of(const HeadRows& rows) {
  return std::accumulate(rows.log_weights.begin(), rows.log_weights.end(), 0.0,
                         [](double sum, float w) { return sum + std::exp(double{w}); });
}

TEST_P(LongStream, HoldsNoMoreInItsSecondHalf) {
  const std::string policy = GetParam();
  const size_t tokens = stream_tokens();
  SessionOptions options;
  options.policy = Policy::parse(policy);
  options.context = tokens + 8;
  Session session(engine(), options);
  std::mt19937 random(7);
  std::uniform_int_distribution<int32_t> draw(1, 60);
  std::vector<int32_t> piece(512);
  std::array<size_t, 2> bytes{}, rows{};  // the most, by half
  size_t middle = 0;
  while (session.tokens() < tokens) {
    piece.resize(std::min<size_t>(512, tokens - session.tokens()));
    for (int32_t& id : piece) id = draw(random);
    session.append(piece, Append::kMore);
    const Ledger now = session.ledger();
    const size_t half = session.tokens() > tokens / 2;
    bytes[half] = std::max(bytes[half], now.total_bytes());
    rows[half] = std::max(rows[half], now.rows_kept);
    if (half == 0) middle = allocated();
    if (session.tokens() % (size_t{1} << 20) == 0) {  // how far a stream came that is stopped
      std::printf("%s: %zu tokens so far; %zu rows, %zu bytes\n", policy.c_str(), session.tokens(),
                  now.rows_kept, now.total_bytes());
      std::fflush(stdout);
    }
  }
  for (int32_t id = 1; id < 4; ++id) {
    for (const float x : session.decode(id)) ASSERT_TRUE(std::isfinite(x));
  }
  // balancekv's levels fill up to the end: 900 and then 1,208 rows of 1,296 in 10^7 tokens.
  const double more = policy.starts_with("balancekv") ? 1.44 : 1.1;
  EXPECT_LE(static_cast<double>(bytes[1]), more * static_cast<double>(bytes[0]));
  EXPECT_LE(static_cast<double>(rows[1]), more * static_cast<double>(rows[0]));
  // A session keeps its tokens' ids, in a vector that doubles.
  const double grown = static_cast<double>(allocated()) - static_cast<double>(middle);
  EXPECT_LE(grown, 1e6 + 8 * static_cast<double>(tokens));
  const HeadRows held = session.rows(0, 0);
  for (const auto p : held.positions) EXPECT_LT(static_cast<size_t>(p), tokens + 3);
  if (policy.starts_with("express(")) {
    EXPECT_NEAR(weight_of(held) / static_cast<double>(tokens + 3), 1, 1e-4);
  }
  std::printf("%s: %zu tokens; at most %zu and %zu rows, %zu and %zu bytes; heap %+.0f\n",
              policy.c_str(), session.tokens(), rows[0], rows[1], bytes[0], bytes[1], grown);
}

INSTANTIATE_TEST_SUITE_P(Policies, LongStream,
                         ::testing::Values("local(window=128)", "streaming_llm(window=128)",
                                           "streaming_llm(window=128,rope=cache)",
                                           "uniform(budget=128)", "express(s=128)",
                                           "express(s=128,heavy=0)", "express(s=128)+int4",
                                           "balancekv(budget=256)", "buzz(T=256)",
                                           "h2o(budget=128)", "tova(budget=128)",
                                           "snapkv(budget=128)", "snapkv(budget=128)+kivi",
                                           "adakv(budget=128)", "pyramidkv(budget=128)",
                                           "keydiff(budget=128)", "keydiff(budget=128)+turboquant",
                                           "knorm(budget=128)", "expected_attention(budget=128)"),
                         [](const auto& policy) { return std::to_string(policy.index); });

}  // namespace
}  // namespace pith
