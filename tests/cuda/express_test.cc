// Express on the GPU: the CPU's coreset for the same seed, whatever the batches; weights, sizes and
// the spans that decode attention reads.

#include <cmath>
#include <numeric>

#include "core/thread_pool.h"
#include "harness.h"
#include "kernels/kernels.h"
#include "methods/selectors/express/express_cuda.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

constexpr int kHeads = 3;

ExpressRule rule_for(uint32_t target, int dim, float balance = 0) {
  ExpressRule rule;
  rule.shape = {target, 1};
  rule.halving.scale = 1 / std::sqrt(static_cast<float>(dim));
  rule.halving.temperature = 0.25f;
  rule.halving.value_constant = 0.1f;
  rule.halving.centre = true;
  rule.halving.balance = balance;
  return rule;
}

struct Stream {
  Stream(int rows_of_all, int d, DType type, uint32_t seed)
      : rows(rows_of_all),
        dim(d),
        dtype(type),
        k(normals(static_cast<size_t>(kHeads) * rows * dim, dtype, seed)),
        v(normals(k.size(), dtype, seed + 1)) {}
  int rows, dim;
  DType dtype;
  std::vector<uint16_t> k, v;  // [kHeads, rows, D]
};

constexpr int64_t kFirst = 4;

ExpressSite site_of(const Stream& s) { return {s.dtype, s.dim, kHeads, kFirst, 77, 2, 1}; }

/// The rows of a device stream.
struct Held {
  std::vector<std::vector<int64_t>> positions;  // [kHeads]
  std::vector<std::vector<float>> log_weights;
  std::vector<uint16_t> k, v;  // [kHeads, capacity, D]
  int capacity = 0;
};

Held held_by(const ExpressDevice& device, const Stream& s) {
  const ExpressArrays& a = device.arrays();
  Held out;
  out.capacity = a.capacity;
  const size_t n = static_cast<size_t>(kHeads) * a.capacity;
  std::vector<int64_t> positions(n);
  std::vector<float> weights(n);
  out.k.resize(n * s.dim);
  out.v.resize(n * s.dim);
  const auto copy = [](void* to, const void* from, size_t bytes) {
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "download");
  };
  copy(positions.data(), a.positions, 8 * n);
  copy(weights.data(), a.log_weights, 4 * n);
  copy(out.k.data(), a.k, 2 * n * s.dim);
  copy(out.v.data(), a.v, 2 * n * s.dim);
  const auto rows = static_cast<ptrdiff_t>(device.state().rows());
  for (int h = 0; h < kHeads; ++h) {
    const auto at = static_cast<ptrdiff_t>(h) * a.capacity;
    out.positions.emplace_back(positions.begin() + at, positions.begin() + at + rows);
    out.log_weights.emplace_back(weights.begin() + at, weights.begin() + at + rows);
  }
  return out;
}

/// Takes the stream in batches; what is left of it at the end.
Held run(const Stream& s, const ExpressRule& rule, const std::vector<int>& batches,
         bool wide = false) {
  MemoryCounter counter;
  const auto k = to_device(counter, s.k), v = to_device(counter, s.v);
  ExpressDevice device(counter, rule, site_of(s), nullptr);
  size_t done = 0;
  for (size_t i = 0; done < static_cast<size_t>(s.rows); ++i) {
    const int n = std::min(batches[i % batches.size()], s.rows - static_cast<int>(done));
    const NewDeviceRows rows{k.data() + done * s.dim, v.data() + done * s.dim,
                             static_cast<size_t>(s.rows) * s.dim, static_cast<size_t>(s.dim), n};
    if (wide)
      express_take_wide(device.job(rows), counter, nullptr);
    else
      device.take(rows, nullptr);
    done += n;
  }
  return held_by(device, s);
}

Coreset on_cpu(const Stream& s, const ExpressRule& rule, int head) {
  ThreadPool pool(1);
  MemoryCounter counter;
  const Context context{pool, counter, kernels_for()};
  const auto k = widen(s.k, s.dtype), v = widen(s.v, s.dtype);
  const size_t at = static_cast<size_t>(head) * s.rows * s.dim;
  return express_offline(context, rule,
                         {k.data() + at, v.data() + at, static_cast<size_t>(s.rows),
                          static_cast<size_t>(s.dim), kFirst},
                         Philox(77, 2, 1 + head));
}

TEST(CudaExpress, HoldsTheCpusCoreset) {
  PITH_NEEDS_GPU();
  int heads = 0, same = 0;
  for (const uint32_t target : {8u, 32u, 64u, 256u}) {
    for (const int rows : {1, 7, 33, 64, 65, 400, 1500, 5003}) {
      const int dim = target == 64 ? 64 : 128;
      const DType dtype = rows % 2 ? DType::kBF16 : DType::kF16;
      const Stream s(rows, dim, dtype, target + static_cast<uint32_t>(rows));
      const ExpressRule rule = rule_for(target, dim, rows == 1500 ? 1.0f : 0.0f);
      const Held held = run(s, rule, {rows});
      for (int h = 0; h < kHeads; ++h, ++heads) {
        const Coreset want = on_cpu(s, rule, h);
        ASSERT_EQ(held.positions[h].size(), want.positions.size()) << target << " " << rows;
        double sum = 0;
        for (size_t i = 0; i < want.weights.size(); ++i) {
          sum += std::exp(held.log_weights[h][i]);
          EXPECT_NEAR(held.log_weights[h][i], std::log(static_cast<double>(want.weights[i])), 1e-5);
          const auto from = static_cast<size_t>(held.positions[h][i] - kFirst);
          ASSERT_LT(from, static_cast<size_t>(rows));
          for (int d = 0; d < dim; d += 31) {  // the row is the one that its position names
            const size_t to = (static_cast<size_t>(h) * held.capacity + i) * dim + d;
            ASSERT_EQ(held.k[to], s.k[(static_cast<size_t>(h) * rows + from) * dim + d]);
            ASSERT_EQ(held.v[to], s.v[(static_cast<size_t>(h) * rows + from) * dim + d]);
          }
        }
        EXPECT_NEAR(sum, rows, 1e-3 * rows);
        same += held.positions[h] == want.positions;
      }
    }
  }
  // A tie in f32 (halving_test.cc) changes what follows: seldom.
  EXPECT_GE(same, heads * 95 / 100) << "of " << heads;
}

TEST(CudaExpress, BatchesDoNotMatter) {
  PITH_NEEDS_GPU();
  for (const uint32_t target : {32u, 256u}) {
    const Stream s(3001, 128, DType::kBF16, target);
    const ExpressRule rule = rule_for(target, 128);
    const Held one = run(s, rule, {s.rows});
    for (const std::vector<int>& batches :
         {std::vector{1}, std::vector{3, 1, 64, 7}, std::vector{256}}) {
      const Held other = run(s, rule, batches);
      EXPECT_EQ(one.positions, other.positions);
      EXPECT_EQ(one.log_weights, other.log_weights);
    }
  }
}

// Halvings of more than a panel of rows, panels that end within a tile, strata and pending small
// halvings; rows come in parts that end anywhere.
TEST(CudaExpress, AllBlocksTogetherHoldTheSame) {
  PITH_NEEDS_GPU();
  for (const auto& [target, rows, inflation] :
       {std::tuple(1024u, 5003, 1u), std::tuple(512u, 4000, 1u), std::tuple(512u, 3000, 2u)}) {
    const Stream s(rows, target == 512 ? 64 : 128, DType::kBF16, target + inflation);
    ExpressRule rule = rule_for(target, s.dim, inflation == 2 ? 1.0f : 0.0f);
    rule.shape.inflation = inflation;
    const Held one = run(s, rule, {s.rows});
    for (const std::vector<int>& parts : {std::vector{s.rows}, std::vector{700, 1301}}) {
      const Held wide = run(s, rule, parts, true);
      EXPECT_EQ(one.positions, wide.positions) << target;
      EXPECT_EQ(one.log_weights, wide.log_weights);
      for (int h = 0; h < kHeads; ++h) {
        const size_t at = static_cast<size_t>(h) * one.capacity * s.dim;
        const size_t end = at + one.positions[h].size() * s.dim;
        EXPECT_TRUE(std::equal(one.k.begin() + at, one.k.begin() + end, wide.k.begin() + at));
        EXPECT_TRUE(std::equal(one.v.begin() + at, one.v.begin() + end, wide.v.begin() + at));
      }
    }
  }
}

TEST(CudaExpress, DecodeAttendsToTheCoreset) {
  PITH_NEEDS_GPU();
  const Stream s(2000, 128, DType::kBF16, 5);
  const ExpressRule rule = rule_for(128, 128);
  MemoryCounter counter;
  const auto k = to_device(counter, s.k), v = to_device(counter, s.v);
  ExpressDevice device(counter, rule, site_of(s), nullptr);
  device.take({k.data(), v.data(), static_cast<size_t>(s.rows) * 128, 128, s.rows}, nullptr);
  const DecodeShape shape{1, 4 * kHeads, kHeads, 128, 1, 0};
  const auto q = normals(static_cast<size_t>(shape.query_heads) * 128, s.dtype, 8);
  const auto q_device = to_device(counter, q);
  const auto out = to_device(counter, std::vector<float>(q.size(), NAN));
  const DecodeScratch scratch(counter, shape, nullptr);
  std::vector<DeviceSpan> of_heads;
  for (size_t h = 0; h < kHeads; ++h) of_heads.push_back(device.span(h));
  const auto spans = to_device(counter, of_heads);
  decode_dense({{q_device.data(), spans.data(), out.data(), nullptr}, shape, s.dtype}, scratch,
               nullptr);
  const auto got = to_host(out);
  const Held held = held_by(device, s);
  const auto queries = widen(q, s.dtype);
  for (int head = 0; head < shape.query_heads; ++head) {
    const int h = head / 4;
    const size_t rows = held.positions[h].size(), at = static_cast<size_t>(h) * held.capacity * 128;
    const std::vector<uint16_t> hk(held.k.begin() + at, held.k.begin() + at + rows * 128);
    const std::vector<uint16_t> hv(held.v.begin() + at, held.v.begin() + at + rows * 128);
    const OracleSpan span{widen(hk, s.dtype), widen(hv, s.dtype), held.log_weights[h]};
    std::vector<double> want;
    oracle(want, queries.data() + static_cast<size_t>(head) * 128, 128, 1 / std::sqrt(128.0),
           {&span});
    EXPECT_LT(relative_error({got.begin() + head * 128, got.begin() + (head + 1) * 128}, want),
              8e-3);
  }
}

TEST(CudaExpress, RefusesWhatItDoesNotKnow) {
  ExpressRule rule = rule_for(64, 128);
  ExpressSite site{DType::kBF16, 128, 2};
  EXPECT_NO_THROW(site.check(rule));
  site.dim = 80;
  EXPECT_THROW(site.check(rule), Error);
  site.dim = 128;
  rule.shape.target = 2 * most_halving_rows(128);
  EXPECT_THROW(site.check(rule), Error);
}

}  // namespace
}  // namespace pith::cuda
