// The choice among the rows of heads that share a budget, and their move, against a sort on the
// host: heads of any length, keys that are often equal.

#include "select/cuda/share.h"

#include <algorithm>
#include <numeric>

#include "harness.h"

namespace pith::cuda {
namespace {

struct Row {
  uint32_t key;
  int row, head;
};
/// Larger keys stay, of equals the newer, of equally new ones the first head's.
bool before(const Row& a, const Row& b) {
  if (a.key != b.key) return a.key > b.key;
  return a.row != b.row ? a.row > b.row : a.head < b.head;
}

std::vector<std::vector<int32_t>> expected(const std::vector<std::vector<uint32_t>>& keys, int keep,
                                           int least) {
  std::vector<std::vector<int32_t>> stay(keys.size());
  std::vector<Row> others;
  for (size_t h = 0; h < keys.size(); ++h) {
    std::vector<Row> own;
    for (size_t i = 0; i < keys[h].size(); ++i)
      own.push_back({keys[h][i], static_cast<int>(i), static_cast<int>(h)});
    std::ranges::sort(own, before);
    const auto safe = std::min<size_t>(static_cast<size_t>(least), own.size());
    for (size_t i = 0; i < safe; ++i) stay[h].push_back(own[i].row);
    others.insert(others.end(), own.begin() + static_cast<ptrdiff_t>(safe), own.end());
    keep -= static_cast<int>(safe);
  }
  std::ranges::sort(others, before);
  for (int i = 0; i < keep; ++i) stay[static_cast<size_t>(others[i].head)].push_back(others[i].row);
  for (auto& rows : stay) std::ranges::sort(rows);
  return stay;
}

struct Sizes {
  std::vector<int32_t> rows;  // [G]
  int keep, least;
  uint32_t distinct;  ///< keys
};

void expect_choice(const Sizes& c, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<uint32_t>> keys;
  std::vector<uint32_t> all;
  std::vector<int32_t> begins;
  for (const int32_t count : c.rows) {
    begins.push_back(static_cast<int32_t>(all.size()));
    std::vector<uint32_t> own(static_cast<size_t>(count));
    for (uint32_t& key : own) key = random() % c.distinct * (0xfffffff0u / c.distinct);
    all.insert(all.end(), own.begin(), own.end());
    keys.push_back(std::move(own));
  }
  MemoryCounter counter;
  const auto device_keys = to_device(counter, all);
  const auto rows = to_device(counter, c.rows), first = to_device(counter, begins);
  const auto kept = to_device(counter, std::vector<int32_t>(all.size(), -1));
  const auto stay = to_device(counter, std::vector<int32_t>(c.rows.size(), -1));
  CandidateRows selected;
  selected.heads = static_cast<int>(c.rows.size());
  selected.rows = static_cast<int>(all.size());
  selected.ragged = {rows.data(), first.data()};
  SelectSpace space;
  space.keys = device_keys.data();
  space.kept = kept.data();
  space.stay = stay.data();
  choose_shared(space, selected, {c.keep, c.least}, nullptr);
  const auto want = expected(keys, c.keep, c.least);
  const auto got = to_host(kept), counts = to_host(stay);
  for (size_t h = 0; h < want.size(); ++h) {
    ASSERT_EQ(counts[h], static_cast<int32_t>(want[h].size())) << "head " << h;
    EXPECT_TRUE(std::equal(want[h].begin(), want[h].end(), got.begin() + begins[h]))
        << "head " << h;
  }
}

TEST(CudaShare, ChoosesAsASortDoes) {
  PITH_NEEDS_GPU();
  uint32_t seed = 1;
  for (const uint32_t distinct : {1u, 3u, 40u, 1u << 24}) {
    SCOPED_TRACE(distinct);
    expect_choice({{40, 40, 40, 40}, 90, 5, distinct}, seed++);
    expect_choice({{3000, 17, 1, 1025}, 1500, 1, distinct}, seed++);
    expect_choice({{64, 63, 1100}, 1227, 64, distinct}, seed++);
    expect_choice({{9}, 4, 0, distinct}, seed++);
    expect_choice({{2100, 2100}, 1, 0, distinct}, seed++);
    expect_choice({{700, 800, 900}, 2400, 0, distinct}, seed++);
  }
}

// Rows that were there, ragged, and fresh ones behind each head's.
TEST(CudaShare, LinesRowsUp) {
  PITH_NEEDS_GPU();
  for (const int dim : {64, 128, 256}) {
    MemoryCounter counter;
    const std::vector<int32_t> held{5, 0, 130}, begins{0, 5, 5};
    const int fresh = 37, heads = 3, stride = 40;
    const auto d = static_cast<size_t>(dim);
    const auto hk = normals(135 * d, DType::kF16, 1), hv = normals(135 * d, DType::kF16, 2);
    const auto fk = normals(heads * stride * d, DType::kF16, 3);
    const auto fv = normals(heads * stride * d, DType::kF16, 4);
    std::vector<int32_t> places(135);
    std::iota(places.begin(), places.end(), 1000);
    std::vector<float> masses(135, 0.5f), fresh_masses(heads * 50);
    std::iota(fresh_masses.begin(), fresh_masses.end(), 1.0f);
    const auto dhk = to_device(counter, hk), dhv = to_device(counter, hv);
    const auto dfk = to_device(counter, fk), dfv = to_device(counter, fv);
    const auto at = to_device(counter, places), rows = to_device(counter, held);
    const auto first = to_device(counter, begins);
    const auto mass = to_device(counter, masses), fresh_mass = to_device(counter, fresh_masses);
    LineUpCall call;
    call.held.dim = call.fresh.dim = dim;
    call.held.heads = call.fresh.heads = heads;
    call.held.k = dhk.data(), call.held.v = dhv.data();
    call.held.positions = at.data(), call.held.mass = mass.data();
    call.held.rows = call.held.known = 135;
    call.held.ragged = {rows.data(), first.data()};
    call.fresh.k = dfk.data(), call.fresh.v = dfv.data();
    call.fresh.head_stride = stride * d;
    call.fresh.rows = fresh;
    call.fresh.first_position = 7000;
    call.fresh.mass = fresh_mass.data(), call.fresh.side_stride = 50;
    const std::vector<int32_t> none(heads, 0);
    const auto counts = to_device(counter, none), to = to_device(counter, none);
    place_heads({rows.data(), fresh, heads, 1, counts.data(), to.data()}, nullptr);
    EXPECT_EQ(to_host(to), (std::vector<int32_t>{0, 42, 79}));
    const auto k = to_device(counter, std::vector<uint16_t>(246 * d));
    const auto v = to_device(counter, std::vector<uint16_t>(246 * d));
    const auto positions = to_device(counter, std::vector<int32_t>(246));
    const auto masses_out = to_device(counter, std::vector<float>(246));
    call.to = {counts.data(), to.data()};
    call.k = k.data(), call.v = v.data();
    call.positions = positions.data(), call.mass = masses_out.data();
    call.mass_factor = 2;
    line_up(call, nullptr);
    const auto got_k = to_host(k), got_v = to_host(v);
    const auto got_at = to_host(positions);
    const auto got_mass = to_host(masses_out);
    size_t row = 0;
    for (size_t h = 0; h < heads; ++h) {
      for (int i = 0; i < held[h] + fresh; ++i, ++row) {
        const bool there = i < held[h];
        const auto own = static_cast<size_t>(there ? begins[h] + i : i - held[h]);
        const size_t from = (there ? own : h * stride + own) * d;
        const auto &want_k = there ? hk : fk, &want_v = there ? hv : fv;
        EXPECT_TRUE(std::equal(got_k.begin() + static_cast<ptrdiff_t>(row * d),
                               got_k.begin() + static_cast<ptrdiff_t>((row + 1) * d),
                               want_k.begin() + static_cast<ptrdiff_t>(from)));
        EXPECT_TRUE(std::equal(got_v.begin() + static_cast<ptrdiff_t>(row * d),
                               got_v.begin() + static_cast<ptrdiff_t>((row + 1) * d),
                               want_v.begin() + static_cast<ptrdiff_t>(from)));
        EXPECT_EQ(got_at[row], there ? 1000 + static_cast<int>(own) : 7000 + static_cast<int>(own));
        EXPECT_EQ(got_mass[row], 2 * (there ? 0.5f : fresh_masses[h * 50 + own]));
      }
    }
  }
}

}  // namespace
}  // namespace pith::cuda
