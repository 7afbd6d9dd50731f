// Spans of heads side by side that are written once: what the device has of them, and the bytes
// that a token's step brings to it.

#include "cache/cuda/step_spans.h"

#include "cache/cuda/device_cache.h"
#include "harness.h"

namespace pith::cuda {
namespace {

constexpr size_t kHeads = 5, kApart = 3;

const void* address(uint64_t at) { return reinterpret_cast<const void*>(at); }

/// Odd numbers everywhere, and addresses beyond 32 bits.
DeviceSpan span_of(size_t head, size_t which, uint64_t step) {
  DeviceSpan span;
  const uint64_t begin = (uint64_t{which + 1} << 40) + 64;
  span.keys = address(begin + head * step);
  span.values = address(2 * begin + head * step);
  span.key_side = address(3 * begin + head * step / 2);
  span.value_side = which == 1 ? nullptr : address(5 * begin + head * 12);
  span.log_weights = reinterpret_cast<const float*>(7 * begin + head * 4);
  span.log_weight = -0.5f * static_cast<float>(which);
  span.rows = static_cast<int32_t>(17 + which);
  span.row_stride = 64;
  span.coded = which == 2;
  span.position = 99;
  span.group_blocks = 3;
  return span;
}

void expect_same(const DeviceSpan& a, const DeviceSpan& b) {
  EXPECT_EQ(a.keys, b.keys);
  EXPECT_EQ(a.values, b.values);
  EXPECT_EQ(a.key_side, b.key_side);
  EXPECT_EQ(a.value_side, b.value_side);
  EXPECT_EQ(a.log_weights, b.log_weights);
  EXPECT_EQ(a.log_weight, b.log_weight);
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.row_stride, b.row_stride);
  EXPECT_EQ(a.coded, b.coded);
  EXPECT_EQ(a.position, b.position);
  EXPECT_EQ(a.group_blocks, b.group_blocks);
}

class CudaStepSpans : public testing::Test {
 protected:
  std::vector<DeviceSpan> fetched(const StepSpans& spans, size_t count) {
    upload_all(std::array{spans.upload()}, nullptr);
    std::vector<DeviceSpan> all(count);
    check(
        cudaMemcpy(all.data(), spans.device(), count * sizeof(DeviceSpan), cudaMemcpyDeviceToHost),
        "spans");
    return all;
  }
  MemoryCounter memory_{0, true};
};

TEST_F(CudaStepSpans, AreEachHeadsOnTheDevice) {
  PITH_NEEDS_GPU();
  const size_t all = 1 + 40 * kHeads * kApart;
  StepSpans spans(memory_, all, nullptr);
  spans.mark_elsewhere(0);
  // Steps of 16 GiB and more, backwards and of odd bytes are no 32-bit numbers of fours.
  const uint64_t kSteps[] = {256, 0, uint64_t{3} << 33, uint64_t{1} << 34, uint64_t(-256), 6};
  for (int step = 0; step < 2; ++step) {
    spans.begin();
    std::vector<DeviceSpan> wanted(all);
    wanted[0].rows = DeviceSpan::kElsewhere;
    for (size_t group = 0; group < 40; ++group)
      for (size_t which = 0; which < kApart - 1; ++which) {
        const uint64_t apart = kSteps[(group + static_cast<size_t>(step)) % std::size(kSteps)];
        const size_t at = 1 + group * kHeads * kApart + which, heads = group % 7 == 3 ? 1 : kHeads;
        const auto of = [&](size_t head) { return span_of(head, which, apart); };
        spans.add({at, kApart, heads}, group % 5 != 4, of);
        for (size_t g = 0; g < heads; ++g) wanted[at + g * kApart] = of(g);
      }
    const auto got = fetched(spans, all), read = spans.read(1, all - 1);
    for (size_t i = 0; i < all; ++i) {
      SCOPED_TRACE(i);
      expect_same(got[i], wanted[i]);
      if (i > 0) expect_same(read[i - 1], wanted[i]);
    }
  }
}

/// Of a token of a session with 8 layers of `heads` KV heads.
size_t bytes_of_token(const std::string& policy, int heads) {
  MemoryCounter memory;
  const CacheShape shape{8, 2 * heads, heads, 64, {}, 1024, 1};
  DeviceCache cache(memory, shape, Policy::parse(policy), 7, nullptr, {});
  for (int i = 0; i < 3; ++i) {
    for (int l = 0; l < shape.layers; ++l) {
      const RowTarget rows = cache.chunks().begin_chunk(l, 50);
      for (void* side : {rows.k, rows.v})
        for (size_t g = 0; g < static_cast<size_t>(heads); ++g) {
          const size_t at = g * rows.head_stride + static_cast<size_t>(rows.row) * 64;
          check(cudaMemsetAsync(static_cast<uint16_t*>(side) + at, 0, 50 * 64 * 2, nullptr),
                "rows");
        }
      cache.chunks().append_chunk(l, 50);
    }
  }
  cache.steps().begin_token();
  size_t bytes = 0;
  for (const Upload& upload : cache.steps().token_uploads()) bytes += upload.bytes;
  check(cudaStreamSynchronize(nullptr), "a cache");
  return bytes;
}

// Before, each head's span had 72 bytes and each layer's note 136.
TEST(CudaStepBytes, AreThoseOfOneHeadWhereHeadsAreEqual) {
  PITH_NEEDS_GPU();
  const size_t once = 8 * sizeof(Spread);
  for (const int heads : {2, 8}) {
    EXPECT_EQ(bytes_of_token("exact", heads), once);
    EXPECT_EQ(bytes_of_token("exact+int4,window=32", heads), 3 * once);
    EXPECT_EQ(bytes_of_token("express(heavy=0,s=32)+int4,window=32", heads), 3 * once);
  }
  // Of each head, sink and window of all of them.
  EXPECT_EQ(bytes_of_token("uniform(rate=0.5)+int4,window=32", 2), (2 + 2 * 2) * once);
}

}  // namespace
}  // namespace pith::cuda
