// Selections of heavy rows of one place, which many blocks make, beside those of two places, which
// a block per head makes: the same rows stay and leave, in the same order.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "harness.h"
#include "select/cuda/heavy.h"

namespace pith::cuda {
namespace {

struct Case {
  DType dtype;
  int dim;
  HeavySizes sizes;
  int selections;
};

constexpr int kHeads = 3;

void expect_same(const Case& c) {
  const int rows = static_cast<int>(c.sizes.budget + c.sizes.interval * c.selections);
  const auto count = static_cast<size_t>(kHeads * rows);
  MemoryCounter counter;
  std::mt19937 random(5);
  std::normal_distribution<float> draw;
  std::vector<uint16_t> numbers(count * static_cast<size_t>(c.dim));
  for (uint16_t& x : numbers) x = from_float(c.dtype, draw(random));
  std::vector<float> weights(count);
  for (float& x : weights) x = std::floor(std::exp(2 * draw(random)) * 4);  // some are equal
  const auto keys = to_device(counter, numbers);
  const auto mass = to_device(counter, weights);

  struct Room {
    DeviceArray<uint32_t> keys;
    DeviceArray<int32_t> kept;
    DeviceArray<float> sums;
  };
  std::vector<Room> rooms;
  std::vector<HeavyCall> calls;
  for (int i = 0; i < 3; ++i) {
    const size_t sums = kHeads * kSelectSums * static_cast<size_t>(c.dim);
    rooms.push_back({to_device(counter, std::vector<uint32_t>(count)),
                     to_device(counter, std::vector<int32_t>(count, -1)),
                     to_device(counter, std::vector<float>(sums))});
    HeavyCall call;
    call.rows.dtype = c.dtype;
    call.rows.heads = kHeads;
    call.rows.dim = c.dim;
    call.rows.k = keys.data();
    call.rows.head_stride = static_cast<size_t>(rows) * static_cast<size_t>(c.dim);
    call.rows.mass = mass.data();
    call.rows.side_stride = static_cast<size_t>(rows);
    call.rows.rows = rows;
    call.space.keys = rooms.back().keys.data();
    call.space.kept = rooms.back().kept.data();
    call.space.sums = rooms.back().sums.data();
    call.space.stride = static_cast<size_t>(rows);
    call.sizes = c.sizes;
    calls.push_back(call);
  }
  choose_heavy(calls[0], nullptr);
  choose_heavy(std::span(calls).subspan(1), nullptr);
  const auto alone = to_host(rooms[0].kept);
  EXPECT_EQ(alone, to_host(rooms[1].kept));
  EXPECT_EQ(alone, to_host(rooms[2].kept));
  for (int h = 0; h < kHeads; ++h) {
    std::vector<int32_t> own(alone.begin() + h * rows, alone.begin() + (h + 1) * rows);
    EXPECT_TRUE(std::ranges::is_sorted(own.begin(), own.begin() + c.sizes.budget));
    std::ranges::sort(own);
    std::vector<int32_t> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(own, all) << "head " << h;
  }
}

TEST(CudaHeavyChoice, ManyBlocksSelectAsOneDoes) {
  PITH_NEEDS_GPU();
  const Case cases[] = {{DType::kF16, 64, {.budget = 40, .interval = 16, .by_key = 10}, 5},
                        {DType::kBF16, 128, {.budget = 70, .interval = 33, .by_key = 70}, 2},
                        {DType::kF16, 256, {.budget = 24, .interval = 8, .by_key = 1}, 3},
                        {DType::kBF16, 64, {.budget = 1500, .interval = 300, .by_key = 200}, 2}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.dim);
    expect_same(c);
  }
}

}  // namespace
}  // namespace pith::cuda
