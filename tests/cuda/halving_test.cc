// Halving on the GPU: the CPU's rows for the same seed, every decision against a walk in double
// precision, and what must hold of any halving.

#include "select/cuda/halving.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "harness.h"
#include "kernels/kernels.h"
#include "pith/error.h"
#include "select/halving.h"

namespace pith::cuda {
namespace {

struct Runs {
  int heads = 2, groups = 3, size = 64, dim = 128;
  DType dtype = DType::kBF16;
  HalvingRule rule;
  uint32_t seed = 1;
};

/// Rows [heads, groups * size + 5, D], in every head taken in an order of its own.
struct Problem {
  explicit Problem(const Runs& r)
      : runs(r),
        rows(r.groups * r.size + 5),
        k(normals(static_cast<size_t>(r.heads) * rows * r.dim, r.dtype, 2 * r.seed)),
        v(normals(k.size(), r.dtype, 2 * r.seed + 1)),
        wide_k(widen(k, r.dtype)),
        wide_v(widen(v, r.dtype)) {
    std::mt19937 random(r.seed);
    for (int h = 0; h < r.heads; ++h) {
      std::vector<int32_t> order(rows);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      numbers.insert(numbers.end(), order.begin(), order.begin() + r.groups * r.size);
    }
  }
  const int32_t* run(int head, int group) const {
    return numbers.data() + (static_cast<size_t>(head) * runs.groups + group) * runs.size;
  }
  /// The run's keys or values as f32, [S, D].
  std::vector<float> gather(const std::vector<float>& from, int head, int group) const {
    std::vector<float> out;
    for (int i = 0; i < runs.size; ++i) {
      const size_t at = (static_cast<size_t>(head) * rows + run(head, group)[i]) * runs.dim;
      out.insert(out.end(), from.begin() + at, from.begin() + at + runs.dim);
    }
    return out;
  }

  Runs runs;
  int rows;
  std::vector<uint16_t> k, v;
  std::vector<float> wide_k, wide_v;
  std::vector<int32_t> numbers;  // [heads, groups, S]
};

constexpr int64_t kFirstPosition = 1000;
constexpr uint32_t kTag = 5, kLayer = 3, kFirstHead = 2;

/// Survivors by run, as places in the run.
using Kept = std::vector<std::vector<uint32_t>>;

Kept on_device(const Problem& p) {
  MemoryCounter counter;
  const Runs& r = p.runs;
  const auto k = to_device(counter, p.k), v = to_device(counter, p.v);
  const auto numbers = to_device(counter, p.numbers);
  const size_t runs = static_cast<size_t>(r.heads) * r.groups;
  const DeviceHalvingRule rule = device_rule(r.rule);
  HalvingCall call;
  call.size = r.size;
  const size_t most = call.kept_size(rule);
  const auto kept = to_device(counter, std::vector<int32_t>(runs * most, -7));
  const auto counts = to_device(counter, std::vector<int32_t>(runs, -1));
  const auto failures = to_device(counter, std::vector<int32_t>(runs, -1));
  call.dtype = r.dtype;
  call.dim = r.dim;
  call.k = k.data();
  call.v = v.data();
  call.head_stride = static_cast<size_t>(p.rows) * r.dim;
  call.row_stride = r.dim;
  call.rows = numbers.data();
  call.rows_stride = static_cast<size_t>(r.groups) * r.size;
  call.kept = kept.data();
  call.kept_stride = r.groups * most;
  call.counts = counts.data();
  call.failures = failures.data();
  call.heads = r.heads;
  call.groups = r.groups;
  call.first_position = kFirstPosition;
  call.seed = r.seed;
  call.layer = kLayer;
  call.first_head = kFirstHead;
  call.tag = kTag;
  halve_batch(rule, call, nullptr);
  const auto host = to_host(kept);
  const auto count = to_host(counts), failed = to_host(failures);
  Kept out;
  for (size_t i = 0; i < runs; ++i) {
    EXPECT_GE(failed[i], 0);
    EXPECT_LE(count[i], static_cast<int>(most));
    const int32_t* run = p.numbers.data() + i * r.size;
    std::vector<uint32_t> places;
    for (int j = 0; j < count[i]; ++j)
      places.push_back(
          static_cast<uint32_t>(std::find(run, run + r.size, host[i * most + j]) - run));
    out.push_back(places);
  }
  return out;
}

Kept on_cpu(const Problem& p) {
  MemoryCounter counter;
  Kept out;
  const Runs& r = p.runs;
  for (int head = 0; head < r.heads; ++head)
    for (int group = 0; group < r.groups; ++group) {
      auto k = p.gather(p.wide_k, head, group), v = p.gather(p.wide_v, head, group);
      std::vector<int64_t> positions(r.size);
      for (int i = 0; i < r.size; ++i) positions[i] = kFirstPosition + p.run(head, group)[i];
      const Halved halved =
          halve(kernels_for(), counter, r.rule,
                {k.data(), v.data(), positions.data(), static_cast<size_t>(r.size),
                 static_cast<size_t>(r.dim)},
                {Philox(r.seed, kLayer, kFirstHead + static_cast<uint32_t>(head)), kTag});
      out.push_back(halved.kept);
    }
  return out;
}

/// Kernel halving in double precision along given decisions.
class PairOracle {
 public:
  PairOracle(const Problem& p, int head, int group)
      : k_(p.gather(p.wide_k, head, group)),
        v_(p.gather(p.wide_v, head, group)),
        size_(p.runs.size),
        dim_(p.runs.dim),
        rule_(p.runs.rule),
        random_(p.runs.seed, kLayer, kFirstHead + static_cast<uint32_t>(head)),
        numbers_(p.run(head, group)) {
    std::vector<double> mean(dim_);
    for (int i = 0; i < size_ && rule_.centre; ++i)
      for (int d = 0; d < dim_; ++d) mean[d] += k_[i * dim_ + d] / static_cast<double>(size_);
    double entry = 0;
    for (float x : v_) entry = std::max(entry, std::fabs(static_cast<double>(x)));
    constant_ = rule_.values ? rule_.value_constant * entry * entry : 1;
    centred_.assign(k_.begin(), k_.end());
    for (int i = 0; i < size_ * dim_; ++i) centred_[i] -= mean[i % dim_];
    for (int i = 0; i < size_; ++i) shift_ = std::max(shift_, exponent(i, i));
  }
  /// Decisions that no rounding explains, and those within rounding of the other choice.
  struct Verdict {
    int wrong = 0, ties = 0;
  };
  Verdict select(const std::vector<uint32_t>& kept) const {
    const int pairs = size_ / 2;
    const bool flip = random_.words(position(0), kTag)[1] >> 31;
    const double threshold =
        rule_.balance * (0.5 + std::log(2.0 * size_ / static_cast<double>(rule_.delta)));
    std::vector<double> acc(pairs);
    double widest = 0, largest = 0;
    Verdict out;
    for (int b = 0; b < pairs; ++b) {
      const bool swap = (kept[b] == 2 * static_cast<uint32_t>(b) + 1) != flip;
      std::vector<double> d(pairs);
      for (int c = b; c < pairs; ++c) {
        d[c] = entry(2 * b, 2 * c) - entry(2 * b, 2 * c + 1) - entry(2 * b + 1, 2 * c) +
               entry(2 * b + 1, 2 * c + 1);
      }
      largest = std::max(
          {largest, std::fabs(entry(2 * b, 2 * b)), std::fabs(entry(2 * b + 1, 2 * b + 1))});
      const double width = std::sqrt(std::max(d[b], 0.0));
      widest = std::max(widest, width);
      const double c_b = threshold * width * widest;
      const double at = c_b > 0 ? 2 * c_b * (random_.uniform(position(2 * b), kTag) - 0.5) : 0;
      if (b > 0 && swap != (acc[b] > at)) {
        const bool tie = std::fabs(acc[b] - at) < 4e-6 * largest * std::sqrt(b + 1.0);
        ++(tie ? out.ties : out.wrong);
      }
      out.wrong += b == 0 && swap;
      for (int c = b + 1; c < pairs; ++c) acc[c] += swap ? -d[c] : d[c];
    }
    return out;
  }

 private:
  uint64_t position(int i) const { return static_cast<uint64_t>(kFirstPosition + numbers_[i]); }
  double exponent(int i, int j) const {
    double x = 0;
    for (int d = 0; d < dim_; ++d) x += centred_[i * dim_ + d] * centred_[j * dim_ + d];
    return x * rule_.scale * rule_.temperature;
  }
  double entry(int i, int j) const {
    double w = constant_;
    for (int d = 0; d < dim_ && rule_.values; ++d)
      w += static_cast<double>(v_[i * dim_ + d]) * v_[j * dim_ + d];
    return std::exp(exponent(i, j) - shift_) * w;
  }

  std::vector<float> k_, v_;
  int size_, dim_;
  HalvingRule rule_;
  Philox random_;
  const int32_t* numbers_;
  std::vector<double> centred_;
  double constant_ = 0, shift_ = 0;
};

HalvingRule flat(int dim) {  // the defaults of express
  HalvingRule rule;
  rule.scale = 1 / std::sqrt(static_cast<float>(dim));
  rule.temperature = 0.25f;
  rule.value_constant = 0.1f;
  rule.centre = true;
  return rule;
}
HalvingRule papers(int dim) {
  HalvingRule rule;
  rule.scale = 1 / std::sqrt(static_cast<float>(dim));
  rule.balance = 1;
  return rule;
}

/// Every decision stands; runs without ties are the CPU's. Returns how many runs are the CPU's.
int compare_pairs(const Runs& r) {
  const Problem p(r);
  const Kept device = on_device(p), cpu = on_cpu(p);
  int same = 0;
  for (size_t i = 0; i < device.size(); ++i) {
    const int half = r.size / 2;
    EXPECT_EQ(device[i].size(), static_cast<size_t>(half));
    if (static_cast<int>(device[i].size()) != half) return 0;
    for (int b = 0; b < half; ++b) {
      EXPECT_EQ(device[i][b] / 2, static_cast<uint32_t>(b)) << "one of each pair";
      if (device[i][b] / 2 != static_cast<uint32_t>(b)) return 0;
    }
    const PairOracle oracle(p, static_cast<int>(i) / r.groups, static_cast<int>(i) % r.groups);
    EXPECT_EQ(oracle.select(device[i]).wrong, 0) << "size " << r.size << " run " << i;
    same += device[i] == cpu[i];
  }
  return same;
}

TEST(CudaHalving, PairsAreTheCpusOnes) {
  PITH_NEEDS_GPU();
  int runs = 0, same = 0;
  for (const int dim : {64, 128}) {
    for (const int size : {2, 4, 6, 16, 32, 62, 64, 66, 126, 128, 130, 256, 512}) {
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        for (const HalvingRule& rule : {flat(dim), papers(dim)}) {
          const Runs r{2, size > 200 ? 1 : 3, size, dim, dtype, rule, static_cast<uint32_t>(size)};
          same += compare_pairs(r);
          runs += r.heads * r.groups;
        }
      }
    }
  }
  // A decision that is a tie in f32 changes all later ones of its run: seldom, but it may happen.
  EXPECT_GE(same, runs * 97 / 100) << "of " << runs;
}

TEST(CudaHalving, LongRuns) {
  PITH_NEEDS_GPU();
  compare_pairs({1, 1, 2048, 128, DType::kBF16, flat(128), 9});
}

TEST(CudaHalving, RowsOf256Channels) {
  PITH_NEEDS_GPU();
  int same = 0;
  for (const int size : {2, 16, 32, 66, 130}) {
    for (const HalvingRule& rule : {flat(256), papers(256)})
      same += compare_pairs({2, 2, size, 256, DType::kF16, rule, static_cast<uint32_t>(size)});
  }
  EXPECT_GE(same, 38) << "of 40";
}

TEST(CudaHalving, ManyRunsOfOneLaunch) {
  PITH_NEEDS_GPU();
  const Runs r{4, 300, 16, 64, DType::kBF16, flat(64), 4};
  EXPECT_GE(compare_pairs(r), 1190);
}

TEST(CudaHalving, KeysAloneForSumsOfTheDenominator) {
  PITH_NEEDS_GPU();
  HalvingRule rule = flat(128);
  rule.values = false;
  EXPECT_GE(compare_pairs({2, 4, 128, 128, DType::kBF16, rule, 12}), 7);
}

// Keys that share a large mean: what is left of them must not drown in it.
TEST(CudaHalving, SharedMeansAreTakenOut) {
  PITH_NEEDS_GPU();
  Runs r{2, 2, 128, 128, DType::kBF16, flat(128), 21};
  Problem p(r);
  for (size_t i = 0; i < p.k.size(); ++i)
    p.k[i] = from_float(r.dtype, p.wide_k[i] + (i % 128 < 4 ? 8.0f : 0.0f));
  p.wide_k = widen(p.k, r.dtype);
  const Kept device = on_device(p);
  for (size_t i = 0; i < device.size(); ++i) {
    const PairOracle oracle(p, static_cast<int>(i) / 2, static_cast<int>(i) % 2);
    const auto verdict = oracle.select(device[i]);
    EXPECT_EQ(verdict.wrong, 0);
    EXPECT_LE(verdict.ties, 2);
  }
}

TEST(CudaHalving, WalksOverRowsAreTheCpusOnes) {
  PITH_NEEDS_GPU();
  for (const Walk walk : {Walk::kRows, Walk::kRowsExact}) {
    int runs = 0, same = 0;
    for (const int size : {2, 16, 64, 66, 128, 256}) {
      for (HalvingRule rule : {flat(128), papers(128)}) {
        for (const KeptSide side : {KeptSide::kSmaller, KeptSide::kCoin}) {
          rule.walk = walk;
          rule.side = side;
          const Runs r{2, 3, size, 128, DType::kBF16, rule, static_cast<uint32_t>(size + 50)};
          const Problem p(r);
          const Kept device = on_device(p), cpu = on_cpu(p);
          for (size_t i = 0; i < device.size(); ++i, ++runs) {
            same += device[i] == cpu[i];
            if (walk == Walk::kRowsExact) {
              EXPECT_EQ(device[i].size(), size / 2u);
            }
            EXPECT_TRUE(std::is_sorted(device[i].begin(), device[i].end()));
          }
        }
      }
    }
    EXPECT_GE(same, runs * 97 / 100) << "of " << runs;
  }
}

TEST(CudaHalving, RefusesWhatItDoesNotKnow) {
  HalvingCall call;
  call.dim = 128;
  call.heads = call.groups = 1;
  call.size = 3;
  const DeviceHalvingRule rule;
  EXPECT_THROW(call.check(rule), Error);
  call.size = 2 * most_halving_rows(128);
  EXPECT_THROW(call.check(rule), Error);
  call.size = 16;
  EXPECT_NO_THROW(call.check(rule));
  DeviceHalvingRule rows;
  rows.walk = DeviceWalk::kRows;
  EXPECT_THROW(call.check(rows), Error);  // nowhere for the counts to go
}

}  // namespace
}  // namespace pith::cuda
