// The schedule and the window ring against a plain list of rows.

#include <gtest/gtest.h>

#include <deque>
#include <numeric>

#include "core/philox.h"
#include "plan/schedule.h"
#include "rows/cpu/window_ring.h"

namespace pith {
namespace {

struct Case {
  size_t sink, window, block;
};

class ScheduleTest : public testing::TestWithParam<Case> {};

TEST_P(ScheduleTest, MovesDependOnlyOnHowManyRowsCame) {
  const ScheduleShape shape{GetParam().sink, GetParam().window, GetParam().block};
  for (size_t most : {1, 7, 128})
    for (size_t chunk : {1, 2, 3, 17, 64, 1000}) {
      size_t n = 0, sink = 0, body = 0, ring = 0;
      while (n < 1000) {
        for (size_t left = std::min(chunk, 1000 - n); left > 0;) {
          const Move m = next_move(shape, n, left, most);
          ASSERT_GT(m.taken(), 0u);
          ASSERT_LE(m.taken(), left);
          ASSERT_EQ(m.to_body % shape.block, 0u);
          ASSERT_LE(m.to_body, std::max(most, shape.block) + shape.block);
          sink += m.to_sink;
          body += m.straight + m.to_body;
          if (m.to_body <= ring) {
            ring -= m.to_body;
            ring += m.to_ring;
            ASSERT_LE(ring, shape.ring_capacity());
          } else {
            ring += m.to_ring;
            ASSERT_LE(ring, shape.ring_capacity());
            ASSERT_GE(ring, m.to_body);
            ring -= m.to_body;
          }
          n += m.taken();
          left -= m.taken();
          const Occupancy o = occupancy(shape, n);
          ASSERT_EQ(o.sink, sink);
          ASSERT_EQ(o.body, body);
          ASSERT_EQ(o.window, ring);
        }
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ScheduleTest,
                         testing::Values(Case{0, 0, 1}, Case{4, 0, 1}, Case{0, 1, 1},
                                         Case{4, 64, 1}, Case{0, 0, 32}, Case{4, 1, 32},
                                         Case{4, 128, 32}, Case{2, 100, 64}, Case{0, 2000, 1}));

TEST(WindowRing, IsAQueueOfRowsWithTheirMass) {
  constexpr size_t kDim = 16;
  ThreadPool pool(1);
  MemoryCounter memory(0, /*poison=*/true);
  const Context context{pool, memory, kernels_for("scalar")};
  for (size_t capacity : {1, 5, 33}) {
    WindowRing ring(context, {DType::kF32, DType::kF16, kDim, capacity, /*mass=*/true});
    std::deque<float> expected;
    float next = 0;
    const Philox random(capacity, 0, 0);
    for (int step = 0; step < 300; ++step) {
      const bool push = random.uniform(step) < 0.55f;
      const size_t room = push ? capacity - ring.rows() : ring.rows();
      const size_t n = std::min<size_t>(room, random.words(step, 1)[0] % 7);
      std::vector<float> k(n * kDim), v(n * kDim), mass(n);
      if (push) {
        for (size_t i = 0; i < n; ++i) {
          std::fill_n(k.begin() + i * kDim, kDim, next);
          std::fill_n(v.begin() + i * kDim, kDim, -next);
          mass[i] = next / 2;
          expected.push_back(next++);
        }
        const auto first = static_cast<int64_t>(next - static_cast<float>(n));
        ring.push({k.data(), v.data(), kDim, n, first, mass.data()});
      } else {
        ring.pop(k.data(), v.data(), mass.data(), n);
        for (size_t i = 0; i < n; ++i) {
          ASSERT_EQ(k[i * kDim + 3], expected.front());
          ASSERT_EQ(v[i * kDim + 15], -expected.front());
          ASSERT_EQ(mass[i], expected.front() / 2);
          expected.pop_front();
        }
      }
      ASSERT_EQ(ring.rows(), expected.size());
      std::vector<Span> spans;
      ring.add_spans(spans);
      ASSERT_LE(spans.size(), 2u);
      size_t at = 0;
      for (const Span& s : spans) {
        std::vector<float> out(s.count * kDim);
        s.keys->decode(out.data(), s.first, s.count);
        for (size_t i = 0; i < s.count; ++i, ++at) {
          ASSERT_EQ(out[i * kDim], expected[at]);
          ASSERT_EQ(static_cast<float>(s.first_position + static_cast<int64_t>(i)), expected[at]);
          ASSERT_EQ(s.mass[s.first + i], expected[at] / 2);
        }
      }
      ASSERT_EQ(at, expected.size());
      Ledger ledger;
      ring.add_to(ledger);
      ASSERT_EQ(ledger.payload, expected.size() * kDim * 6);
      ASSERT_EQ(ledger.total_bytes(), memory.total());
    }
  }
}

}  // namespace
}  // namespace pith
