// The store of dense rows on the device: rows come at the end and go at both ends, in whatever
// order, and what is held lies in one run.

#include "rows/cuda/dense_store.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "harness.h"
#include "kernels/cuda/streams.h"

namespace pith::cuda {
namespace {

constexpr size_t kHeads = 2, kDim = 8, kRowBytes = 2 * kDim;

/// A store and what it is to hold.
struct Held {
  MemoryCounter memory;
  OwnStream own;
  DenseStore rows;
  std::deque<uint16_t> want;
  uint16_t next = 0;

  explicit Held(const DenseStoreShape& shape) : rows(memory, shape, own.stream) {}
  static uint16_t number(uint16_t row, size_t head, bool value) {
    const auto x = static_cast<uint16_t>(row * kHeads + head);
    return value ? static_cast<uint16_t>(~x) : x;
  }
  /// A head's keys or values from `at` on.
  static std::byte* side(const RowTarget& at, size_t head, bool value) {
    return static_cast<std::byte*>(value ? at.v : at.k) +
           (head * at.head_stride + static_cast<size_t>(at.row) * kDim) * 2;
  }
  void append(size_t count) {
    rows.reserve_more(count);
    std::vector<uint16_t> numbers(count * kDim);
    for (size_t i = 0; i < 2 * kHeads; ++i) {
      const size_t head = i / 2;
      const bool value = i % 2 != 0;
      for (size_t n = 0; n < numbers.size(); ++n)
        numbers[n] = number(static_cast<uint16_t>(next + n / kDim), head, value);
      check_cuda(cudaMemcpyAsync(side(rows.end(), head, value), numbers.data(), count * kRowBytes,
                                 cudaMemcpyHostToDevice, own.stream));
      check_cuda(cudaStreamSynchronize(own.stream));
    }
    for (size_t i = 0; i < count; ++i) want.push_back(next++);
    rows.add(count);
  }
  void drop_front(size_t count) {
    rows.drop_front(count);
    want.erase(want.begin(), want.begin() + static_cast<ptrdiff_t>(count));
  }
  void expect_held(const DenseStore& store) const {
    ASSERT_EQ(store.rows(), want.size());
    std::vector<uint16_t> numbers(want.size() * kDim), wanted(numbers.size());
    for (size_t i = 0; i < 2 * kHeads; ++i) {
      const size_t head = i / 2;
      const bool value = i % 2 != 0;
      check_cuda(cudaMemcpyAsync(numbers.data(), side(store.begin(), head, value),
                                 want.size() * kRowBytes, cudaMemcpyDeviceToHost, own.stream));
      check_cuda(cudaStreamSynchronize(own.stream));
      for (size_t n = 0; n < wanted.size(); ++n) wanted[n] = number(want[n / kDim], head, value);
      ASSERT_EQ(numbers, wanted);
    }
  }
  static void check_cuda(cudaError_t error) { check(error, "rows"); }
};

TEST(CudaDenseStore, HoldWhatCameAndDidNotGo) {
  PITH_NEEDS_GPU();
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto draw = [&](size_t below) { return random() % below; };
    Held held(DenseStoreShape{kHeads, kDim, draw(200), draw(90)});
    for (int step = 0; step < 40; ++step) {
      const size_t count = draw(70), some = std::min(count, held.want.size());
      switch (draw(7)) {
        case 0:
          held.rows.drop(some);
          held.want.erase(held.want.end() - static_cast<ptrdiff_t>(some), held.want.end());
          break;
        case 1:
        case 2: held.drop_front(some); break;
        case 3: held.rows.shrink(); break;
        case 4: held.rows.reshape({kHeads, kDim, 300, count}); break;
        default: held.append(count);
      }
      held.expect_held(held.rows);
    }
    const DenseStore copy = held.rows;
    held.expect_held(copy);
  }
}

// A window that goes on for good takes a sixteenth more room than it has rows, or twice as much,
// and moves no more often than that gives.
TEST(CudaDenseStore, AWindowTakesLittleMore) {
  PITH_NEEDS_GPU();
  for (const bool roomy : {false, true}) {
    for (const size_t window : {1, 37, 64, 1000}) {
      Held held(DenseStoreShape::window(kHeads, kDim, window + 1, roomy));
      size_t moves = 0;
      for (size_t token = 0; token < 20 * window; ++token) {
        const void* before = held.rows.keys();
        held.append(1);
        moves += held.rows.keys() != before;
        if (held.rows.rows() > window) held.drop_front(1);
      }
      const size_t room = roomy ? 2 * (window + 1) + 96 : window + window / 15 + 130;
      EXPECT_LE(held.rows.capacity(), room) << window;
      EXPECT_LE(moves, 20 * 16 + 30) << window;
      held.expect_held(held.rows);
    }
  }
}

}  // namespace
}  // namespace pith::cuda
