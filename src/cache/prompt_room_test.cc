// Room for prompts that are read a layer at a time, and for the tokens between them: no policy
// takes more, however prompts and tokens follow each other.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "cache/test_counted.h"
#include "model/prompt_blocks.h"
#include "pith/error.h"
#include "policy_forms.h"

namespace pith {
namespace {

using test::Rows;
using test::Shape;

/// Under policies that cannot select at a prompt's end, nothing.
std::unique_ptr<test::Counted> made(const std::string& form, const Shape& shape) {
  try {
    return std::make_unique<test::Counted>(form, shape, 2);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported) << e.what();
    return nullptr;
  }
}

/// Takes the memory of a session's prompt, its rows and mass, and reads it in blocks, a layer after
/// the other.
void read_prompt(test::Counted& c, const Shape& shape, const Rows& rows, size_t at, size_t tokens,
                 size_t most, bool ends) {
  Array<float> k(c.whole, MemoryKind::kScratch), v(c.whole, MemoryKind::kScratch);
  Array<float> mass(c.whole, MemoryKind::kScratch);
  k.reserve(tokens * shape.kv_size()), k.resize(tokens * shape.kv_size());
  v.reserve(tokens * shape.kv_size()), v.resize(tokens * shape.kv_size());
  const size_t sums = tokens * static_cast<size_t>(shape.kv_heads);
  mass.reserve(sums), mass.resize(sums);
  std::copy_n(rows.k.data() + at * shape.kv_size(), k.size(), k.data());
  std::copy_n(rows.v.data() + at * shape.kv_size(), v.size(), v.data());
  std::vector<float> out(tokens * shape.q_size());
  for (int l = 0; l < shape.layers; ++l) {
    std::ranges::fill(mass, 0.0f);
    float* const sum = c.cache->asks_mass(l) ? mass.data() : nullptr;
    for (const PromptRange& block : prompt_blocks(tokens, most))
      c.cache->read(l, out.data(),
                    {.q = rows.q.data() + (at + block.first) * shape.q_size(),
                     .k = k.data(),
                     .v = v.data(),
                     .mass = sum,
                     .tokens = tokens,
                     .first = block.first,
                     .count = block.count});
    c.cache->append(l, {.k = k.data(), .v = v.data(), .mass = sum, .tokens = tokens, .ends = ends});
  }
}

class PromptRoomOf : public testing::TestWithParam<PromptReading> {};

TEST_P(PromptRoomOf, NoPromptAndNoTokenTakesMoreThanWasAskedFor) {
  constexpr size_t kTokens = 400, kMost = 48;
  Shape shape;
  shape.layers = 8;  // what a layer keeps beyond its rows adds up
  shape.group = 3;
  ModelConfig config;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.hidden = 0;  // no residual stream here
  size_t forms = 0, refused = 0;
  std::vector<std::string> all = test::registered_forms("keydiff(budget=96)");
  all.emplace_back("snapkv(budget=40)");
  all.emplace_back("balancekv(rate=0.5)+csr(online=32)");
  for (const std::string& form : all) {
    const std::string policy = form + ",prompt=" + to_string(GetParam());
    SCOPED_TRACE(policy);
    const std::unique_ptr<test::Counted> c = made(policy, shape);
    if (!c) {
      ++refused;
      continue;
    }
    const Rows rows(shape, kTokens, 3);
    std::vector<float> out(shape.q_size());
    std::mt19937 random(static_cast<uint32_t>(++forms));
    for (size_t at = 0, n = 0; at < kTokens; at += n) {
      const size_t kind = random() % 3;
      n = std::min(kTokens - at, kind == 0 ? 1 + random() % 250 : 1 + random() % 9);
      const bool prompt = kind < 2;
      PassRoom room = c->cache->room(n, prompt ? std::min(n, kMost) : 1, prompt);
      if (prompt) room.beside += prompt_bytes(config, GetParam(), n);
      c->own.reset_peak(), c->whole.reset_peak();
      if (prompt) {
        const bool ends = GetParam() == PromptReading::kOnce || random() % 2 == 0;
        read_prompt(*c, shape, rows, at, n, kMost, ends);
      }
      for (size_t t = at; !prompt && t < at + n; ++t)
        for (int l = 0; l < shape.layers; ++l)
          c->cache->step(l, out.data(), rows.q.data() + t * shape.q_size(),
                         rows.k.data() + t * shape.kv_size(), rows.v.data() + t * shape.kv_size(),
                         1);
      ASSERT_LE(c->own.peak(), room.cache) << n << (prompt ? " of a prompt" : "") << " at " << at;
      ASSERT_LE(c->whole.peak(), room.total())
          << n << (prompt ? " of a prompt" : "") << " at " << at;
    }
  }
  EXPECT_GT(forms, 3 * refused);
}

INSTANTIATE_TEST_SUITE_P(Reading, PromptRoomOf,
                         testing::Values(PromptReading::kExact, PromptReading::kOnce),
                         [](const auto& of) { return std::string(to_string(of.param)); });

}  // namespace
}  // namespace pith
