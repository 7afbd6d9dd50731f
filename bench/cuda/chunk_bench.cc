// Exact prefill on the GPU: all attention of a layer over a prompt of bf16 normal rows, in chunks
// of 2048 tokens as the engine's, by the kernel that the engine takes on this card ("chosen") and
// by the one for all cards ("mma"). 32 query heads and 8 KV heads of 128, 64 and 256 channels. Then
// few tokens behind many rows, and a chunk over rows with weights of their own, as Express's. One
// JSON line a result; peers: tools/gpu/peers.py --prefill-only.
//   cuda_chunk_bench [--quick] [--only chosen|mma]

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
  void (*attend)(const CausalCall&, cudaStream_t);
};

struct Layer {
  Layer(Bench& b, int channels)
      : dim(channels),
        q(b.counter, MemoryKind::kPayload, size_t{kMost} * kQueryHeads * dim, b.stream),
        k(b.counter, MemoryKind::kPayload, size_t{kMost} * kHeads * dim, b.stream),
        v(b.counter, MemoryKind::kPayload, size_t{kMost} * kHeads * dim, b.stream),
        out(b.counter, MemoryKind::kPayload, q.size(), b.stream),
        weights(b.counter, MemoryKind::kPayload, size_t{kHeads} * kChunk, b.stream) {
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
    call.span = {k.data(), v.data(), size_t{kMost} * dim, before + tokens, before};
    call.result = out.data() + at;
    call.result_dtype = DType::kBF16;
    return call;
  }
  int dim;
  DeviceArray<uint16_t> q, k, v, out;  // [T, H, D], [G, T, D]
  DeviceArray<float> weights;          // [G, kChunk]
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

void measure(Bench& b, const Kernel& kernel, const Layer& layer, bool quick) {
  for (const int64_t n : {int64_t{8192}, int64_t{32768}, kMost}) {
    if (quick && n == 32768) continue;
    const double us = time_us(b.stream, 1, [&](int) {
      for (int64_t t = 0; t < n; t += kChunk) kernel.attend(layer.chunk(t, kChunk), b.stream);
    });
    report(kernel, layer, "exact prefill", n, us, operations(layer, 0, static_cast<double>(n)));
  }
  for (const int tokens : {1, 16, 256}) {
    const CausalCall call = layer.chunk(32768, tokens);
    const double us = time_us(b.stream, 4, [&](int) { kernel.attend(call, b.stream); });
    report(kernel, layer, fmt::format("{} tokens after", tokens).c_str(), 32768, us,
           operations(layer, 32768, tokens));
  }
  CausalCall call = layer.chunk(0, kChunk);
  call.span.before = -1;
  call.span.log_weights = layer.weights.data();
  call.span.weights_stride = kChunk;
  const double us = time_us(b.stream, 4, [&](int) { kernel.attend(call, b.stream); });
  report(kernel, layer, "2048 tokens over weighted rows", kChunk, us,
         4.0 * layer.dim * kQueryHeads * kChunk * kChunk);
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
