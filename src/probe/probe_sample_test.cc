#include "probe/probe_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace pith {
namespace {

constexpr size_t kRows = 64;

std::vector<uint32_t> positions(const ProbeSample& sample, size_t head) {
  std::vector<uint32_t> positions;
  for (const auto& row : sample.rows(head)) positions.push_back(row.position);
  return positions;
}

// A device must make of the entries the rows that the sample names.
TEST(ProbeSample, EntriesTellWhatEachSlotHolds) {
  MemoryCounter memory;
  for (const size_t chunk : {1, 3, 63, 500}) {
    ProbeSample sample(memory, {.kv_heads = 3, .layer = 2, .seed = 9, .rows = kRows});
    std::map<std::pair<size_t, size_t>, size_t> store;  // head and slot: position
    std::vector<ProbeSample::Entry> entries;
    for (size_t done = 0; done < 1000;) {
      const size_t count = std::min(chunk, 1000 - done);
      sample.append(count, entries);
      for (const auto& e : entries) {
        EXPECT_LT(e.token, count);
        store[{e.head, e.slot}] = done + e.token;
      }
      done += count;
    }
    for (size_t head = 0; head < 3; ++head) {
      const auto rows = sample.rows(head);
      ASSERT_EQ(rows.size(), ProbeSample::kFirst + kRows);
      for (size_t slot = 0; slot < rows.size(); ++slot) {
        EXPECT_EQ((store[{head, slot}]), rows[slot].position);
        EXPECT_EQ(rows[slot].group == ProbeSample::kGroups, slot < ProbeSample::kFirst);
      }
    }
    EXPECT_EQ(sample.drawn(), kRows);
    EXPECT_EQ(sample.open_to_draw(), 996);
  }
}

TEST(ProbeSample, IsOneSampleForAllChunkSizesAndAnotherForEachHeadAndSeed) {
  MemoryCounter memory;
  std::vector<ProbeSample::Entry> entries;
  const auto draw = [&](size_t chunk, uint64_t seed) {
    ProbeSample sample(memory, {.kv_heads = 2, .layer = 0, .seed = seed, .rows = kRows});
    for (size_t done = 0; done < 700; done += chunk)
      sample.append(std::min(chunk, 700 - done), entries);
    return sample;
  };
  const ProbeSample one = draw(1, 5), all = draw(700, 5), other = draw(700, 6);
  EXPECT_EQ(positions(one, 0), positions(all, 0));
  EXPECT_EQ(positions(one, 1), positions(all, 1));
  EXPECT_NE(positions(all, 0), positions(all, 1));
  EXPECT_NE(positions(all, 0), positions(other, 0));
}

// Each of 250 rows is in the sample of 64 with equal probability.
TEST(ProbeSample, IsUniform) {
  MemoryCounter memory;
  std::vector<ProbeSample::Entry> entries;
  std::vector<double> early(2);
  constexpr size_t kSeeds = 400;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    ProbeSample sample(memory, {.kv_heads = 1, .layer = 1, .seed = seed, .rows = kRows});
    sample.append(ProbeSample::kFirst + 250, entries);
    for (const uint32_t p : positions(sample, 0))
      if (p >= ProbeSample::kFirst) ++early[p < ProbeSample::kFirst + 125 ? 0 : 1];
  }
  // Hypergeometric: a variance of 64 / 4 * (250 - 64) / 249 a seed.
  const double deviation = std::sqrt(kSeeds * 16 * 186.0 / 249);
  EXPECT_NEAR(early[0], kSeeds * 32, 4 * deviation);
}

}  // namespace
}  // namespace pith
