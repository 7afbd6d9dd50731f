// The store of dense rows on a device whose kernels are loops (host_device.h): rows come at the end
// and go at both ends, in whatever order, and what is held lies in one run.

#include "attend/cuda/device_rows.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <deque>

#include "host_device.h"

namespace pith::cuda {
namespace {

constexpr size_t kHeads = 2, kDim = 8;

/// A store and what it is to hold.
struct Held {
  MemoryCounter memory;
  DeviceRows rows;
  std::deque<uint16_t> want;
  uint16_t next = 0;

  explicit Held(const DeviceRowsShape& shape) : rows(memory, shape, nullptr) {}
  void append(size_t count) {
    rows.reserve_more(count);
    for (size_t i = 0; i < count; ++i, ++next) {
      for (int h = 0; h < static_cast<int>(kHeads); ++h) {
        const auto value = static_cast<uint16_t>(next * kHeads + static_cast<size_t>(h));
        std::fill_n(at(rows.end().k, h, rows.end().row), kDim, value);
        std::fill_n(at(rows.end().v, h, rows.end().row), kDim, static_cast<uint16_t>(~value));
      }
      want.push_back(next);
      rows.add(1);
    }
  }
  uint16_t* at(const void* side, int head, int64_t row) const {
    return row_at(side, rows.head_stride(), head, row, static_cast<int>(kDim));
  }
  void check() const {
    RC_ASSERT(rows.rows() == want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      for (int h = 0; h < static_cast<int>(kHeads); ++h) {
        const auto value = static_cast<uint16_t>(want[i] * kHeads + static_cast<size_t>(h));
        for (size_t c = 0; c < kDim; ++c) {
          RC_ASSERT(at(rows.begin().k, h, static_cast<int64_t>(i))[c] == value);
          RC_ASSERT(at(rows.begin().v, h, static_cast<int64_t>(i))[c] ==
                    static_cast<uint16_t>(~value));
        }
      }
    }
  }
};

RC_GTEST_PROP(HostDeviceRows, HoldWhatCameAndDidNotGo, ()) {
  Held held(DeviceRowsShape{kHeads, kDim, *rc::gen::inRange<size_t>(0, 200),
                            *rc::gen::inRange<size_t>(0, 90)});
  for (int step = 0; step < 40; ++step) {
    const size_t count = *rc::gen::inRange<size_t>(0, 70), some = std::min(count, held.want.size());
    switch (*rc::gen::inRange(0, 7)) {
      case 0:
        held.rows.drop(some);
        held.want.erase(held.want.end() - static_cast<ptrdiff_t>(some), held.want.end());
        break;
      case 1:
      case 2:
        held.rows.drop_front(some);
        held.want.erase(held.want.begin(), held.want.begin() + static_cast<ptrdiff_t>(some));
        break;
      case 3: held.rows.shrink(); break;
      case 4: held.rows.reshape({kHeads, kDim, 300, count}); break;
      default: held.append(count);
    }
    held.check();
  }
  const DeviceRows copy = held.rows;
  RC_ASSERT(copy.rows() == held.want.size());
}

// A window that goes on for good takes a sixteenth more room than it has rows, or twice as much,
// and moves no more often than that gives.
TEST(HostDeviceRows, AWindowTakesLittleMore) {
  for (const bool roomy : {false, true}) {
    for (const size_t window : {1, 37, 64, 1000}) {
      Held held(DeviceRowsShape::window(kHeads, kDim, window + 1, roomy));
      size_t moves = 0;
      for (size_t token = 0; token < 20 * window; ++token) {
        const void* before = held.rows.keys();
        held.append(1);
        moves += held.rows.keys() != before;
        if (held.rows.rows() <= window) continue;
        held.rows.drop_front(1);
        held.want.pop_front();
      }
      const size_t room = roomy ? 2 * (window + 1) + 96 : window + window / 15 + 130;
      EXPECT_LE(held.rows.capacity(), room) << window;
      EXPECT_LE(moves, 20 * 16 + 30) << window;
      EXPECT_EQ(held.want.size(), window);
    }
  }
}

}  // namespace
}  // namespace pith::cuda
