// Bounds of what stores allocate on the CPU: codecs say how many buffers they grow, and nobody
// assumes it.

#include "policy/host_room.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/allocation.h"
#include "core/philox.h"
#include "rows/cpu/compaction.h"

namespace pith {
namespace {

constexpr size_t kDim = 64;
constexpr size_t kBuffers = 40;  // of the codec below; more than any of ours has

/// Rows of `kBuffers` records of `record` bytes, each in a buffer of its own.
class ScatteredRows final : public CodedRows {
 public:
  ScatteredRows(const Context& context, size_t record)
      : CodedRows(context.kernels, kDim), record_(record) {
    for (size_t i = 0; i < kBuffers; ++i) parts_.emplace_back(context.memory, MemoryKind::kPayload);
  }
  size_t rows() const override { return parts_[0].size() / record_; }
  void append(const float* /*x*/, size_t /*stride*/, size_t count) override {
    const size_t after = (rows() + count) * record_;
    for (auto& part : parts_) part.resize(after);
  }
  void keep(std::span<const uint32_t> kept) override {
    for (auto& part : parts_) keep_records(part, record_, kept);
  }
  void decode(float* out, size_t /*first*/, size_t count) const override {
    std::fill_n(out, count * kDim, 0.0f);
  }
  std::unique_ptr<CodedRows> clone() const override {
    return std::make_unique<ScatteredRows>(*this);
  }
  void archive(Archive& a) override {
    for (auto& part : parts_) a.numbers(part, rows() * record_);
  }
  size_t payload_bytes() const override { return kBuffers * parts_[0].size(); }
  size_t allocated_bytes() const override {
    return std::accumulate(parts_.begin(), parts_.end(), size_t{0},
                           [](size_t sum, const auto& p) { return sum + p.capacity_bytes(); });
  }

 private:
  size_t record_;
  std::vector<Array<uint8_t>> parts_;
};

class ScatteredCodec final : public Codec {
 public:
  explicit ScatteredCodec(size_t record) : record_(record) {}
  double bytes_per_row(size_t) const override { return static_cast<double>(kBuffers * record_); }
  size_t buffers() const override { return kBuffers; }
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& /*request*/) const override {
    return std::make_unique<ScatteredRows>(context, record_);
  }

 private:
  size_t record_;
};

/// `rule` of two heads, with that codec on both sides.
CohortPolicy scattered(const std::string& rule, size_t record) {
  const CacheShape shape{1, 2, 2, kDim, {}, 4000};
  CohortPolicy c = place_rule(Policy::parse(rule).rules[0], {shape, 0, {0, 1}, 0, Device::kCpu});
  c.keys.sizes = c.values.sizes = std::make_shared<const ScatteredCodec>(record);
  return c;
}

class Store {
 public:
  explicit Store(const CohortPolicy& c)
      : rows({pool, memory, kernels_for("")},
             {.keys = c.keys.sizes.get(), .values = c.values.sizes.get(), .dim = kDim}) {}
  void grow(size_t by, size_t apart) {
    const std::vector<float> x(by * kDim);
    std::vector<int64_t> at(by);
    for (int64_t& p : at) p = static_cast<int64_t>(next += apart);
    rows.append(
        {.k = x.data(), .v = x.data(), .stride = kDim, .count = by, .positions = at.data()});
  }

  ThreadPool pool{1};
  MemoryCounter memory;
  RowStore rows;
  size_t next = 0;
};

TEST(HostRoom, HoldsForCodecsOfManyBuffers) {
  const CohortPolicy c = scattered("exact+int4,window=0,sink=0", 1);
  Store store(c);
  for (size_t n = 1; n <= 70; ++n) {
    store.grow(1, 1);
    EXPECT_LE(store.memory.total(), most_on_host(c, {{0, n, 0}, 0, n, sizeof(uint32_t)})) << n;
  }
}

// Each buffer keeps some of its room when rows go.
TEST(HostRoom, HoldsForStoresOfManyBuffersThatHeldMore) {
  const CohortPolicy c = scattered("adakv(budget=100)+int4,window=0,sink=0", 32);
  constexpr size_t kSeen = 1000;
  const size_t share = c.selector.rule->mean_rows(kSeen), more = 180;
  ASSERT_GE(c.selector.rule->most_rows(kSeen), more);
  ASSERT_GT(2 * share, more);
  const size_t most = 2 * most_on_host(c, {{0, kSeen, 0}, 0, share, c.side_bytes});
  // One head held the more rows, then the other; both end with their share.
  Store one(c), other(c);
  one.grow(more, 2), other.grow(2 * share - more, 2);
  EXPECT_LE(one.memory.total() + other.memory.total(), most);
  std::vector<uint32_t> kept(share);
  std::iota(kept.begin(), kept.end(), 0u);
  one.rows.keep(kept), other.grow(more - share, 2);
  EXPECT_GT(one.memory.total(), other.memory.total() + 12 * 4096) << "nothing was kept: no test";
  EXPECT_LE(one.memory.total() + other.memory.total(), most);
}

// From the first rows of each codec on, and after some of them went.
TEST(HostRoom, HoldsForEveryCodec) {
  ThreadPool pool(1);
  const CacheShape shape{1, 2, 2, kDim, {}, 4000};
  const Philox random(7, 0, 0);
  std::vector<float> x(320 * kDim);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 2 * random.uniform(i) - 1;
  std::vector<std::string> forms = {
      "gear(rows=32,center=32)",          "kvquant(calibrate=40)",         "kvtc(calibrate=40)",
      "qjl(paper=true,center=32)",        "int4(center=40,pre_rope=true)", "csr(online=32)",
      "ladder(new=gear,old=kivi,rows=32)"};
  for (const CodecRow& row : codec_rows())
    if (row.info.name != "csr") forms.push_back(row.info.name);
  for (const std::string& form : forms) {
    const CohortPolicy c =
        place_rule(Policy::parse("exact+" + form).rules[0], {shape, 0, {0, 1}, 0, Device::kCpu});
    for (const Side side : {Side::kKeys, Side::kValues}) {
      SCOPED_TRACE(form + (side == Side::kKeys ? ", keys" : ", values"));
      const auto codec = (side == Side::kKeys ? c.keys : c.values).make_codec(side);
      MemoryCounter memory;
      const auto rows = codec->make_rows({pool, memory, kernels_for("")},
                                         {.side = side, .dim = kDim, .max_rows = 0});
      const auto most = [&](bool gaps) {
        return static_cast<size_t>(std::ceil(codec->most_bytes(rows->rows(), kDim, gaps)));
      };
      const size_t block = codec->block_rows();
      for (size_t n = 0; n + block <= 320; n += block) {
        rows->append(x.data() + n * kDim, kDim, block);
        ASSERT_LE(rows->allocated_bytes(), most_grown_bytes(most(false), codec->buffers())) << n;
      }
      std::vector<uint32_t> kept;
      for (uint32_t i = 0; i < rows->rows(); ++i)
        if (random.uniform(x.size() + i) < 0.8) kept.push_back(i);
      rows->keep(kept);
      EXPECT_LE(rows->allocated_bytes(), most_kept_bytes(most(true), codec->buffers()));
    }
  }
}

}  // namespace
}  // namespace pith
