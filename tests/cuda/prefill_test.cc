// Prefill attention over lists of rows, both kernels, against double precision; Express's plan
// against what must hold of it, its coresets against the stream's, its attention against both.

#include "attend/cuda/prefill.h"

#include <numeric>

#include "harness.h"
#include "methods/express/express_prefill.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

/// Token-major heads [T, heads, D].
struct Tokens {
  Tokens(int rows, int heads_of_all, int d, DType type, uint32_t seed)
      : heads(heads_of_all),
        dim(d),
        x(normals(static_cast<size_t>(rows) * heads * dim, type, seed)) {}
  StridedHeads on(const DeviceArray<uint16_t>& device) const {
    return {device.data(), static_cast<size_t>(heads) * dim, static_cast<size_t>(dim)};
  }
  std::vector<float> row(DType type, int t, int head) const {
    const uint16_t* from = x.data() + (static_cast<size_t>(t) * heads + head) * dim;
    return widen({from, from + dim}, type);
  }
  int heads, dim;
  std::vector<uint16_t> x;
};

struct Shape {
  int tokens, query_heads, kv_heads, dim;
  DType dtype = DType::kBF16;
};

struct Inputs {
  explicit Inputs(const Shape& s)
      : shape(s),
        q(s.tokens, s.query_heads, s.dim, s.dtype, 1),
        k(s.tokens, s.kv_heads, s.dim, s.dtype, 2),
        v(s.tokens, s.kv_heads, s.dim, s.dtype, 3),
        q_device(to_device(counter, q.x)),
        k_device(to_device(counter, k.x)),
        v_device(to_device(counter, v.x)),
        out(to_device(counter, std::vector<uint16_t>(q.x.size(), 0x7fff))) {}

  /// Error of one query's output against the list of rows and weights that it should see.
  double error(const std::vector<uint16_t>& got, int t, int head, const std::vector<int>& rows,
               const std::vector<float>& log_weights) const {
    const int kv = head / (shape.query_heads / shape.kv_heads);
    OracleSpan span;
    span.log_weights = log_weights;
    for (int row : rows) {
      const auto kr = k.row(shape.dtype, row, kv), vr = v.row(shape.dtype, row, kv);
      span.k.insert(span.k.end(), kr.begin(), kr.end());
      span.v.insert(span.v.end(), vr.begin(), vr.end());
    }
    std::vector<double> want;
    oracle(want, q.row(shape.dtype, t, head).data(), shape.dim,
           1 / std::sqrt(static_cast<double>(shape.dim)), {&span});
    const uint16_t* from =
        got.data() + (static_cast<size_t>(t) * shape.query_heads + head) * shape.dim;
    return relative_error(widen({from, from + shape.dim}, shape.dtype), want);
  }

  MemoryCounter counter;
  Shape shape;
  Tokens q, k, v;
  DeviceArray<uint16_t> q_device, k_device, v_device, out;
};

// p and the output are rounded to the dtype.
double bound(DType dtype) { return dtype == DType::kBF16 ? 8e-3 : 1.5e-3; }

/// Chunks of random lists: error over every query.
double list_error(const Shape& shape, const std::vector<int>& chunk_sizes, bool wgmma) {
  const Inputs in(shape);
  std::mt19937 random(11);
  std::vector<PrefillChunk> chunks;
  std::vector<PrefillSegment> segments;
  const int pool_size = 4 * shape.tokens;
  std::vector<int32_t> pool(static_cast<size_t>(shape.kv_heads) * pool_size);
  int at = 0, first = 0, most_rows = 0, most_queries = 0;
  for (int size : chunk_sizes) {
    PrefillChunk chunk;
    chunk.first_query = first;
    chunk.queries = size;
    chunk.first_segment = static_cast<int>(segments.size());
    chunk.exact_from = first - first / 5;
    int rows = 0;
    for (int s = 0; s < 3 && chunk.exact_from > 0; ++s) {
      const int count = static_cast<int>(random() % (first / 2 + 1));
      segments.push_back({at, count, static_cast<float>(random() % 100) / 30});
      for (int h = 0; h < shape.kv_heads; ++h)
        for (int i = 0; i < count; ++i)
          pool[static_cast<size_t>(h) * pool_size + at + i] =
              static_cast<int32_t>(random() % static_cast<uint32_t>(chunk.exact_from));
      at += count;
      rows += count;
    }
    chunk.segments = static_cast<int>(segments.size()) - chunk.first_segment;
    most_rows = std::max(most_rows, rows + first + size - chunk.exact_from);
    most_queries = std::max(most_queries, size);
    chunks.push_back(chunk);
    first += size;
  }
  MemoryCounter counter;
  const auto chunks_device = to_device(counter, chunks);
  const auto segments_device = to_device(counter, segments);
  const auto pool_device = to_device(counter, pool);
  PrefillCall call;
  call.dtype = shape.dtype;
  call.query_heads = shape.query_heads;
  call.kv_heads = shape.kv_heads;
  call.head_dim = shape.dim;
  call.q = in.q.on(in.q_device);
  call.k = in.k.on(in.k_device);
  call.v = in.v.on(in.v_device);
  call.out = in.out.data();
  call.chunks = chunks_device.data();
  call.segments = segments_device.data();
  call.pool = pool_device.data();
  call.pool_stride = pool_size;
  call.chunk_count = static_cast<int>(chunks.size());
  call.most_queries = most_queries;
  call.most_rows = most_rows;
  call.most_segments = 3;
  wgmma ? prefill_chunks_wgmma(call, nullptr) : prefill_chunks_mma(call, nullptr);
  const auto got = to_host(in.out);
  double worst = 0;
  for (const PrefillChunk& chunk : chunks)
    for (int t = chunk.first_query; t < chunk.first_query + chunk.queries; ++t)
      for (int head = t % 3; head < shape.query_heads; head += 3) {
        const int kv = head / (shape.query_heads / shape.kv_heads);
        std::vector<int> rows;
        std::vector<float> weights;
        for (int s = 0; s < chunk.segments; ++s) {
          const PrefillSegment& segment = segments[chunk.first_segment + s];
          for (int i = 0; i < segment.count; ++i) {
            rows.push_back(pool[static_cast<size_t>(kv) * pool_size + segment.first + i]);
            weights.push_back(segment.log_weight);
          }
        }
        for (int r = chunk.exact_from; r <= t; ++r) {
          rows.push_back(r);
          weights.push_back(0);
        }
        worst = std::max(worst, in.error(got, t, head, rows, weights));
      }
  return worst;
}

TEST(CudaPrefill, ListsOfEveryShape) {
  PITH_NEEDS_GPU();
  for (const bool wgmma : {false, true}) {
    if (wgmma && !has_wgmma()) continue;
    for (const int dim : {128, 64}) {
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        EXPECT_LT(list_error({300, 8, 2, dim, dtype}, {1, 63, 128, 100, 8}, wgmma), bound(dtype))
            << (wgmma ? "wgmma " : "mma ") << dim;
      }
    }
  }
}

TEST(CudaPrefill, EveryQueryGroup) {
  PITH_NEEDS_GPU();
  for (const int group : {1, 2, 3, 6, 8, 16}) {
    const Shape shape{150, 2 * group, 2, 128, DType::kBF16};
    EXPECT_LT(list_error(shape, {40, 70, 40}, false), bound(shape.dtype)) << group;
    if (has_wgmma()) {
      EXPECT_LT(list_error(shape, {40, 70, 40}, true), bound(shape.dtype)) << group;
    }
  }
}

TEST(CudaPrefill, RefusesWhatItDoesNotKnow) {
  PrefillCall call;
  call.query_heads = 4;
  call.kv_heads = 2;
  call.head_dim = 80;
  call.chunk_count = call.most_queries = call.most_rows = 1;
  EXPECT_THROW(call.check(), Error);
  call.head_dim = 64;
  EXPECT_NO_THROW(call.check());
  call.most_rows = 100000;
  EXPECT_THROW(call.check(), Error);
}

ExpressRule rule_for(uint32_t target, int dim) {
  ExpressRule rule;
  rule.shape = {target, 1};
  rule.halving.scale = 1 / std::sqrt(static_cast<float>(dim));
  rule.halving.temperature = 0.25f;
  rule.halving.value_constant = 0.1f;
  rule.halving.centre = true;
  return rule;
}

TEST(ExpressPlan, SnapshotsStandForAllRows) {
  for (const uint32_t target : {8u, 16u, 64u, 256u}) {
    for (const ExpressPrefillShape& shape : {ExpressPrefillShape{1, 0, 0, 16},
                                             {5000, 0, 0, 64},
                                             {5003, 4, 32, 100},
                                             {70000, 4, 64, 512},
                                             {3, 4, 8, 16},
                                             {600, 4, 0, 7}}) {
      const ExpressPlan plan = plan_express(rule_for(target, 64), shape);
      int queries = 0;
      size_t chunks = 0;
      for (const PrefillChunk& c : plan.chunks) {
        EXPECT_EQ(c.first_query, queries);
        queries += c.queries;
        double sum = c.exact_from;
        int rows = 0;
        for (int s = c.first_segment; s < c.first_segment + c.segments; ++s) {
          const PrefillSegment& segment = plan.segments[s];
          sum -= segment.count * std::exp(static_cast<double>(segment.log_weight));
          rows += segment.count;
          EXPECT_LE(segment.first + segment.count, plan.pool);
        }
        if (c.segments > 0) {
          EXPECT_NEAR(sum, 0, 1e-5 * shape.tokens);
          EXPECT_LE(rows, shape.sink + static_cast<int>(target) * 3 / 2);
        } else {
          EXPECT_EQ(c.exact_from, 0);
        }
      }
      EXPECT_EQ(queries, shape.tokens);
      for (const ExpressPhase& p : plan.phases) {
        EXPECT_TRUE(p.chunks == 0 || p.first_chunk == static_cast<int>(chunks));
        chunks += p.chunks;
      }
      EXPECT_EQ(chunks, plan.chunks.size());
    }
  }
}

/// What a stream holds of one head: rows and weights.
struct Snapshot {
  std::vector<int> rows;
  std::vector<float> weights;
};
std::vector<Snapshot> snapshot(const ExpressDevice& stream, int heads) {
  const ExpressArrays& a = stream.arrays();
  const auto rows = static_cast<int>(stream.state().rows());
  std::vector<int64_t> positions(static_cast<size_t>(heads) * a.capacity);
  std::vector<float> weights(positions.size());
  check(cudaMemcpy(positions.data(), a.positions, 8 * positions.size(), cudaMemcpyDeviceToHost),
        "");
  check(cudaMemcpy(weights.data(), a.log_weights, 4 * weights.size(), cudaMemcpyDeviceToHost), "");
  std::vector<Snapshot> out(heads);
  for (int h = 0; h < heads; ++h)
    for (int i = 0; i < rows; ++i) {
      out[h].rows.push_back(static_cast<int>(positions[static_cast<size_t>(h) * a.capacity + i]));
      out[h].weights.push_back(weights[static_cast<size_t>(h) * a.capacity + i]);
    }
  return out;
}

void compare_with_stream(const Shape& s, uint32_t target, const ExpressPrefillShape& prompt) {
  Inputs in(s);
  const ExpressRule rule = rule_for(target, s.dim);
  const ExpressSite site{s.dtype, s.dim, s.kv_heads, 0, 3, 1, 0};
  ExpressPrefill prefill(in.counter, rule, site, prompt, nullptr);
  ExpressPrefillRows rows{s.query_heads,        0,
                          in.q.on(in.q_device), in.k.on(in.k_device),
                          in.v.on(in.v_device), in.out.data()};
  prefill.run(rows, nullptr);
  const auto got = to_host(in.out);
  ExpressSite body = site;
  body.first_position = prompt.sink;
  ExpressDevice stream(in.counter, rule, body, nullptr), stored(in.counter, rule, body, nullptr);
  int taken = 0;
  const auto take_to = [&](int end) {
    const size_t at = static_cast<size_t>(prompt.sink + taken) * s.kv_heads * s.dim;
    stream.take({in.k_device.data() + at, in.v_device.data() + at, static_cast<size_t>(s.dim),
                 static_cast<size_t>(s.kv_heads) * s.dim, end - taken},
                nullptr);
    taken = std::max(taken, end);
  };
  double worst = 0;
  for (int first = 0; first < s.tokens;
       first += first == 0 ? prompt.sink + prompt.chunk : prompt.chunk) {
    const int body_rows = std::max(0, first - prompt.sink - prompt.window);
    take_to(body_rows);
    const auto held = snapshot(stream, s.kv_heads);
    const int last = std::min(s.tokens, first + (first == 0 ? prompt.sink : 0) + prompt.chunk);
    for (int t = first; t < last; t += 13) {
      const int head = t / 13 % s.query_heads;
      Snapshot sees = held[head / (s.query_heads / s.kv_heads)];
      for (int r = 0; r <= t; ++r) {
        if (r >= prompt.sink && r < prompt.sink + body_rows) continue;
        sees.rows.push_back(r);
        sees.weights.push_back(0);
      }
      worst = std::max(worst, in.error(got, t, head, sees.rows, sees.weights));
    }
  }
  EXPECT_LT(worst, bound(s.dtype));
  take_to(std::max(0, s.tokens - prompt.sink - prompt.window));
  prefill.store(stored, rows, nullptr);
  check(cudaDeviceSynchronize(), "store");
  const auto want = snapshot(stream, s.kv_heads), have = snapshot(stored, s.kv_heads);
  EXPECT_TRUE(stream.state() == stored.state());
  for (int h = 0; h < s.kv_heads; ++h) {
    EXPECT_EQ(want[h].rows, have[h].rows);
    ASSERT_EQ(want[h].weights.size(), have[h].weights.size());
    for (size_t i = 0; i < want[h].weights.size(); ++i)
      EXPECT_NEAR(want[h].weights[i], have[h].weights[i], 1e-5);
  }
}

TEST(CudaExpressPrefill, SeesWhatTheStreamHolds) {
  PITH_NEEDS_GPU();
  compare_with_stream({2500, 8, 2, 128, DType::kBF16}, 64, {2500, 4, 32, 128});
  compare_with_stream({1503, 4, 2, 64, DType::kF16}, 128, {1503, 0, 0, 100});
  compare_with_stream({700, 4, 4, 128, DType::kBF16}, 8, {700, 3, 5, 50});
  compare_with_stream({100, 4, 1, 128, DType::kBF16}, 256, {100, 4, 8, 64});
}

}  // namespace
}  // namespace pith::cuda
