// Attention of a chunk on the GPU against double precision on the CPU: every size around the tiles,
// groups of heads, spans together and one after the other.

#include "attend/cuda/causal.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "harness.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

struct Case {
  int heads = 4, kv_heads = 2, dim = 64, tokens = 1;
  DType dtype = DType::kF16, result = DType::kF32;
  std::vector<int> spans;  // rows of the spans before the chunk's own, which come last
  int before = 0;          ///< rows in the last span before the chunk's own
  float log_weight = 0;    ///< of all spans but the last, more of every other one
  int window = 0;          ///< rows that a query sees, over all spans; 0: all
  std::vector<int> of_head =
      {};                 ///< rows of each KV head in all spans but the last; or all have all
  bool weighted = false;  ///< rows of all spans but the last have weights of their own, too
  bool some = false;      ///< but every other one's have none
  float soft_cap = 0;
  bool sinks = false;
};

/// The change that a cap makes to a score, as a weight of its row.
double cap_weight(const Case& c, const float* q, const float* k) {
  double score = 0;
  for (int i = 0; i < c.dim; ++i) score += double{q[i]} * k[i];
  score /= std::sqrt(static_cast<double>(c.dim));
  return c.soft_cap * std::tanh(score / c.soft_cap) - score;
}
float sink_of(int head) { return 1.5f * static_cast<float>(head) - 1; }

float log_weight(const Case& c, bool last, size_t i) {
  return last ? 0 : c.log_weight * static_cast<float>(1 + i % 2);
}
bool weighted(const Case& c, bool last, size_t i) {
  return c.weighted && !last && !(c.some && i % 2 == 1);
}

/// Rows of the spans before span `i`.
int rows_before(const std::vector<int>& counts, size_t i) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<ptrdiff_t>(i), 0);
}

/// Rows of span `i` that are too old for query t; all spans are one stream.
int unseen_before(const Case& c, const std::vector<int>& counts, size_t i, int t) {
  const int rows = rows_before(counts, counts.size() - 1) - rows_before(counts, i);
  return c.before + t + rows - c.window + 1;  // from the span's first row to the query, less all
}

/// A call's spans go together, or each is a call of its own that continues from those before.
enum class Way { kMma, kHopper, kHopperApart };

void attend(CausalCall call, const std::vector<CausalSpan>& spans, Way way) {
  if (way == Way::kMma) return attend_chunk_mma(call, spans, nullptr);
  if (way == Way::kHopper) return attend_chunk_wgmma(call, spans, nullptr);
  for (const CausalSpan& span : spans) {
    call.last = &span == &spans.back();
    attend_chunk_wgmma(call, {&span, 1}, nullptr);
    call.first = false;
  }
}

double error_of(const Case& c, Way way) {
  MemoryCounter counter;
  const int group = c.heads / c.kv_heads;
  std::vector<int> counts = c.spans;
  counts.push_back(c.before + c.tokens);
  struct Rows {
    std::vector<uint16_t> k, v;
    std::vector<float> weights;  // [G, counts]
    DeviceArray<uint16_t> k_device, v_device;
    DeviceArray<float> weights_device;
    size_t stride;
  };
  std::vector<Rows> rows;
  for (size_t i = 0; i < counts.size(); ++i) {
    Rows r;
    r.stride = static_cast<size_t>(counts[i] + 3) * c.dim;  // heads do not follow each other
    r.k = normals(c.kv_heads * r.stride, c.dtype, 10 + i);
    r.v = normals(c.kv_heads * r.stride, c.dtype, 50 + i);
    r.k_device = to_device(counter, r.k);
    r.v_device = to_device(counter, r.v);
    for (int n = 0; n < c.kv_heads * counts[i]; ++n)
      r.weights.push_back(static_cast<float>(n * 7 % 23) / 8 - 1);
    r.weights_device = to_device(counter, r.weights);
    rows.push_back(std::move(r));
  }
  const size_t numbers = static_cast<size_t>(c.tokens) * c.heads * c.dim;
  const auto q = normals(numbers, c.dtype, 3);
  const auto q_device = to_device(counter, q);
  const auto out = to_device(counter, std::vector<float>(numbers, NAN));
  const auto log_sum = to_device(counter, std::vector<float>(c.tokens * c.heads, NAN));
  const auto result = to_device(counter, std::vector<float>(numbers, NAN));
  const auto of_head = to_device(counter, c.of_head);
  std::vector<CausalSpan> given;
  for (size_t i = 0; i < counts.size(); ++i) {
    const bool last = i + 1 == counts.size();
    CausalSpan span{rows[i].k_device.data(), rows[i].v_device.data(), rows[i].stride, counts[i],
                    last ? c.before : -1,    log_weight(c, last, i)};
    if (c.window > 0) span.from = unseen_before(c, counts, i, 0);
    if (weighted(c, last, i)) {
      span.log_weights = rows[i].weights_device.data();
      span.weights_stride = counts[i];
    }
    if (!c.of_head.empty() && !last) {
      span.heads.rows = of_head.data();
      span.head_rows_before = rows_before(counts, i);
    }
    given.push_back(span);
  }
  CausalCall call;
  call.query_heads = c.heads;
  call.kv_heads = c.kv_heads;
  call.head_dim = c.dim;
  call.tokens = c.tokens;
  call.dtype = c.dtype;
  call.q = q_device.data();
  call.out = out.data();
  call.log_sum = log_sum.data();
  call.result = result.data();
  call.result_dtype = c.result;
  call.soft_cap = c.soft_cap;
  std::vector<float> logits;
  for (int h = 0; h < c.heads; ++h) logits.push_back(sink_of(h));
  const auto sinks = to_device(counter, logits);
  if (c.sinks) call.sinks = sinks.data();
  attend(call, given, way);
  auto got = to_host(result);
  if (c.result != DType::kF32) {
    std::vector<uint16_t> half(numbers);
    std::memcpy(half.data(), got.data(), numbers * 2);
    got = widen(half, c.result);
  }
  const auto queries = widen(q, c.dtype);
  double worst = 0;
  for (int t = 0; t<c.tokens; t += c.tokens> 40 ? 7 : 1) {
    for (int h = 0; h < c.heads; ++h) {
      std::vector<OracleSpan> spans;
      for (size_t i = 0; i < counts.size(); ++i) {
        const bool last = i + 1 == counts.size();
        const int own =
            c.of_head.empty()
                ? counts[i]
                : std::clamp(c.of_head[h / group] - rows_before(counts, i), 0, counts[i]);
        const int end = last ? c.before + t + 1 : own;
        const int first = c.window > 0 ? std::clamp(unseen_before(c, counts, i, t), 0, end) : 0;
        const auto head = [&](const std::vector<uint16_t>& x) {
          const auto from = x.begin() + static_cast<ptrdiff_t>(h / group * rows[i].stride);
          return widen({from + first * c.dim, from + end * c.dim}, c.dtype);
        };
        std::vector<float> weights(end - first, log_weight(c, last, i));
        for (int r = 0; weighted(c, last, i) && r < end - first; ++r)
          weights[r] += rows[i].weights[h / group * counts[i] + first + r];
        OracleSpan span{head(rows[i].k), head(rows[i].v), std::move(weights)};
        for (int r = 0; c.soft_cap > 0 && r < end - first; ++r) {
          const float* query = queries.data() + (static_cast<size_t>(t) * c.heads + h) * c.dim;
          span.log_weights[r] +=
              static_cast<float>(cap_weight(c, query, span.k.data() + r * c.dim));
        }
        spans.push_back(std::move(span));
      }
      std::vector<const OracleSpan*> mine;
      for (const OracleSpan& s : spans) mine.push_back(&s);
      std::vector<double> want;
      const size_t at = (static_cast<size_t>(t) * c.heads + h) * c.dim;
      const double log_sum =
          oracle(want, queries.data() + at, c.dim, 1 / std::sqrt(static_cast<double>(c.dim)), mine);
      if (c.sinks) {
        for (double& x : want) x /= 1 + std::exp(sink_of(h) - log_sum);
      }
      const auto from = got.begin() + static_cast<ptrdiff_t>(at);
      worst = std::max(worst, relative_error({from, from + c.dim}, want));
    }
  }
  return worst;
}

/// Of the worst way of those that the card has.
double error_of(const Case& c) {
  double error = error_of(c, Way::kMma);
  if (!has_wgmma()) return error;
  if (!c.spans.empty()) error = std::max(error, error_of(c, Way::kHopperApart));
  return std::max(error, error_of(c, Way::kHopper));
}

double bound(DType dtype) { return dtype == DType::kBF16 ? 1e-2 : 2e-3; }

TEST(CudaCausal, EverySizeAroundTheTiles) {
  PITH_NEEDS_GPU();
  for (const int dim : {64, 128, 256}) {
    for (const int tokens : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300}) {
      for (const int before : {0, 1, 63, 64, 100, 200}) {
        if (left_out()) continue;
        const DType dtype = tokens % 2 ? DType::kBF16 : DType::kF16;
        const Case c{.dim = dim, .tokens = tokens, .dtype = dtype, .spans = {}, .before = before};
        EXPECT_LT(error_of(c), bound(dtype)) << dim << ": " << tokens << " after " << before;
      }
    }
  }
}

TEST(CudaCausal, EveryQueryGroup) {
  PITH_NEEDS_GPU();
  for (const int group : {1, 2, 3, 4, 8, 16}) {
    const Case c{.heads = 2 * group, .dim = 128, .tokens = 33, .spans = {}, .before = 50};
    EXPECT_LT(error_of(c), bound(c.dtype)) << group;
  }
}

TEST(CudaCausal, SpansGoOnFromEachOther) {
  PITH_NEEDS_GPU();
  for (const DType result : {DType::kF32, DType::kF16, DType::kBF16}) {
    Case c{.dim = result == DType::kF16 ? 256 : 128,
           .tokens = 70,
           .result = result,
           .spans = {4, 200, 64},
           .before = 31};
    c.log_weight = 0.7f;
    EXPECT_LT(error_of(c), result == DType::kBF16 ? 1e-2 : 2e-3);
    c.before = 0;
    c.dim = 64;
    EXPECT_LT(error_of(c), result == DType::kBF16 ? 1e-2 : 2e-3);
  }
}

// From one span to more than a launch takes, a few rows of some; more heads and queries than the
// emulated card's multiprocessors, so that blocks go on to other queries.
TEST(CudaCausal, ManySpans) {
  PITH_NEEDS_GPU();
  const std::vector<int> rows{4, 1, 130, 2, 64, 3, 300, 128, 5, 1};
  for (const int tokens : {1, 70, 130, 300}) {
    for (const int count : {1, 2, 3, 5, 7, 8, 10}) {
      if (left_out()) continue;
      Case c{
          .heads = count % 2 ? 6 : 4, .dim = count % 3 ? 64 : 128, .tokens = tokens, .spans = {}};
      c.dtype = tokens % 2 ? DType::kBF16 : DType::kF16;
      c.spans = {rows.begin(), rows.begin() + count};
      c.before = 9 * (count % 4);
      c.log_weight = 0.7f;
      EXPECT_LT(error_of(c), bound(c.dtype)) << count << " spans, " << tokens << " tokens";
      c.weighted = c.some = true;
      EXPECT_LT(error_of(c), bound(c.dtype)) << count << " weighted, " << tokens << " tokens";
      c.weighted = c.some = false;
      c.window = 90;
      EXPECT_LT(error_of(c), bound(c.dtype)) << count << " sliding, " << tokens << " tokens";
    }
  }
}

TEST(CudaCausal, RowsHaveTheirOwnWeights) {
  PITH_NEEDS_GPU();
  for (const int dim : {64, 128, 256}) {
    for (const int rows : {1, 63, 128, 300}) {
      if (left_out()) continue;
      Case c{.heads = 6, .dim = dim, .tokens = 70, .spans = {rows, 130}, .before = rows};
      c.dtype = rows % 2 ? DType::kBF16 : DType::kF16;
      c.log_weight = 0.7f;
      c.weighted = true;
      EXPECT_LT(error_of(c), bound(c.dtype)) << dim << ": " << rows;
    }
  }
}

// Heads that end in every span, within tiles and at their ends; some have nothing at all.
TEST(CudaCausal, HeadsHaveTheirOwnRows) {
  PITH_NEEDS_GPU();
  for (const auto& rows : std::vector<std::vector<int>>{
           {0, 296}, {1, 4}, {5, 63}, {64, 68}, {69, 132}, {133, 195}, {196, 0}, {231, 232}}) {
    Case c{.dim = rows[0] % 2 ? 64 : 128, .tokens = 70, .spans = {4, 128, 64, 100}, .before = 31};
    c.log_weight = 0.7f;
    c.of_head = rows;
    EXPECT_LT(error_of(c), bound(c.dtype)) << rows[0] << " and " << rows[1];
  }
}

// Windows that end in every span, within tiles and at their ends; queries of one block see nothing
// of the first spans, or only some of them do.
TEST(CudaCausal, QueriesSeeTheirWindow) {
  PITH_NEEDS_GPU();
  for (const int window : {1, 2, 31, 64, 65, 100, 128, 129, 250, 400, 10000}) {
    for (const int tokens : {1, 17, 64, 130, 300}) {
      for (const int before : {0, 5, 64, 200}) {
        if (left_out()) continue;
        Case c{.dim = window % 2     ? 64
                      : window < 100 ? 256
                                     : 128,
               .tokens = tokens,
               .spans = {},
               .before = before};
        c.dtype = tokens % 2 ? DType::kBF16 : DType::kF16;
        c.window = window;
        EXPECT_LT(error_of(c), bound(c.dtype)) << window << ": " << tokens << " after " << before;
        c.spans = {96, 70};
        EXPECT_LT(error_of(c), bound(c.dtype)) << window << ": " << tokens << ", three spans";
      }
    }
  }
}

TEST(CudaCausal, CapsAndSinks) {
  PITH_NEEDS_GPU();
  for (const int dim : {64, 128, 256}) {
    for (const bool sinks : {false, true}) {
      for (const float cap : {0.0f, 0.4f}) {
        if (!sinks && cap == 0) continue;
        Case c{.dim = dim, .tokens = 70, .soft_cap = cap, .sinks = sinks};
        EXPECT_LT(error_of(c), bound(c.dtype)) << dim << ", its own rows";
        c.spans = {100, 64, 37};
        c.before = 5;
        c.log_weight = 0.3f;
        EXPECT_LT(error_of(c), bound(c.dtype)) << dim << ", spans";
        c.weighted = c.some = true;
        EXPECT_LT(error_of(c), bound(c.dtype)) << dim << ", weights";
        c = {.dim = dim,
             .tokens = 70,
             .dtype = DType::kBF16,
             .spans = {90, 200},
             .before = 3,
             .window = 80,
             .soft_cap = cap,
             .sinks = sinks};
        EXPECT_LT(error_of(c), bound(c.dtype)) << dim << ", a window";
      }
    }
  }
}

TEST(CudaCausal, RefusesWhatItDoesNotKnow) {
  CausalCall call;
  call.query_heads = 4;
  call.kv_heads = 2;
  call.tokens = 3;
  CausalSpan span;
  span.rows = 3;
  call.head_dim = 80;
  EXPECT_THROW(call.check(span), Error);
  call.head_dim = 64;
  EXPECT_NO_THROW(call.check(span));
  const float weight = 0;
  span.log_weights = &weight;
  EXPECT_NO_THROW(call.check(span));
  span.from = -2;
  EXPECT_NO_THROW(call.check(span));
  span.from = -1;  // the third query does not see the first row
  EXPECT_THROW(call.check(span), Error);
  span.log_weights = nullptr;
  EXPECT_NO_THROW(call.check(span));
  call.dtype = DType::kF32;
  EXPECT_THROW(call.check(span), Error);
}

// The limits of a launch of Hopper's kernel; the rest goes on alone, by the kernel for all cards.
TEST(CudaCausal, SpansThatGoTogether) {
  CausalCall call;
  call.query_heads = 4;
  call.kv_heads = 2;
  call.head_dim = 64;
  call.tokens = 3;
  alignas(16) const uint16_t numbers[8] = {};
  const int32_t heads = 1;
  const float weight = 0;
  CausalSpan plain{numbers, numbers, 64, 3};
  CausalSpan weighted = plain, sliding = plain, ragged = plain, odd = plain, uneven = plain;
  weighted.log_weights = &weight;
  sliding.from = 0;
  ragged.heads.rows = &heads;
  odd.values = numbers + 1;
  uneven.head_stride = 68;
  const auto together = [&](const std::vector<CausalSpan>& spans) { return call.together(spans); };
  EXPECT_EQ(together({plain}), 1);
  EXPECT_EQ(together({plain, weighted, plain}), 3);
  EXPECT_EQ(together({plain, sliding, plain}), 3);
  EXPECT_EQ(together({plain, sliding, weighted}), 2);
  EXPECT_EQ(together({weighted, plain, sliding}), 2);
  for (const CausalSpan& alone : {ragged, odd, uneven}) {
    EXPECT_EQ(together({plain, plain, alone, plain}), 2);
    EXPECT_EQ(together({alone, plain}), 0);
  }
  EXPECT_EQ(together(std::vector<CausalSpan>(11, plain)), kMostChunkSpans);
  call.q = numbers + 1;
  EXPECT_EQ(together({plain}), 0);
}

}  // namespace
}  // namespace pith::cuda
