// Ladder: rows are those of the two codecs, in order, whatever their steps; attention over both.

#include "methods/codecs/ladder/ladder.h"

#include <gtest/gtest.h>

#include <random>

#include "machine.h"
#include "methods/codecs/ladder/ladder_rows.h"
#include "pith/error.h"
#include "rows/cpu/test_coded_rows.h"

namespace pith {
namespace {

using test::decoded;
using test::Machine;
using test::normals;

constexpr size_t kDim = 64, kStep = LadderRows::kStep;

std::unique_ptr<Codec> codec_of(const std::string& text, Side side) {
  const PolicyPart part = *Policy::parse("exact+" + text).rules.front().key_codec;
  const CodecRow& row = codec_row(part.name);
  return row.make(row.read(part), side);
}

std::unique_ptr<CodedRows> make(const Machine& machine, const std::string& text, Side side) {
  RowsRequest request;
  request.side = side;
  request.dim = kDim;
  return codec_of(text, side)->make_rows(machine.context, request);
}

TEST(Ladder, NewRowsAreTheFirstCodecsAndOldOnesTheSecondsOfThose) {
  for (size_t count : {1, 100, 163, 164, 165, 500}) {
    const Machine machine;
    const auto rows = make(machine, "ladder(new=int8,old=int4,rows=100)", Side::kKeys);
    const auto x = normals(count * kDim, 1);
    rows->append(x.data(), kDim, count);
    ASSERT_EQ(rows->rows(), count);
    const auto int8 = make(machine, "int8", Side::kKeys);
    int8->append(x.data(), kDim, count);
    const auto young = decoded(*int8);
    const auto int4 = make(machine, "int4", Side::kKeys);
    int4->append(young.data(), kDim, count);
    const auto aged = decoded(*int4);
    // As many whole steps have aged as leave at least 100 rows.
    const size_t old_rows = count < 100 + kStep ? 0 : (count - 100) / kStep * kStep;
    const auto got = decoded(*rows);
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], i < old_rows * kDim ? aged[i] : young[i]) << count << " row " << i / kDim;
    EXPECT_EQ(rows->payload_bytes() + rows->metadata_bytes(),
              old_rows * 36 + (count - old_rows) * 68);
  }
}

TEST(Ladder, ScoresAndSumsAreThoseOfTheDecodedRows) {
  const size_t count = 300, queries = 3, first = 20, n = 270;
  const auto x = normals(count * kDim, 2), q = normals(queries * kDim, 3);
  const Machine machine;
  const std::string policy = "ladder(new=turboquant(bits=4),old=qjl(residual=2,m=64),rows=64)";
  const auto keys = make(machine, policy, Side::kKeys);
  const auto values =
      make(machine, "ladder(new=int8(hadamard=true),old=turboquant,rows=64)", Side::kValues);
  keys->append(x.data(), kDim, count);
  values->append(x.data(), kDim, count);
  const auto k = decoded(*keys), v = decoded(*values);
  std::vector<float> prepared(keys->prepared_size(queries)), got(queries * n);
  keys->prepare(prepared.data(), q.data(), queries);
  keys->scores(got.data(), n, q.data(), prepared.data(), queries, first, n, 0.5f);
  std::vector<float> sums(queries * values->accumulator_width()), out(queries * kDim);
  values->accumulate(sums.data(), got.data(), n, queries, first, n);
  values->finish(out.data(), sums.data(), queries);
  for (size_t m = 0; m < queries; ++m) {
    std::vector<double> expected(kDim);
    for (size_t t = 0; t < n; ++t) {
      double score = 0;
      for (size_t c = 0; c < kDim; ++c) {
        score += double{q[m * kDim + c]} * k[(first + t) * kDim + c] / 2;
        expected[c] += double{got[m * n + t]} * v[(first + t) * kDim + c];
      }
      ASSERT_NEAR(got[m * n + t], score, 2e-3) << t;
    }
    for (size_t c = 0; c < kDim; ++c) ASSERT_NEAR(out[m * kDim + c], expected[c], 2e-2);
  }
}

TEST(Ladder, CompactionKeepsRowsAndAgesGoOn) {
  std::mt19937 random(4);
  const Machine machine;
  const auto rows = make(machine, "ladder(new=f32,old=f32,rows=50)", Side::kKeys);
  std::vector<float> expected;
  for (uint32_t round = 0; round < 12; ++round) {
    const size_t count = random() % 130;
    const auto x = normals(count * kDim, 30 + round);
    rows->append(x.data(), kDim, count);
    expected.insert(expected.end(), x.begin(), x.end());
    ASSERT_EQ(decoded(*rows), expected);
    std::vector<uint32_t> kept;
    std::vector<float> left;
    for (uint32_t t = 0; t < rows->rows(); ++t) {
      if (random() % 3 == 0 && round != 4) continue;
      kept.push_back(t);
      left.insert(left.end(), expected.begin() + t * kDim, expected.begin() + (t + 1) * kDim);
    }
    const auto copy = rows->clone();
    rows->keep(kept);
    ASSERT_EQ(decoded(*copy), expected);
    expected = left;
    ASSERT_EQ(decoded(*rows), expected);
  }
}

TEST(Ladder, NestedSettingsParseBackAndMisfitsAreRefused) {
  const std::string text = "exact+ladder(new=int4(center=64),old=kivi(bits=2),rows=9)";
  const Policy policy = Policy::parse(text);
  EXPECT_EQ(policy.rules.front().key_codec->parameters.at("new"), "int4(center=64)");
  EXPECT_EQ(Policy::parse(policy.to_string()).to_string(), policy.to_string());
  for (const char* bad : {"ladder(new=ladder)", "ladder(old=nosuch)", "ladder(old=int4(x=1))",
                          "ladder(new=int8,old=kvquant)", "ladder(rows=0)", "ladder(new=local)"})
    EXPECT_THROW(codec_of(bad, Side::kKeys), Error) << bad;
}

}  // namespace
}  // namespace pith
