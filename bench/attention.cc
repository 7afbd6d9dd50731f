#include "attention.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "attend/attend.h"
#include "core/philox.h"
#include "dnnl.hpp"
#include "kernels/matmul.h"
#include "kernels/read_rate.h"
#include "rows/cpu/dense.h"
#include "timing.h"

namespace pith::bench {
namespace {

std::vector<float> random_numbers(size_t n, uint32_t seed) {
  const Philox random(seed, 0, 0);
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = 2 * random.uniform(i) - 1;
  return x;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
  return largest;
}

/// The rows of one layer, as spans.
struct Layer {
  std::vector<std::unique_ptr<DenseRowsStore>> stores;
  std::vector<Span> spans;                   // [G]
  std::vector<std::span<const Span>> lists;  // [G]
};

std::unique_ptr<Layer> make_layer(const Context& context, const DecodeShape& s,
                                  const std::vector<float>& numbers) {
  auto layer = std::make_unique<Layer>();
  const size_t piece = 1024;
  for (size_t g = 0; g < s.kv_heads; ++g) {
    for (Side side : {Side::kKeys, Side::kValues}) {
      layer->stores.push_back(std::make_unique<DenseRowsStore>(
          context, s.dtype, RowsRequest{.side = side, .dim = s.head_dim, .max_rows = s.rows}));
      for (size_t t = 0; t < s.rows; t += piece)
        layer->stores.back()->append(numbers.data() + (t / piece + g) % 64 * 16, s.head_dim,
                                     std::min(piece, s.rows - t));
    }
    layer->spans.push_back({.keys = layer->stores[2 * g].get(),
                            .values = layer->stores[2 * g + 1].get(),
                            .count = s.rows});
  }
  for (const Span& span : layer->spans) layer->lists.emplace_back(&span, 1);
  return layer;
}

/// C[m, n] = A[m, k] B[k, n] by oneDNN; `transposed`: B lies as [n, k].
class Product {
 public:
  Product(size_t m, size_t n, size_t k, bool transposed) : engine_(dnnl::engine::kind::cpu, 0) {
    using dnnl::memory;
    const auto d = [](size_t x) { return static_cast<memory::dim>(x); };
    const auto f32 = memory::data_type::f32;
    a_ = {{d(m), d(k)}, f32, memory::format_tag::ab};
    b_ = {{d(k), d(n)}, f32, transposed ? memory::format_tag::ba : memory::format_tag::ab};
    c_ = {{d(m), d(n)}, f32, memory::format_tag::ab};
    const dnnl::matmul::desc desc(a_, b_, c_);
    matmul_ = dnnl::matmul(dnnl::matmul::primitive_desc(desc, engine_));
  }
  void run(float* c, const float* a, const float* b) const {
    dnnl::stream stream(engine_);
    matmul_.execute(stream, {{DNNL_ARG_SRC, {a_, engine_, const_cast<float*>(a)}},
                             {DNNL_ARG_WEIGHTS, {b_, engine_, const_cast<float*>(b)}},
                             {DNNL_ARG_DST, {c_, engine_, c}}});
    stream.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::memory::desc a_, b_, c_;
  dnnl::matmul matmul_;
};

/// oneDNN's rates for the two products of attention without a mask, in operations per second.
class Peers {
 public:
  Peers(const Context& context, const PrefillShape& s)
      : context_(context),
        shape_(s),
        scores_(s.tokens, s.tokens, s.head_dim, true),
        values_(s.tokens, s.head_dim, s.tokens, false),
        tile_scores_(kTileQueries, kTileKeys, s.head_dim, true),
        tile_values_(kTileQueries, s.head_dim, kTileKeys, false),
        x_(random_numbers(s.tokens * s.head_dim, 7)),
        p_(static_cast<size_t>(context.pool.size()), std::vector<float>(s.tokens * s.tokens)),
        out_(p_.size(), std::vector<float>(s.tokens * s.head_dim)) {}

  double whole(bool split) {
    const size_t heads = shape_.kv_heads * shape_.group;
    const auto head = [&](size_t worker) {
      scores_.run(p_[worker].data(), x_.data(), x_.data());
      values_.run(out_[worker].data(), p_[worker].data(), x_.data());
    };
    const double seconds = seconds_of([&] {
      if (split) {
        context_.pool.parallel_for(heads, [&](size_t, int worker) {
          omp_set_num_threads(1);
          head(static_cast<size_t>(worker));
        });
      } else {
        omp_set_num_threads(context_.pool.size());
        for (size_t h = 0; h < heads; ++h) head(0);
      }
    });
    return operations(shape_.tokens, shape_.tokens) * static_cast<double>(heads) / seconds;
  }

  double tiled() {
    const size_t tasks = 64, tiles = 64;
    const double seconds = seconds_of([&] {
      context_.pool.parallel_for(tasks, [&](size_t, int w) {
        omp_set_num_threads(1);
        const size_t worker = static_cast<size_t>(w);
        for (size_t i = 0; i < tiles; ++i) {
          const float* rows = x_.data() + i % 8 * kTileKeys * shape_.head_dim;
          tile_scores_.run(p_[worker].data(), x_.data(), rows);
          tile_values_.run(out_[worker].data(), p_[worker].data(), rows);
        }
      });
    });
    return operations(kTileQueries, kTileKeys) * static_cast<double>(tasks * tiles) / seconds;
  }

 private:
  static constexpr size_t kTileQueries = 384, kTileKeys = 256;
  double operations(size_t m, size_t n) const {
    return 4.0 * static_cast<double>(m * n * shape_.head_dim);
  }

  const Context& context_;
  PrefillShape shape_;
  Product scores_, values_, tile_scores_, tile_values_;
  std::vector<float> x_;
  std::vector<std::vector<float>> p_, out_;  // [workers]
};

/// Sets the rates of `work`, which reads `bytes`, and of reading alone, by turns.
template <class Work>
void measure_reading(const Context& context, DecodeResult& result, size_t bytes, int repeats,
                     const Work& work) {
  Array<float> gigabyte(context.memory, MemoryKind::kScratch);
  gigabyte.resize(kGigabyte / sizeof(float));
  std::fill(gigabyte.begin(), gigabyte.end(), 1.0f);
  std::vector<double> rates, reads, ratios;
  for (int i = 0; i < repeats; ++i) {
    reads.push_back(read_rate(context, std::as_bytes(std::span(gigabyte.data(), gigabyte.size()))));
    rates.push_back(static_cast<double>(bytes) / seconds_of(work));
    ratios.push_back(rates.back() / reads.back());
  }
  result.bytes_per_second = median(rates);
  result.read_bytes_per_second = median(reads);
  result.ratio = median(ratios);
}

}  // namespace

DecodeResult bench_decode(const Context& context, const DecodeShape& s, int repeats) {
  const size_t heads = s.kv_heads * s.group;
  const size_t bytes = 2 * s.kv_heads * s.rows * s.head_dim * size_of(s.dtype);
  const size_t count = (kGigabyte + bytes - 1) / bytes;
  const std::vector<float> numbers = random_numbers(1024 * s.head_dim + 1024, 1);
  std::vector<std::unique_ptr<Layer>> layers;
  for (size_t i = 0; i < count; ++i) layers.push_back(make_layer(context, s, numbers));
  const std::vector<float> q = random_numbers(heads * s.head_dim, 2);
  std::vector<float> out(q.size()), wanted(q.size());
  const auto step = [&](const Context& with, const Layer& layer, std::vector<float>& to) {
    attend(with, {.shape = {.query_heads = heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim},
                  .q = q.data(),
                  .tokens = 1,
                  .first_position = static_cast<int64_t>(s.rows),
                  .spans = layer.lists,
                  .out = to.data()});
  };
  DecodeResult result;
  DecodeShape small = s;
  small.rows = 2048;
  const Context scalar{context.pool, context.memory, kernels_for("scalar")};
  const auto checked = make_layer(context, small, numbers);
  const auto oracle = make_layer(scalar, small, numbers);
  step(context, *checked, out);
  step(scalar, *oracle, wanted);
  result.largest_difference = largest_difference(out, wanted);

  measure_reading(context, result, count * bytes, repeats, [&] {
    for (const auto& layer : layers) step(context, *layer, out);
  });
  return result;
}

DecodeResult bench_matvec(const Context& context, DType dtype, size_t in, int repeats) {
  const size_t numbers = kGigabyte / size_of(dtype), count = numbers / (in * in);
  const std::vector<float> some = random_numbers(in * in + count * 16, 6);
  Array<std::byte> weights(context.memory, MemoryKind::kScratch);
  weights.resize(count * in * in * size_of(dtype));
  const auto matrix = [&](size_t i) {
    return WeightMatrix{weights.data() + i * in * in * size_of(dtype), weight_type(dtype), in, in};
  };
  for (size_t i = 0; i < count; ++i)
    context.kernels.from_f32(weights.data() + i * in * in * size_of(dtype), some.data() + i * 16,
                             dtype, in * in);
  const std::vector<float> x = random_numbers(in, 7);
  std::vector<float> y(in), wanted(in);
  matmul(context, y.data(), x.data(), matrix(0), 1);
  matmul({context.pool, context.memory, kernels_for("scalar")}, wanted.data(), x.data(), matrix(0),
         1);
  DecodeResult result;
  result.largest_difference =
      largest_difference(y, wanted) / std::sqrt(static_cast<double>(in));  // of sums of in terms
  Matmul products(context);
  measure_reading(context, result, weights.size(), repeats, [&] {
    for (size_t i = 0; i < count; ++i) {
      const WeightMatrix w = matrix(i);
      const pith::Product product{y.data(), &w};
      auto rows = [&](float* out, size_t) { std::copy(x.begin(), x.end(), out); };
      products.run(1, in, rows, {&product, 1});
    }
  });
  return result;
}

PrefillResult bench_prefill(const Context& context, const PrefillShape& s, int repeats) {
  const size_t heads = s.kv_heads * s.group;
  const std::vector<float> q = random_numbers(s.tokens * heads * s.head_dim, 3);
  const std::vector<float> k = random_numbers(s.tokens * s.kv_heads * s.head_dim, 4);
  const std::vector<float> v = random_numbers(s.tokens * s.kv_heads * s.head_dim, 5);
  std::vector<float> out(q.size());
  const auto run = [&](const Context& with, size_t tokens) {
    attend(with, {.shape = {.query_heads = heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim},
                  .q = q.data(),
                  .k = k.data(),
                  .v = v.data(),
                  .tokens = tokens,
                  .spans = {},
                  .out = out.data()});
  };
  PrefillResult result;
  const size_t few = std::min<size_t>(s.tokens, 300);
  run({context.pool, context.memory, kernels_for("scalar")}, few);
  const std::vector<float> wanted(out.begin(),
                                  out.begin() + static_cast<ptrdiff_t>(few * heads * s.head_dim));
  run(context, few);
  result.largest_difference = largest_difference(wanted, out);

  Peers peers(context, s);
  const double flops = 2.0 * static_cast<double>(s.tokens * s.tokens * s.head_dim * heads);
  std::vector<double> rates, whole_split, whole_threaded, tiled, ratios;
  for (int i = 0; i < repeats; ++i) {
    whole_split.push_back(peers.whole(true));
    rates.push_back(flops / seconds_of([&] { run(context, s.tokens); }));
    tiled.push_back(peers.tiled());
    whole_threaded.push_back(peers.whole(false));
    ratios.push_back(rates.back() /
                     std::max({whole_split.back(), tiled.back(), whole_threaded.back()}));
  }
  result.flops = median(rates);
  result.whole_split = median(whole_split);
  result.whole_threaded = median(whole_threaded);
  result.tiled_split = median(tiled);
  result.peer_flops = std::max({result.whole_split, result.whole_threaded, result.tiled_split});
  result.ratio = median(ratios);
  return result;
}

}  // namespace pith::bench
