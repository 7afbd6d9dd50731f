// The cost of the error probe on the GPU: milliseconds of a token's attention in 32 layers behind n
// rows, compared and not, and what a chunk of 2048 tokens takes to append, with a probe and
// without. 32 query heads, 8 KV heads, D 128, normal rows of f16, kernel by kernel (a session
// replays tokens that are not compared as one graph). One JSON line per policy.
//   cuda_probe_bench [--quick]

#include <chrono>

#include "bench.h"
#include "cache/cuda/device_cache.h"
#include "kernels/cuda/uploads.h"
#include "kernels/rope.h"

namespace pith::cuda {
namespace {

constexpr int kLayers = 32, kQueryHeads = 32, kHeads = 8, kDim = 128;
constexpr size_t kChunk = 2048;

double now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}
double median(std::vector<double> x) {
  std::ranges::sort(x);
  return x.empty() ? 0 : x[x.size() / 2];
}

/// Milliseconds of a chunk's rows into all layers, which nobody attends to.
double append(Bench& b, DeviceCache& cache, const DeviceArray<uint16_t>& rows) {
  const double begin = now_ms();
  const size_t head = kChunk * kDim;
  for (int l = 0; l < kLayers; ++l) {
    const RowTarget to = cache.chunks().begin_chunk(l, kChunk);
    const auto side = [&](void* target, size_t from) {
      check(cudaMemcpy2DAsync(
                static_cast<std::byte*>(target) + static_cast<size_t>(to.row) * kDim * 2,
                to.head_stride * 2, rows.data() + from, head * 2, head * 2, kHeads,
                cudaMemcpyDeviceToDevice, b.stream),
            "rows");
    };
    side(to.k, 0);
    side(to.v, kHeads * head);
    cache.chunks().end_chunk(l, kChunk);
  }
  check(cudaStreamSynchronize(b.stream), "a chunk");
  return now_ms() - begin;
}

struct Times {
  std::vector<double> chunk, plain, compared, selected;
};

void decode(Bench& b, DeviceCache& cache, const DeviceArray<uint16_t>& rows, Times& times) {
  const DeviceArray<float> out(b.counter, MemoryKind::kScratch, kQueryHeads * kDim, b.stream);
  const DecodeScratch scratch(b.counter, cache.steps().token_shape(), b.stream);
  for (int t = 0; t < 32; ++t) {
    const double begin = now_ms();
    cache.steps().begin_token();
    upload_all(cache.steps().token_uploads(), b.stream);
    const bool comparing = cache.steps().comparing();
    for (int l = 0; l < kLayers; ++l) {
      cache.steps().attend_token(l, cache.steps().token_place(l, out.data(), rows.data()), scratch);
      if (comparing) cache.steps().compare_token(l, out.data(), rows.data());
    }
    cache.steps().end_token();
    check(cudaStreamSynchronize(b.stream), "a token");
    const double end = now_ms();
    if (comparing) cache.attention_errors();
    if (t < 8) continue;
    (comparing ? times.compared : times.plain).push_back(end - begin);
    if (comparing) times.selected.push_back(now_ms() - end);
  }
}

void measure(Bench& b, const char* policy, size_t rows_before) {
  const auto rows = b.normals(2 * kHeads * kChunk * kDim, 4);
  const Rope rope(kDim, 10000);
  const CacheShape shape{kLayers, kQueryHeads, kHeads, kDim, {}, rows_before + kChunk};
  Times with, without;
  size_t bytes = 0;
  for (Times* times : {&without, &with}) {
    MemoryCounter memory;
    DeviceCache cache(memory, shape, Policy::parse(policy), 1, b.stream, &rope);
    if (times == &with) cache.start_error_probe({.rows = 256, .every = 2}, 1, 0);
    for (size_t n = 0; n < rows_before; n += kChunk) {
      times->chunk.push_back(append(b, cache, rows));
    }
    cache.chunks().end_prefill();
    decode(b, cache, rows, *times);
    bytes = memory.bytes(MemoryKind::kProbe);
  }
  fmt::print(
      "{{\"what\": \"probe\", \"policy\": \"{}\", \"rows\": {}, \"plain_ms\": {:.2f}, "
      "\"plain_with_probe_ms\": {:.2f}, \"compared_ms\": {:.2f}, \"host_behind_ms\": {:.2f}, "
      "\"first_chunk_ms\": {:.2f}, "
      "\"first_chunk_with_probe_ms\": {:.2f}, \"chunk_ms\": {:.2f}, \"chunk_with_probe_ms\": "
      "{:.2f}, \"probe_MB\": {:.1f}}}\n",
      policy, rows_before, median(without.plain), median(with.plain), median(with.compared),
      median(with.selected), without.chunk.front(), with.chunk.front(), median(without.chunk),
      median(with.chunk), static_cast<double>(bytes) / 1e6);
  std::fflush(stdout);
}

int run(bool quick, const std::string&) {
  Bench b;
  const size_t rows = quick ? 8192 : 32768;
  for (const char* policy : {"exact", "exact+int4", "exact+kivi", "exact+turboquant(bits=3)",
                             "streaming_llm(window=2048)", "uniform(budget=2048)+int4"}) {
    measure(b, policy, rows);
  }
  return 0;
}

}  // namespace
}  // namespace pith::cuda

int main(int argc, char** argv) {
  return pith::cuda::bench_main("cuda_probe_bench", argc, argv, pith::cuda::run);
}
