// RowStore over a codec that stores keys before RoPE: whoever reads rows gets them as they came.

#include "rows/cpu/row_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/philox.h"
#include "rows/cpu/dense.h"

namespace pith {
namespace {

constexpr size_t kDim = 32;
constexpr double kTheta = 10000;

/// f32 rows, before RoPE.
class UnturnedCodec final : public Codec {
 public:
  bool pre_rope() const override { return true; }
  double bytes_per_row(size_t dim) const override { return dense_.bytes_per_row(dim); }
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override {
    return dense_.make_rows(context, request);
  }

 private:
  DenseCodec dense_{DType::kF32};
};

/// x turned back from `position`, in double and from the definition.
std::vector<float> turned_back(const float* x, int64_t position) {
  std::vector<float> out(kDim);
  for (size_t i = 0; i < kDim / 2; ++i) {
    const double angle = -double(position) * std::pow(kTheta, -2.0 * double(i) / double(kDim));
    const double a = x[i], b = x[i + kDim / 2];
    out[i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
    out[i + kDim / 2] = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
  }
  return out;
}

class RowStoreBeforeRope : public testing::Test {
 protected:
  RowStoreBeforeRope() : k_(kRows * kDim), v_(kRows * kDim) {
    const Philox random(11, 0, 0);
    for (size_t i = 0; i < k_.size(); ++i) {
      k_[i] = 2 * random.uniform(2 * i) - 1;
      v_[i] = 2 * random.uniform(2 * i + 1) - 1;
    }
  }
  RowFormat format() {
    return {.keys = &unturned_, .values = &dense_, .rope = &rope_, .dim = kDim};
  }
  NewRows rows(size_t first, size_t count, int64_t position) {
    return {.k = k_.data() + first * kDim,
            .v = v_.data() + first * kDim,
            .stride = kDim,
            .count = count,
            .first_position = position};
  }
  /// Reads in pieces and compares with the rows named, which stand at `positions`.
  void expect_rows(const RowStore& store, const std::vector<size_t>& named,
                   const std::vector<int64_t>& positions) {
    ASSERT_EQ(store.rows(), named.size());
    for (size_t piece : {size_t{1}, size_t{3}, named.size()}) {
      for (size_t first = 0; first < named.size(); first += piece) {
        const size_t n = std::min(piece, named.size() - first);
        std::vector<float> k(n * kDim, NAN), v(n * kDim, NAN), keys(n * kDim, NAN);
        std::vector<float> stored(n * kDim, NAN);
        store.read(k.data(), v.data(), first, n);
        store.decode_keys(keys.data(), first, n);
        store.keys().decode(stored.data(), first, n);
        EXPECT_EQ(keys, k);
        for (size_t t = 0; t < n; ++t) {
          const size_t row = named[first + t];
          EXPECT_EQ(store.position(first + t), positions[first + t]);
          const auto back = turned_back(k_.data() + row * kDim, positions[first + t]);
          for (size_t c = 0; c < kDim; ++c) {
            ASSERT_NEAR(k[t * kDim + c], k_[row * kDim + c], 2e-6) << row << ' ' << c;
            ASSERT_EQ(v[t * kDim + c], v_[row * kDim + c]) << row << ' ' << c;
            ASSERT_NEAR(stored[t * kDim + c], back[c], 1e-6) << row << ' ' << c;
          }
        }
      }
    }
  }

  static constexpr size_t kRows = 70;
  ThreadPool pool_{1};
  MemoryCounter memory_;
  Context context_{pool_, memory_, kernels_for()};
  Rope rope_{kDim, kTheta};
  UnturnedCodec unturned_;
  DenseCodec dense_{DType::kF32};
  std::vector<float> k_, v_;  // [kRows, D]
};

TEST_F(RowStoreBeforeRope, ReadGivesConsecutiveRowsAsTheyCame) {
  RowStore store(context_, format());
  store.append(rows(0, 7, 4090));  // the cursor's far angle changes within these
  store.append(rows(7, 63, 4097));
  std::vector<size_t> named(kRows);
  std::vector<int64_t> positions(kRows);
  std::iota(named.begin(), named.end(), 0);
  std::iota(positions.begin(), positions.end(), 4090);
  expect_rows(store, named, positions);
  expect_rows(RowStore(store), named, positions);
}

TEST_F(RowStoreBeforeRope, ReadFollowsRowsThatWereKeptAndAddedApart) {
  RowStore store(context_, format());
  store.append(rows(0, 10, 1000));
  store.keep(std::vector<uint32_t>{1, 2, 5, 9});
  store.append(rows(10, 3, 70000));
  store.keep_after(4, std::vector<uint32_t>{4, 6});
  expect_rows(store, {1, 2, 5, 9, 10, 12}, {1001, 1002, 1005, 1009, 70000, 70002});
}

}  // namespace
}  // namespace pith
