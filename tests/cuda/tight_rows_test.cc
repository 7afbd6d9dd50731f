// Tight rows (rows/tight_rows.h) coded on the GPU against the CPU's: the same scales, and the
// same levels but where a sum in another order moves a threshold past a number.

#include <cmath>

#include "harness.h"
#include "machine.h"
#include "methods/registry_cuda.h"
#include "policy/registry.h"

namespace pith::cuda {
namespace {

constexpr int kHeads = 2, kRows = 256;
constexpr uint64_t kSeed = 3;
constexpr uint32_t kLayer = 5;

/// Rows of one side [G, rows, D] as the GPU codes them and reads them back.
std::vector<float> on_gpu(const PolicyPart& part, const std::vector<uint16_t>& x, int dim,
                          bool keys) {
  MemoryCounter counter;
  auto codec = find_device_codec(part.name)->make(codec_row(part.name).read(part));
  codec = codec->with_tables({&counter, nullptr, dim, kHeads, kLayer, kSeed, 0, nullptr});
  const GroupedBytes bytes = codec->block_bytes(dim);
  const size_t blocks = kRows / 32, stride = static_cast<size_t>(kRows) * dim;
  const auto device = to_device(counter, x);
  const auto make = [&](size_t block) {
    return DeviceArray<char>(counter, MemoryKind::kPayload, kHeads * blocks * block, nullptr);
  };
  const auto codes = make(keys ? bytes.key_codes : bytes.value_codes),
             side = make(keys ? bytes.key_side : bytes.value_side);
  const CodeJob job{device.data(), stride, codes.data(), side.data(), blocks, 0};
  const std::span<const CodeJob> one(&job, 1), none;
  codec->code({DType::kF16, kHeads, kRows, dim}, keys ? one : none, keys ? none : one, nullptr);
  const DeviceArray<uint16_t> out(counter, MemoryKind::kScratch, x.size(), nullptr);
  UnpackRowsCall call;
  call.codes = codes.data();
  call.side = side.data();
  call.block_stride = blocks;
  call.heads = kHeads;
  call.blocks = static_cast<int>(blocks);
  call.head_dim = dim;
  call.dtype = DType::kF16;
  call.out = out.data();
  call.head_stride = stride;
  keys ? codec->unpack_keys(call, nullptr) : codec->unpack_values(call, nullptr);
  return widen(to_host(out), DType::kF16);
}

std::vector<float> on_cpu(const PolicyPart& part, const std::vector<uint16_t>& x, int dim,
                          bool keys) {
  const test::Machine machine;
  const CodecRow& row = codec_row(part.name);
  const auto codec = row.make(row.read(part), keys ? Side::kKeys : Side::kValues);
  const auto numbers = widen(x, DType::kF16);
  std::vector<float> out(x.size());
  for (int g = 0; g < kHeads; ++g) {
    RowsRequest request;
    request.dim = static_cast<size_t>(dim);
    request.seed = kSeed;
    request.layer = kLayer;
    const auto rows = codec->make_rows(machine.context, request);
    const size_t at = static_cast<size_t>(g) * kRows * dim;
    rows->append(numbers.data() + at, request.dim, kRows);
    rows->decode(out.data() + at, 0, kRows);
  }
  return out;
}

TEST(CudaTightRows, AreTheCpus) {
  PITH_NEEDS_GPU();
  for (const char* text : {"qjl", "qjl(center=0)", "qjl(residual=1,center=64)",
                           "qjl(residual=2,center=32)", "qjl(residual=4)"}) {
    for (const int dim : {64, 128}) {
      for (const bool keys : {true, false}) {
        SCOPED_TRACE(std::string(text) + (keys ? " keys" : " values") + ", head_dim " +
                     std::to_string(dim));
        const PolicyPart part =
            *Policy::parse(std::string("exact+") + text).rules.front().key_codec;
        auto x = normals(static_cast<size_t>(kHeads) * kRows * dim, DType::kF16, 71);
        std::fill_n(x.begin() + dim, dim, uint16_t{0});  // a row of zeros
        const auto got = on_gpu(part, x, dim, keys), want = on_cpu(part, x, dim, keys);
        int others = 0;
        for (int row = 0; row < kHeads * kRows; ++row) {
          double error = 0, square = 0;
          for (int i = row * dim; i < (row + 1) * dim; ++i) {
            error += std::pow(double{got[i]} - want[i], 2);
            square += std::pow(double{want[i]}, 2);
          }
          others += error > 1e-6 * square;
          EXPECT_LE(error, 0.03 * square) << row;
        }
        EXPECT_LE(others, kHeads * kRows / 50);
      }
    }
  }
}

}  // namespace
}  // namespace pith::cuda
