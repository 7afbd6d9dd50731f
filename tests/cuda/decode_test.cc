// Decode attention on the GPU against double precision on the CPU: dense rows, ragged heads,
// weights, mixed spans, every query group.

#include <cmath>

#include "attend/cuda/decode.h"

#include "attend/cuda/decode_groups.h"
#include "harness.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

struct Case {
  DecodeShape shape;
  DType dtype = DType::kBF16;
  std::vector<int> rows;  // [B, G, spans]
  bool weights = false;
};

/// Runs the case twice (the second finds the counters as the first left them) and returns the
/// worse error of out over heads; checks log_sum.
double error_of(const Case& c) {
  MemoryCounter counter;
  const DecodeShape& s = c.shape;
  const int lists = s.sequences * s.kv_heads, dim = s.head_dim, group = s.query_heads / s.kv_heads;
  std::vector<DeviceArray<uint16_t>> held;
  std::vector<DeviceArray<float>> held_weights;
  std::vector<OracleSpan> oracles;
  std::vector<DeviceSpan> spans;
  std::mt19937 rng(7);
  std::uniform_real_distribution<float> draw(-1, 1);
  for (int i = 0; i < lists * s.spans; ++i) {
    const size_t rows = c.rows[i];
    const auto k = normals(rows * dim, c.dtype, 100 + i), v = normals(rows * dim, c.dtype, 900 + i);
    OracleSpan o{widen(k, c.dtype), widen(v, c.dtype), std::vector<float>(rows)};
    DeviceSpan d;
    d.rows = static_cast<int>(rows);
    d.row_stride = dim;
    d.log_weight = c.weights ? 0.25f : 0.0f;
    held.push_back(to_device(counter, k));
    d.keys = held.back().data();
    held.push_back(to_device(counter, v));
    d.values = held.back().data();
    if (c.weights) {
      for (float& w : o.log_weights) w = draw(rng);
      held_weights.push_back(to_device(counter, o.log_weights));
      d.log_weights = held_weights.back().data();
      for (float& w : o.log_weights) w += d.log_weight;
    }
    oracles.push_back(std::move(o));
    spans.push_back(d);
  }
  const auto q = normals(static_cast<size_t>(s.sequences) * s.query_heads * dim, c.dtype, 3);
  const auto q_device = to_device(counter, q);
  const auto span_device = to_device(counter, spans);
  const auto poison = std::vector<float>(q.size(), NAN);
  DecodeScratch scratch(counter, s, nullptr);
  double worst = 0;
  for (int run = 0; run < 2; ++run) {
    const auto out = to_device(counter, poison);
    const auto log_sum = to_device(counter, std::vector<float>(s.sequences * s.query_heads, NAN));
    const DecodeCall call{
        {q_device.data(), span_device.data(), out.data(), log_sum.data()}, s, c.dtype};
    decode_dense(call, scratch, nullptr);
    const auto got = to_host(out), got_log = to_host(log_sum);
    const auto queries = widen(q, c.dtype);
    for (int list = 0; list < lists; ++list) {
      std::vector<const OracleSpan*> mine;
      size_t rows = 0;
      for (int i = 0; i < s.spans; ++i) {
        mine.push_back(&oracles[list * s.spans + i]);
        rows += c.rows[list * s.spans + i];
      }
      for (int i = 0; i < group; ++i) {
        const int head = list * group + i;
        std::vector<double> want;
        const double log_want = oracle(want, queries.data() + static_cast<size_t>(head) * dim, dim,
                                       1 / std::sqrt(static_cast<double>(dim)), mine);
        worst = std::max(
            worst,
            relative_error({got.begin() + head * dim, got.begin() + (head + 1) * dim}, want));
        if (rows == 0) {
          EXPECT_EQ(got_log[head], -INFINITY);
        } else {
          EXPECT_NEAR(got_log[head], log_want, 2e-2);
        }
      }
    }
  }
  return worst;
}

// p and the result of one product are rounded to the dtype: 8 (bf16) or 11 (f16) bits.
double bound(DType dtype) { return dtype == DType::kBF16 ? 8e-3 : 1.5e-3; }

TEST(CudaDecode, EveryRowCountAroundTheTiles) {
  PITH_NEEDS_GPU();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int dim : {64, 128, 256}) {
      for (const int rows : {0, 1, 2, 15, 16, 17, 31, 100, 127, 128, 129, 1000, 5000}) {
        const Case c{{1, 4, 1, dim, 1, 0}, dtype, {rows}};
        EXPECT_LT(error_of(c), bound(dtype)) << dim << " x " << rows;
      }
    }
  }
}

TEST(CudaDecode, EveryQueryGroup) {
  PITH_NEEDS_GPU();
  for (const int group : {1, 4, 8, 9}) {
    const Case c{{1, 2 * group, 2, 256, 1, 0}, DType::kF16, {300, 77}};
    EXPECT_LT(error_of(c), bound(c.dtype)) << group << " queries of 256 channels";
  }
  for (const int group : {1, 2, 3, 4, 5, 7, 8, 9, 12, 16}) {
    const Case c{{1, 2 * group, 2, 128, 1, 0}, DType::kBF16, {300, 77}};
    EXPECT_LT(error_of(c), bound(c.dtype)) << group;
  }
}

TEST(CudaDecode, RaggedHeadsOfSeveralSequences) {
  PITH_NEEDS_GPU();
  Case c{{3, 32, 8, 128, 1, 0}, DType::kF16, {}};
  std::mt19937 rng(5);
  for (int i = 0; i < 24; ++i) c.rows.push_back(i % 5 == 0 ? 0 : static_cast<int>(rng() % 4000));
  EXPECT_LT(error_of(c), bound(c.dtype));
}

TEST(CudaDecode, MoreHeadsThanBlocks) {
  PITH_NEEDS_GPU();
  Case c{{60, 8, 8, 64, 1, 0}, DType::kF16, {}};
  for (int i = 0; i < 480; ++i) c.rows.push_back(i % 40);
  EXPECT_LT(error_of(c), bound(c.dtype));
}

TEST(CudaDecode, WeightsAreAddedToScores) {
  PITH_NEEDS_GPU();
  Case c{{1, 8, 2, 128, 2, 0}, DType::kF16, {500, 33, 7, 900}};
  c.weights = true;
  EXPECT_LT(error_of(c), bound(c.dtype));
}

// Calls of one launch, each with sinks of its own or none, and of lists that one block merges,
// several blocks, or none have rows of.
TEST(CudaDecode, SinksOfSeveralCallsInOneLaunch) {
  PITH_NEEDS_GPU();
  constexpr int kCalls = 3, kHeads = 18, kDim = 64;
  const DecodeShape shape{1, kHeads, 2, kDim, 1, 0, 2};
  MemoryCounter counter;
  std::vector<DecodePlace> places;
  std::vector<DeviceArray<float>> outs, log_sums, sinks;
  std::vector<DeviceArray<uint16_t>> held;
  std::vector<DeviceArray<DeviceSpan>> spans;
  for (int i = 0; i < kCalls; ++i) {
    std::vector<DeviceSpan> own(2);
    const int rows[] = {i == 1 ? 2000 : 30 + i, i == 2 ? 0 : 700};
    for (int g = 0; g < 2; ++g) {
      const size_t numbers = static_cast<size_t>(rows[g]) * kDim;
      own[g].rows = rows[g];
      own[g].row_stride = kDim;
      held.push_back(to_device(counter, normals(numbers, DType::kF16, 10 * i + g)));
      own[g].keys = held.back().data();
      held.push_back(to_device(counter, normals(numbers, DType::kF16, 50 + 10 * i + g)));
      own[g].values = held.back().data();
    }
    spans.push_back(to_device(counter, own));
    held.push_back(to_device(counter, normals(kHeads * kDim, DType::kF16, 200 + i)));
    std::vector<float> logits(kHeads);
    for (int h = 0; h < kHeads; ++h) logits[h] = static_cast<float>(i + h % 7);
    sinks.push_back(to_device(counter, logits));
    outs.push_back(to_device(counter, std::vector<float>(kHeads * kDim, NAN)));
    log_sums.push_back(to_device(counter, std::vector<float>(kHeads, NAN)));
    places.push_back({held.back().data(), spans.back().data(), outs.back().data(),
                      log_sums.back().data(), nullptr, nullptr});
  }
  const auto run = [&] {
    const auto on_device = to_device(counter, places);
    const DecodeScratch scratch(counter, shape, nullptr, kCalls);
    DecodeGroups groups;
    for (int i = 0; i < kCalls; ++i) {
      DecodeCall call{places[i], shape, DType::kF16};
      call.company = {&groups, on_device.data() + i, kCalls, 4};
      groups.next_sequence();
      decode_dense(call, scratch, nullptr);
    }
    const auto launches = groups.take();
    EXPECT_EQ(launches.size(), 1u);
    DecodeGroups::run(launches, nullptr);
    std::vector<std::vector<float>> found;
    for (int i = 0; i < kCalls; ++i) found.push_back(to_host(outs[i]));
    for (int i = 0; i < kCalls; ++i) found.push_back(to_host(log_sums[i]));
    return found;
  };
  const auto plain = run();
  places[0].sinks = sinks[0].data();  // the second call has none
  places[2].sinks = sinks[2].data();
  const auto with = run();
  EXPECT_EQ(with[1], plain[1]);
  EXPECT_EQ(with[kCalls + 1], plain[kCalls + 1]);
  for (const int i : {0, 2}) {
    for (int h = 0; h < kHeads; ++h) {
      const double logit = i + h % 7, before = plain[kCalls + i][h];
      const double log_sum = std::log(std::exp(before) + std::exp(logit));
      EXPECT_NEAR(with[kCalls + i][h], log_sum, 1e-4) << i << ", " << h;
      for (int c = 0; c < kDim; ++c) {
        const double want = plain[i][h * kDim + c] * std::exp(before - log_sum);
        EXPECT_NEAR(with[i][h * kDim + c], want, 1e-5) << i << ", " << h << ", " << c;
      }
    }
  }
}

TEST(CudaDecode, RefusesShapesThatItDoesNotKnow) {
  DecodeCall call;
  call.shape = {1, 3, 2, 128, 1, 0};
  EXPECT_THROW(call.check(), Error);
  call.shape = {1, 4, 2, 80, 1, 0};
  EXPECT_THROW(call.check(), Error);
  call.shape = {1, 4, 2, 128, 1, 0};
  call.dtype = DType::kF32;
  EXPECT_THROW(call.check(), Error);
  call.dtype = DType::kF16;
  EXPECT_NO_THROW(call.check());
}

}  // namespace
}  // namespace pith::cuda
