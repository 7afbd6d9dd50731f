// Exact prefill on the GPU: all attention of a layer over a prompt of bf16 normal rows, in chunks
// of 2048 tokens as the engine's, by the kernel that the engine takes on this card ("chosen") and
// by the one for all cards ("mma"). 32 query heads and 8 KV heads of 128, 64 and 256 channels. Then
// few tokens behind many rows, a chunk over rows with weights of their own, and over those, a sink
// and a window, as Express's, its spans together and one after the other. One JSON line a result;
// peers: tools/gpu/peers.py --prefill-only.
//   cuda_chunk_bench [--quick] [--only chosen|mma]

#include <array>

#include "attend/cuda/causal.h"
#include "bench.h"

namespace pith::cuda {

/// Independent normal numbers in bf16 (normals.cu).
void fill_normals(void* out, size_t n, uint64_t seed, cudaStream_t stream);

namespace {

constexpr int kQueryHeads = 32, kHeads = 8, kChunk = 2048;
constexpr int64_t kMost = 131072;

struct Kernel {
  const char* name;
  void (*attend)(const CausalCall&, std::span<const CausalSpan>, cudaStream_t);
};

struct Layer {
  Layer(Bench& b, int channels)
      : dim(channels),
        q(b.counter, MemoryKind::kPayload, size_t{kMost} * kQueryHeads * dim, b.stream),
        k(b.counter, MemoryKind::kPayload, size_t{kMost} * kHeads * dim, b.stream),
        v(b.counter, MemoryKind::kPayload, size_t{kMost} * kHeads * dim, b.stream),
        out(b.counter, MemoryKind::kPayload, q.size(), b.stream),
        weights(b.counter, MemoryKind::kPayload, size_t{kHeads} * kChunk, b.stream),
        partial(b.counter, MemoryKind::kPayload, size_t{kChunk} * kQueryHeads * dim, b.stream),
        log_sum(b.counter, MemoryKind::kPayload, size_t{kChunk} * kQueryHeads, b.stream) {
    fill_normals(q.data(), q.size(), 1, b.stream);
    fill_normals(k.data(), k.size(), 2, b.stream);
    fill_normals(v.data(), v.size(), 3, b.stream);
    check(cudaMemsetAsync(weights.data(), 0, weights.size() * sizeof(float), b.stream), "weights");
  }
  CausalCall chunk(int64_t before, int tokens) const {
    CausalCall call;
    call.query_heads = kQueryHeads;
    call.kv_heads = kHeads;
    call.head_dim = dim;
    call.tokens = tokens;
    call.dtype = DType::kBF16;
    const size_t at = static_cast<size_t>(before) * kQueryHeads * dim;
    call.q = q.data() + at;
    call.out = partial.data();
    call.log_sum = log_sum.data();
    call.result = out.data() + at;
    call.result_dtype = DType::kBF16;
    return call;
  }
  /// Of a chunk's queries all rows up to their own, `first` rows apart.
  CausalSpan own(int64_t before, int tokens, int64_t first = 0) const {
    const size_t at = static_cast<size_t>(first) * dim;
    return {k.data() + at, v.data() + at, size_t{kMost} * dim, before + tokens, before};
  }
  CausalSpan weighted() const {
    CausalSpan span{k.data(), v.data(), size_t{kMost} * dim, kChunk};
    span.log_weights = weights.data();
    span.weights_stride = kChunk;
    return span;
  }
  int dim;
  DeviceArray<uint16_t> q, k, v, out;   // [T, H, D], [G, T, D]
  DeviceArray<float> weights;           // [G, kChunk]
  DeviceArray<float> partial, log_sum;  // [kChunk, H, D], [kChunk, H]
};

/// Operations of n queries that see `before` rows and those up to themselves.
double operations(const Layer& layer, double before, double n) {
  return 4.0 * layer.dim * kQueryHeads * n * (before + (n + 1) / 2);
}

void report(const Kernel& kernel, const Layer& layer, const char* what, int64_t rows, double us,
            double operations) {
  fmt::print(
      "{{\"what\": \"{}, {}\", \"rows\": {}, \"dim\": {}, \"us\": {:.1f}, \"TFLOP_s\": {:.1f}}}\n",
      what, kernel.name, rows, layer.dim, us, operations / us / 1e6);
  std::fflush(stdout);
}

/// A coreset of 2048 rows, a sink of 4, and a window of 64 before the chunk's own rows.
void express(Bench& b, const Kernel& kernel, const Layer& layer) {
  constexpr int kSink = 4, kWindow = 64;
  const CausalCall whole = layer.chunk(0, kChunk);
  const std::array spans{
      layer.weighted(),
      CausalSpan{layer.k.data(), layer.v.data(), size_t{kMost} * layer.dim, kSink},
      layer.own(kWindow, kChunk, 2 * kChunk)};
  const double done = 4.0 * layer.dim * kQueryHeads * kChunk * (kChunk + kSink) +
                      operations(layer, kWindow, kChunk);
  const double us = time_us(b.stream, 4, [&](int) { kernel.attend(whole, spans, b.stream); });
  report(kernel, layer, "2048 tokens over Express's spans", kChunk, us, done);
  const double apart = time_us(b.stream, 4, [&](int) {
    CausalCall call = whole;
    for (const CausalSpan& span : spans) {
      call.last = &span == &spans.back();
      kernel.attend(call, {&span, 1}, b.stream);
      call.first = false;
    }
  });
  report(kernel, layer, "the same, span by span", kChunk, apart, done);
}

void measure(Bench& b, const Kernel& kernel, const Layer& layer, bool quick) {
  for (const int64_t n : {int64_t{8192}, int64_t{32768}, kMost}) {
    if (quick && n == 32768) continue;
    const double us = time_us(b.stream, 1, [&](int) {
      for (int64_t t = 0; t < n; t += kChunk)
        kernel.attend(layer.chunk(t, kChunk), std::array{layer.own(t, kChunk)}, b.stream);
    });
    report(kernel, layer, "exact prefill", n, us, operations(layer, 0, static_cast<double>(n)));
  }
  for (const int tokens : {1, 16, 256}) {
    const CausalCall call = layer.chunk(32768, tokens);
    const std::array spans{layer.own(32768, tokens)};
    const double us = time_us(b.stream, 4, [&](int) { kernel.attend(call, spans, b.stream); });
    report(kernel, layer, fmt::format("{} tokens after", tokens).c_str(), 32768, us,
           operations(layer, 32768, tokens));
  }
  const CausalCall call = layer.chunk(0, kChunk);
  const std::array rows{layer.weighted()};
  const double us = time_us(b.stream, 4, [&](int) { kernel.attend(call, rows, b.stream); });
  const double over_rows = 4.0 * layer.dim * kQueryHeads * kChunk * kChunk;
  report(kernel, layer, "2048 tokens over weighted rows", kChunk, us, over_rows);
  express(b, kernel, layer);
}

int run(bool quick, const std::string& only) {
  Bench b;
  for (const int dim : {128, 64, 256}) {
    const Layer layer(b, dim);
    for (const Kernel& kernel : {Kernel{"chosen", attend_chunk}, Kernel{"mma", attend_chunk_mma}}) {
      if (only.empty() || only == kernel.name) measure(b, kernel, layer, quick);
    }
  }
  return 0;
}

}  // namespace
}  // namespace pith::cuda

int main(int argc, char** argv) {
  return pith::cuda::bench_main("cuda_chunk_bench", argc, argv, pith::cuda::run);
}
