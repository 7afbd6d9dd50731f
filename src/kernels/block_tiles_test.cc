// Weights in tiles, on the host: what a GPU's warp does with them, lane by lane, against the blocks
// that they were made from.

#include "kernels/block_tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "kernels/block_products.h"
#include "kernels/test_block_types.h"

namespace pith {
namespace {

/// Rows of random blocks, and their numbers as the CPU decodes them.
struct Blocks {
  Blocks(WeightType type, size_t out, size_t in) : bytes(out * row_bytes(type, in)) {
    std::mt19937 random(static_cast<uint32_t>(out + in));
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    for (size_t at = 0; at < bytes.size(); at += block_bytes(type)) {
      for (const uint8_t offset : scale_offsets(type)) {
        // Subnormal ones and negative ones too.
        const float scale = (static_cast<float>(random() % 2001) - 1000) * 1e-7f;
        const uint16_t half = f32_to_f16(random() % 2 == 0 ? scale : 1e3f * scale);
        std::memcpy(bytes.data() + at + offset, &half, 2);
      }
    }
    numbers.resize(out * in);
    block_kernels(kernels_for("scalar")).decode(numbers.data(), bytes.data(), type, out * in);
  }
  std::vector<uint8_t> bytes;
  std::vector<float> numbers;
};

/// The matrix's tiles, made by the lanes of a warp.
template <class F>
std::vector<uint8_t> tiles_of(const Blocks& blocks, const TileCounts& n, size_t out, size_t in) {
  std::vector<uint8_t> tiles(n.bytes(), 0xEE);
  std::vector<int> written(n.bytes());
  for (size_t tile = 0; tile < n.tiles; ++tile) {
    for (size_t step = 0; step < n.steps; ++step) {
      const size_t at = (tile * n.steps + step) * n.step_bytes;
      for (int lane = 0; lane < kTileLanes; ++lane) {
        const auto row = [&](size_t r) {
          return r < out ? blocks.bytes.data() + r * (in / F::kBlock * F::kBytes) : nullptr;
        };
        const size_t first = tile * kTileRows + static_cast<size_t>(lane / 4);
        const uint8_t* const rows[2] = {row(first), row(first + 8)};
        LaneStep<F> s;
        pack_step(s, rows, lane, step * F::kStep, in);
        visit_words(s, lane, [&](uint32_t word, int byte) {
          std::memcpy(tiles.data() + at + byte, &word, 4);
          written[at + static_cast<size_t>(byte)] += 1;
        });
      }
    }
  }
  // Lanes share words where the format says so, and leave none out.
  for (size_t at = 0; at < written.size(); at += 4) EXPECT_GE(written[at], 1) << at;
  return tiles;
}

/// The loads of the 32 lanes of a warp in a step.
template <class F>
struct Warp {
  explicit Warp(const uint8_t* step) {
    for (int lane = 0; lane < kTileLanes; ++lane) {
      visit_words(steps[lane], lane,
                  [&](uint32_t& word, int byte) { std::memcpy(&word, step + byte, 4); });
    }
    for (int lane = 0; lane < kTileLanes; ++lane) {
      uint32_t halves[4] = {};
      if constexpr (F::kSides == BlockSides::kSixBits) {
        for (int c = 0; c < 4; ++c) halves[c] = shared_half(steps[lane / 4 * 4 + c]);
      }
      unpack_sides(sides[lane], steps[lane], halves);
    }
  }
  /// Input `input` of row `row` of the tile: its code and its scale's group.
  int code(int row, int input) const {
    const int e = input % 32, lane = row % 8 * 4 + e % 16 / 4;
    const uint32_t four = codes_of(steps[lane], input / 32, row / 8 + e / 16 * 2);
    const auto byte = static_cast<uint8_t>(four >> (8 * (e % 4)));
    return F::kSigned ? static_cast<int8_t>(byte) : byte - F::kZero;
  }
  float scale(int row, int sub) const {
    return sides[row % 8 * 4 + sub % 4].scale[sub / 4][row / 8];
  }
  float low(int row, int sub) const { return sides[row % 8 * 4 + sub % 4].low[sub / 4][row / 8]; }

  LaneStep<F> steps[kTileLanes];
  LaneSides<F> sides[kTileLanes];
};

class TilesTest : public testing::TestWithParam<WeightType> {};

INSTANTIATE_TEST_SUITE_P(Types, TilesTest, testing::ValuesIn(block_types()),
                         [](const auto& p) { return std::string(to_string(p.param)); });

TEST_P(TilesTest, HoldTheBlocksNumbers) {
  const size_t block = block_elements(GetParam());
  for (const size_t out : {1, 8, 16, 35}) {
    for (const size_t in : {block, 3 * block, size_t{1024}}) {
      with_block_type(GetParam(), [&]<WeightType kType> {
        using F = TileFormat<kType>;
        const Blocks blocks(kType, out, in);
        const TileCounts n = tile_counts(kType, out, in);
        const auto tiles = tiles_of<F>(blocks, n, out, in);
        for (size_t tile = 0; tile < n.tiles; ++tile) {
          for (size_t step = 0; step < n.steps; ++step) {
            const Warp<F> warp(tiles.data() + (tile * n.steps + step) * n.step_bytes);
            for (int r = 0; r < kTileRows; ++r) {
              for (int i = 0; i < F::kStep; ++i) {
                const size_t row = tile * kTileRows + static_cast<size_t>(r);
                const size_t input = step * F::kStep + static_cast<size_t>(i);
                const int sub = i / F::kSub;
                volatile float number = warp.scale(r, sub) * static_cast<float>(warp.code(r, i));
                if (F::kMinimum) number = number + warp.low(r, sub);
                const bool there = row < out && input < in;
                ASSERT_EQ(number, there ? blocks.numbers[row * in + input] : 0)
                    << out << " x " << in << ": " << row << ", " << input;
              }
            }
          }
        }
      });
    }
  }
}

TEST_P(TilesTest, TakeTheBytesOfTheirBlocks) {
  const WeightType type = GetParam();
  const size_t file = 64 * row_bytes(type, 4096), tiles = tile_counts(type, 64, 4096).bytes();
  const double more = type == WeightType::kQ3K     ? 114.0 / 110
                      : type == WeightType::kIq4Xs ? 138.0 / 136
                                                   : 1;
  EXPECT_EQ(static_cast<double>(tiles), std::round(static_cast<double>(file) * more));
}

}  // namespace
}  // namespace pith
