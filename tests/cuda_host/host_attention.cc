// Attention and its mass: see host_device.h.

#include <cmath>
#include <limits>

#include "attend/cuda/causal.h"
#include "host_device.h"
#include "kernels/cuda/turn.h"

namespace pith::cuda {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

/// The softmax of one query, a row at a time.
struct Sum {
  double top = kNothing, sum = 0;
  std::vector<double> out;

  explicit Sum(size_t dim) : out(dim, 0) {}
  void add(double score, const float* value) {
    if (score == kNothing) return;
    if (score > top) {
      const double shrink = std::exp(top - score);
      sum *= shrink;
      for (double& x : out) x *= shrink;
      top = score;
    }
    const double weight = std::exp(score - top);
    sum += weight;
    for (size_t c = 0; c < out.size(); ++c) out[c] += weight * value[c];
  }
  double log_sum() const { return top + std::log(sum); }
};

/// The first number of a dense row's key.
size_t key_number(const MassTarget& target, int head, int row, size_t dim) {
  return target.heads.at(static_cast<size_t>(head), target.head_stride, dim) +
         static_cast<size_t>(row) * dim;
}

double scale_of(int dim) { return 1 / std::sqrt(static_cast<double>(dim)); }

}  // namespace

void attend_spans(const DecodeCall& call) {
  const DecodeShape& shape = call.shape;
  const auto dim = static_cast<size_t>(shape.head_dim);
  const double scale = shape.scale != 0 ? double{shape.scale} : scale_of(shape.head_dim);
  for (int h = 0; h < shape.query_heads; ++h) {
    const size_t at = static_cast<size_t>(h) * dim;
    const std::vector<float> q = floats(call.dtype, call.q, at, dim);
    const DeviceSpan* spans = call.spans + h / (shape.query_heads / shape.kv_heads) * shape.spans;
    Sum sum(dim);
    for (int i = 0; i < shape.spans; ++i) {
      const DeviceSpan& span = spans[i];
      if (span.rows == 0) continue;
      const DType dtype = span.coded != 0 ? DType::kF16 : call.dtype;
      const auto rows = static_cast<size_t>(span.rows);
      const auto k = floats(dtype, span.keys, 0, rows * dim);
      const auto v = floats(dtype, span.values, 0, rows * dim);
      for (size_t r = 0; r < rows; ++r) {
        const double own = span.log_weights ? double{span.log_weights[r]} : 0;
        sum.add(scale * dot(q.data(), &k[r * dim], dim) + span.log_weight + own, &v[r * dim]);
      }
    }
    for (size_t c = 0; c < dim; ++c) call.out[at + c] = static_cast<float>(sum.out[c] / sum.sum);
    if (call.log_sum) call.log_sum[h] = static_cast<float>(sum.log_sum());
  }
}

void decode_dense(const DecodeCall& call, const DecodeScratch&, cudaStream_t) {
  attend_spans(call);
}

// Between launches `out` is what there is so far, divided by its weights.
void attend_chunk(const CausalCall& call, cudaStream_t) {
  const auto dim = static_cast<size_t>(call.head_dim);
  const int group = call.query_heads / call.kv_heads;
  const CausalSpan& span = call.span;
  const auto heads = static_cast<size_t>(call.query_heads);
  const auto q = floats(call.dtype, call.q, 0, static_cast<size_t>(call.tokens) * heads * dim);
  for (int g = 0; g < call.kv_heads; ++g) {
    const size_t first = span.heads.at(static_cast<size_t>(g), span.head_stride, dim);
    const size_t count = static_cast<size_t>(span.rows) * dim;
    const auto k = floats(call.dtype, span.keys, first, count);
    const auto v = floats(call.dtype, span.values, first, count);
    int64_t held = span.rows;
    if (span.heads.rows)
      held = std::clamp<int64_t>(span.heads.rows[g] - span.head_rows_before, 0, span.rows);
    for (int t = 0; t < call.tokens; ++t) {
      for (int h = g * group; h < (g + 1) * group; ++h) {
        const size_t query = static_cast<size_t>(t) * heads + static_cast<size_t>(h);
        Sum sum(dim);
        if (!call.first) {
          sum.top = double{call.log_sum[query]} * std::log(2.0);
          sum.sum = 1;
          for (size_t c = 0; c < dim; ++c) sum.out[c] = call.out[query * dim + c];
        }
        const int64_t rows = span.before >= 0 ? std::min(held, span.before + t + 1) : held;
        for (int64_t r = std::max<int64_t>(0, span.from + t); r < rows; ++r) {
          const auto row = static_cast<size_t>(r);
          const size_t weight = static_cast<size_t>(g) * span.weights_stride + row;
          const double own = span.log_weights ? double{span.log_weights[weight]} : 0;
          sum.add(scale_of(call.head_dim) * dot(&q[query * dim], &k[row * dim], dim) +
                      span.log_weight + own,
                  &v[row * dim]);
        }
        for (size_t c = 0; c < dim; ++c) {
          const float x = sum.sum > 0 ? static_cast<float>(sum.out[c] / sum.sum) : 0;
          if (!call.last)
            call.out[query * dim + c] = x;
          else if (call.result_dtype == DType::kF32)
            static_cast<float*>(call.result)[query * dim + c] = x;
          else
            put(call.result_dtype, call.result, query * dim + c, x);
        }
        if (call.log_sum)
          call.log_sum[query] =
              sum.sum > 0 ? static_cast<float>(sum.log_sum() / std::log(2.0)) : -1e30f;
      }
    }
  }
}

void add_mass(const TokenMass& call, const MassTarget& target) {
  const MassShape& shape = call.shape;
  const auto dim = static_cast<size_t>(shape.head_dim);
  const int group = shape.query_heads / shape.kv_heads;
  for (int g = 0; g < shape.kv_heads; ++g) {
    const int in_codes = target.coded_count(static_cast<size_t>(g));
    for (int r = 0; r < target.count(static_cast<size_t>(g)) + in_codes; ++r) {
      const bool coded = r >= target.coded_from && r < target.coded_from + in_codes;
      const int dense = r < target.coded_from ? r : r - in_codes;
      const auto k =
          coded ? floats(DType::kF16,
                         row_at(target.codes, target.first_block(static_cast<size_t>(g)) * 32 * dim,
                                1, r - target.coded_from, shape.head_dim),
                         0, dim)
                : floats(shape.dtype, target.keys, key_number(target, g, dense, dim), dim);
      double added = 0;
      for (int h = g * group; h < (g + 1) * group; ++h) {
        const auto q = floats(shape.dtype, call.q, static_cast<size_t>(h) * dim, dim);
        added += std::exp(scale_of(shape.head_dim) * dot(q.data(), k.data(), dim) -
                          double{call.log_sum[h]});
      }
      float& mass = target.mass[target.mass_at(static_cast<size_t>(g)) + static_cast<size_t>(r)];
      mass = static_cast<float>((r < target.known ? double{mass} : 0) + added);
    }
  }
}

void add_token_mass(const TokenMass& call, const MassTarget* target, cudaStream_t) {
  add_mass(call, *target);
}

void add_chunk_mass(const ChunkMass& call, const MassTarget& target, cudaStream_t) {
  const MassShape& shape = call.shape;
  const auto dim = static_cast<size_t>(shape.head_dim);
  const int group = shape.query_heads / shape.kv_heads;
  const auto heads = static_cast<size_t>(shape.query_heads);
  const auto q = floats(shape.dtype, call.q, 0, static_cast<size_t>(call.tokens) * heads * dim);
  for (int g = 0; g < shape.kv_heads; ++g) {
    for (int r = 0; r < target.count(static_cast<size_t>(g)); ++r) {
      const auto k = floats(shape.dtype, target.keys, key_number(target, g, r, dim), dim);
      const int place = r < target.coded_from ? r : r + target.coded;
      double added = 0;
      for (int t = std::max(call.tokens - call.queries, r - call.before); t < call.tokens; ++t) {
        for (int h = g * group; h < (g + 1) * group; ++h) {
          const size_t query = static_cast<size_t>(t) * heads + static_cast<size_t>(h);
          added += std::exp(scale_of(shape.head_dim) * dot(&q[query * dim], k.data(), dim) -
                            double{call.log_sum[query]} * std::log(2.0));
        }
      }
      float& mass =
          target.mass[target.mass_at(static_cast<size_t>(g)) + static_cast<size_t>(place)];
      mass = static_cast<float>((place < target.known ? double{mass} : 0) + added);
    }
  }
}

void turn_rows(const TurnRowsCall& call, cudaStream_t) {
  const auto steps = static_cast<double>(call.steps_at ? *call.steps_at : call.steps);
  const int half = call.dim / 2;
  for (int r = 0; r < call.rows; ++r) {
    for (int i = 0; i < half; ++i) {
      const size_t a = static_cast<size_t>(r * call.dim + i), b = a + static_cast<size_t>(half);
      const double x = number(call.dtype, call.from, a), y = number(call.dtype, call.from, b);
      const double cos = std::cos(steps * call.frequencies[i]);
      const double sin = std::sin(steps * call.frequencies[i]);
      put(call.dtype, call.to, a, static_cast<float>(x * cos - y * sin));
      put(call.dtype, call.to, b, static_cast<float>(x * sin + y * cos));
    }
  }
}

}  // namespace pith::cuda
