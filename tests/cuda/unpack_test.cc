// Rows coded block by block into heads with room between them, and back: every number is within
// half a step of where it was, and the room is left alone.

#include "harness.h"
#include "rows/cuda/grouped_code.h"

namespace pith::cuda {
namespace {

struct Kind {
  GroupedCodec codec;
  int bits;
  bool channel_keys, minima, rotated = false;
};
constexpr Kind kKinds[] = {{GroupedCodec::kKivi2, 2, true, true},
                           {GroupedCodec::kKivi4, 4, true, true},
                           {GroupedCodec::kInt4, 4, false, false},
                           {GroupedCodec::kInt8, 8, false, false},
                           {GroupedCodec::kRotatedInt4, 4, false, false, true},
                           {GroupedCodec::kRotatedInt8, 8, false, false, true}};

/// The step of the group that number (row, channel) of a head is coded in.
double step_of(const Kind& kind, bool keys, const float* x, int row, int channel, int dim) {
  float least = INFINITY, most = -INFINITY;
  for (int i = 0; i < 32; ++i) {
    const float v = keys && kind.channel_keys ? x[(row / 32 * 32 + i) * dim + channel]
                                              : x[row * dim + channel / 32 * 32 + i];
    least = std::min(least, v);
    most = std::max(most, v);
  }
  return kind.minima ? (most - least) / ((1 << kind.bits) - 1)
                     : std::max(-least, most) / ((1 << (kind.bits - 1)) - 1);
}

void check_round_trip(const Kind& kind, bool keys, DType dtype, int dim) {
  constexpr int kHeads = 3, kBlocks = 5, kRoom = 7;
  MemoryCounter counter;
  const auto bytes = grouped_bytes(kind.codec, dim);
  const auto x = normals(static_cast<size_t>(kHeads) * kBlocks * 32 * dim, dtype, 21);
  const auto device = to_device(counter, x);
  const auto codes =
      to_device(counter, std::vector<uint8_t>(kHeads * kRoom * bytes.key_codes, uint8_t{0xAB}));
  const auto side =
      to_device(counter, std::vector<uint8_t>(kHeads * kRoom * bytes.key_side, uint8_t{0xAB}));
  const auto head_stride = static_cast<size_t>(kBlocks) * 32 * dim;
  for (const auto& [first, count] : {std::pair{0, 2}, std::pair{2, 1}, std::pair{3, 2}}) {
    const CodeJob job{.x = device.data() + first * 32 * dim,
                      .head_stride = head_stride,
                      .codes = codes.data() + first * bytes.key_codes,
                      .side = side.data() + first * bytes.key_side,
                      .block_stride = kRoom,
                      .positions = {}};
    const CodeBatch batch{dtype, kHeads, count * 32, dim};
    const std::span<const CodeJob> one(&job, 1), none;
    code_grouped(kind.codec, batch, keys ? one : none, keys ? none : one, nullptr);
  }
  // Blocks 1 to 4 come back, into heads with a block of room.
  const size_t out_stride = head_stride;
  const auto out = to_device(counter, std::vector<uint16_t>(kHeads * out_stride, uint16_t{0x7FFF}));
  const UnpackRowsCall call{codes.data() + bytes.key_codes,
                            side.data() + bytes.key_side,
                            kRoom,
                            kHeads,
                            kBlocks - 1,
                            dim,
                            dtype,
                            out.data(),
                            out_stride};
  (keys ? unpack_grouped_keys : unpack_grouped_values)(kind.codec, {&call, 1}, nullptr);
  const auto got = to_host(out);
  // Errors are bounded where rows were coded.
  const auto as_coded = [&](std::vector<float> rows) {
    return kind.rotated ? rotated(std::move(rows), dim) : rows;
  };
  const auto numbers = as_coded(widen(x, dtype)), back = as_coded(widen(got, dtype));
  const double rounding = dtype == DType::kBF16 ? 0x1p-7 : 0x1p-9;
  for (int h = 0; h < kHeads; ++h) {
    const float* head = numbers.data() + h * head_stride;
    for (int row = 32; row < kBlocks * 32; ++row) {
      for (int d = 0; d < dim; ++d) {
        const double want = head[row * dim + d];
        const double x_got = back[h * out_stride + (row - 32) * dim + d];
        const double bound = 0.502 * step_of(kind, keys, head, row, d, dim) + rounding * 4;
        ASSERT_NEAR(x_got, want, bound) << "head " << h << ", row " << row << ", channel " << d;
      }
    }
    EXPECT_EQ(got[h * out_stride + (kBlocks - 1) * 32 * dim], 0x7FFF);
  }
  const auto raw = to_host(codes);
  for (int h = 0; h < kHeads; ++h) {
    EXPECT_EQ(raw[(h * kRoom + kBlocks) * bytes.key_codes], 0xAB);
  }
}

TEST(CudaUnpack, GivesBackWhatWasCoded) {
  PITH_NEEDS_GPU();
  for (const Kind& kind : kKinds) {
    for (const bool keys : {false, true}) {
      for (const int dim : {64, 128}) {
        check_round_trip(kind, keys, DType::kF16, dim);
        check_round_trip(kind, keys, DType::kBF16, dim);
      }
    }
  }
}

}  // namespace
}  // namespace pith::cuda
