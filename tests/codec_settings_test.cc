// Settings of codecs that change how rows are stored, by the contract's terms: chunks change
// nothing, the ledger is what the allocator saw, compositions attend to the rows they report.

#include <gtest/gtest.h>

#include "cache_harness.h"
#include "pith/error.h"

namespace pith {
namespace {

using test::Harness;
using test::Rows;
using test::Shape;

constexpr size_t kRows = 300;

const char* const kSettings[] = {
    "kivi(center=32)",
    "kivi(bits=4,center=64,hadamard=true)",
    "int4(center=64)",
    "int8(center=128)",
    "qjl(paper=true,center=64)",
    "qjl(paper=true,center=32,outliers=0)",
    "gear(rank=3,outliers=0,rows=32)",
    "kvquant(bits=2,calibrate=40)",
    "k:kvtc(calibrate=33)+v:kvtc(bits=3,calibrate=40)",
    "qjl(residual=2,m=64,center=32)",
    "turboquant(bits=3,center=64)",
    "ladder(new=int8,old=turboquant(center=32),rows=32)",
    "int4(hadamard=true,center=32,pre_rope=true)",
    "kivi(center=40,pre_rope=true)",
    "turboquant(bits=3,center=33,pre_rope=true)",
    "qjl(pre_rope=true)",
    "gear(rows=32,center=48,pre_rope=true)",
    "k:int8(center=500,pre_rope=true)+v:turboquant",
    "ladder(new=int8(center=32,pre_rope=true),old=turboquant(center=64,pre_rope=true),rows=32)"};
const char* const kSelectors[] = {"exact", "uniform(budget=64)", "balancekv(budget=64,heavy=0)"};

class CodecSettings : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  std::string policy() const {
    return std::string(std::get<0>(GetParam())) + "+" + std::get<1>(GetParam()) +
           ",sink=2,window=16";
  }
  Shape shape_;
};

TEST_P(CodecSettings, ChunkingDoesNotChangeTheRows) {
  const Rows rows(shape_, kRows, 3);
  Harness whole(shape_, policy());
  whole.append(rows, 0, kRows, kRows);
  for (size_t chunk : {1, 7, 64}) {
    Harness chunked(shape_, policy());
    chunked.append(rows, 0, kRows, chunk);
    for (int g = 0; g < shape_.kv_heads; ++g)
      EXPECT_EQ(whole.cache().rows(0, g).positions, chunked.cache().rows(0, g).positions);
    EXPECT_EQ(whole.attend(rows, 0, 1), chunked.attend(rows, 0, 1)) << "codes differ";
  }
}

TEST_P(CodecSettings, LedgerIsWhatTheAllocatorSawAndWithinTheEstimate) {
  const Rows rows(shape_, kRows, 6);
  Harness h(shape_, policy());
  for (size_t t = 0; t < kRows; t += 13) {
    h.step(rows, t, std::min(t + 13, kRows), 13);
    const Ledger ledger = h.cache().ledger();
    const size_t counted = h.memory().bytes(MemoryKind::kPayload) +
                           h.memory().bytes(MemoryKind::kMetadata) +
                           h.memory().bytes(MemoryKind::kShared);
    ASSERT_EQ(ledger.cache_bytes() + ledger.slack, counted);
    EXPECT_LE(ledger.cache_bytes(), h.cache().estimate(std::min(t + 13, kRows)).cache_bytes());
  }
}

TEST_P(CodecSettings, AttendsToTheRowsItReports) {
  const Rows rows(shape_, kRows + 3, 2);
  const auto error = [&](const std::string& policy) {
    Harness h(shape_, policy);
    h.step(rows, 0, kRows, 40);
    const auto held = test::held_rows(h.cache(), shape_);
    const auto expected = test::oracle_all(shape_, rows, kRows, kRows + 3, held);
    return test::relative_error(h.attend(rows, kRows, kRows + 3), expected);
  };
  EXPECT_LT(error(policy()),
            3 * error("exact+" + std::string(std::get<1>(GetParam())) + ",sink=2,window=16"));
}

// Rows coded before RoPE are read as well as those after it: as close to exact attention over rows
// held, for a token at a time and many at once.
TEST(KeysBeforeRope, AttendAsCloselyAsAfterIt) {
  const Shape shape;
  const Rows rows(shape, kRows + 40, 2);
  for (const std::string selector : kSelectors)
    for (const size_t queries : {1, 40}) {
      const auto error = [&](const std::string& codec) {
        Harness h(shape, selector + "+" + codec + ",sink=2,window=16");
        h.step(rows, 0, kRows, 40);
        const auto held = test::held_rows(h.cache(), shape);
        const auto expected = test::oracle_all(shape, rows, kRows, kRows + queries, held);
        return test::relative_error(h.attend(rows, kRows, kRows + queries), expected);
      };
      const double after = error("int8");
      EXPECT_LT(error("int8(center=32,pre_rope=true)"), 2 * after) << selector;
      EXPECT_LT(error("int8(hadamard=true,center=500,pre_rope=true)"), 2 * after) << selector;
    }
}

INSTANTIATE_TEST_SUITE_P(All, CodecSettings,
                         testing::Combine(testing::ValuesIn(kSelectors),
                                          testing::ValuesIn(kSettings)),
                         [](const auto& i) { return "n" + std::to_string(i.index); });

}  // namespace
}  // namespace pith
