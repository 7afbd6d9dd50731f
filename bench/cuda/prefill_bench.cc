// Express prefill on the GPU: milliseconds for all attention of a layer, coresets included, and the
// output's error against exact attention on sampled queries of the second half. 32 query heads, 8
// KV heads, D 128, bf16, token-major. Two kinds of rows: independent normal ones, of which any
// coreset can only be a sample, and rows in 64 clusters. One JSON line a result; peers:
// tools/gpu/peers.py
// --prefill-only.
//   cuda_prefill_bench [--tokens N] [--s S] [--chunk C]

#include "attend/cuda/decode.h"
#include "bench.h"
#include "methods/express/express_prefill.h"

namespace pith::cuda {

/// Independent normal numbers, and rows around 64 centres, in bf16 (normals.cu).
void fill_normals(void* out, size_t n, uint64_t seed, cudaStream_t stream);
void fill_clusters(void* out, size_t rows, int width, uint64_t seed, cudaStream_t stream);

namespace {

constexpr int kQueryHeads = 32, kHeads = 8, kDim = 128, kSamples = 64;
constexpr size_t kQueryWidth = size_t{kQueryHeads} * kDim, kWidth = size_t{kHeads} * kDim;

struct Prompt {
  Prompt(Bench& b, int n, bool clusters)
      : tokens(n),
        q(b.counter, MemoryKind::kPayload, n * kQueryWidth, b.stream),
        k(b.counter, MemoryKind::kPayload, n * kWidth, b.stream),
        v(b.counter, MemoryKind::kPayload, n * kWidth, b.stream),
        out(b.counter, MemoryKind::kPayload, n * kQueryWidth, b.stream) {
    fill_normals(q.data(), q.size(), 1, b.stream);
    for (auto [x, seed] : {std::pair{k.data(), 2}, std::pair{v.data(), 3}}) {
      clusters ? fill_clusters(x, n, static_cast<int>(kWidth), seed, b.stream)
               : fill_normals(x, n * kWidth, seed, b.stream);
    }
    check(cudaGetLastError(), "random rows");
  }
  ExpressPrefillRows rows() const {
    return {kQueryHeads,
            0,
            {q.data(), kQueryWidth, kDim},
            {k.data(), kWidth, kDim},
            {v.data(), kWidth, kDim},
            out.data()};
  }
  int tokens;
  DeviceArray<uint16_t> q, k, v, out;  // [T, heads, D]
};

/// The output's relative error on sampled queries, against exact attention over all their rows.
double sampled_error(Bench& b, const Prompt& p) {
  DeviceArray<uint16_t> q(b.counter, MemoryKind::kScratch, kSamples * kQueryWidth, b.stream);
  const DeviceArray<float> exact(b.counter, MemoryKind::kScratch, q.size(), b.stream);
  std::vector<DeviceSpan> spans(static_cast<size_t>(kSamples) * kHeads);
  std::vector<uint16_t> bits(q.size());
  std::mt19937 random(5);
  for (int i = 0; i < kSamples; ++i) {
    const size_t t = p.tokens / 2 + random() % (p.tokens - p.tokens / 2);
    check(cudaMemcpyAsync(q.data() + i * kQueryWidth, p.q.data() + t * kQueryWidth, 2 * kQueryWidth,
                          cudaMemcpyDeviceToDevice, b.stream),
          "sample");
    check(cudaMemcpyAsync(bits.data() + i * kQueryWidth, p.out.data() + t * kQueryWidth,
                          2 * kQueryWidth, cudaMemcpyDeviceToHost, b.stream),
          "sample");
    for (int h = 0; h < kHeads; ++h) {
      DeviceSpan& span = spans[i * kHeads + h];
      span.keys = p.k.data() + h * kDim;
      span.values = p.v.data() + h * kDim;
      span.rows = static_cast<int>(t) + 1;
      span.row_stride = static_cast<int>(kWidth);
    }
  }
  const auto spans_device = upload(b, spans);
  const DecodeShape shape{kSamples, kQueryHeads, kHeads, kDim, 1, 0};
  const DecodeScratch scratch(b.counter, shape, b.stream);
  decode_dense({{q.data(), spans_device.data(), exact.data(), nullptr}, shape, DType::kBF16},
               scratch, b.stream);
  std::vector<float> want(exact.size()), got(exact.size());
  exact.download(want.data(), want.size(), b.stream);
  check(cudaStreamSynchronize(b.stream), "exact attention");
  for (size_t i = 0; i < got.size(); ++i) {
    const uint32_t x = static_cast<uint32_t>(bits[i]) << 16;
    std::memcpy(&got[i], &x, 4);
  }
  return difference(got, want);
}

/// Rows that queries see, summed over queries.
double rows_seen(const ExpressPlan& plan) {
  double total = 0;
  for (const PrefillChunk& c : plan.chunks) {
    double rows = c.first_query - c.exact_from + (c.queries + 1) / 2.0;
    for (int s = 0; s < c.segments; ++s) rows += plan.segments[c.first_segment + s].count;
    total += rows * c.queries;
  }
  return total;
}

void measure(Bench& b, int tokens, uint32_t target, int chunk, bool clusters) {
  const Prompt prompt(b, tokens, clusters);
  ExpressRule rule;  // the defaults of the policy `express`
  rule.shape = {target, 1};
  rule.halving.scale = 1 / std::sqrt(static_cast<float>(kDim));
  rule.halving.temperature = 0.25f;
  rule.halving.value_constant = 0.1f;
  rule.halving.centre = true;
  const ExpressSite site{DType::kBF16, kDim, kHeads, 0, 1, 0, 0};
  const ExpressPrefillShape shape{tokens, 4, 64, chunk};
  ExpressPrefill prefill(b.counter, rule, site, shape, b.stream);
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < 6; ++i) {
    check(cudaMemsetAsync(prompt.out.data(), 0xff, 2 * prompt.out.size(), b.stream), "poison");
    check(cudaEventRecord(begin, b.stream), "event");
    prefill.run(prompt.rows(), b.stream);
    check(cudaEventRecord(end, b.stream), "event");
    check(cudaEventSynchronize(end), "prefill");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i > 0) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  const double ms = times[times.size() / 2], rows = rows_seen(prefill.plan());
  const double error = sampled_error(b, prompt);
  fmt::print(
      "{{\"what\": \"prefill, express\", \"rows\": {}, \"sequences\": 1, \"s\": {}, \"chunk\": {}, "
      "\"data\": \"{}\", \"us\": {:.1f}, \"rows_seen\": {:.0f}, \"TFLOP_s\": {:.1f}, "
      "\"error\": {:.4f}}}\n",
      tokens, target, chunk, clusters ? "clusters" : "normal", 1e3 * ms, rows / tokens,
      4 * kDim * kQueryHeads * rows / ms / 1e9, error);
  std::fflush(stdout);
  check(cudaEventDestroy(begin), "event");
  check(cudaEventDestroy(end), "event");
}

}  // namespace
}  // namespace pith::cuda

int main(int argc, char** argv) {
  try {
    int tokens = 0, target = 0, chunk = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
      if (std::strcmp(argv[i], "--tokens") == 0) tokens = std::atoi(argv[i + 1]);
      if (std::strcmp(argv[i], "--s") == 0) target = std::atoi(argv[i + 1]);
      if (std::strcmp(argv[i], "--chunk") == 0) chunk = std::atoi(argv[i + 1]);
    }
    pith::cuda::Bench b;
    const auto all = [](int one, std::vector<int> many) { return one ? std::vector{one} : many; };
    for (const int n : all(tokens, {8192, 32768, 131072, 524288})) {
      for (const int s : all(target, {1024, 2048})) {
        for (const int c : all(chunk, {384})) {
          for (const bool clusters : {false, true})
            pith::cuda::measure(b, n, static_cast<uint32_t>(s), c, clusters);
        }
      }
    }
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "cuda_prefill_bench: {}\n", e.what());
    return 1;
  }
}
