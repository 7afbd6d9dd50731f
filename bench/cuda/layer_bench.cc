// One layer on the GPU under policies that differ by side or head, and under sliding windows:
// microseconds of a chunk's attention with a window and without; of a token's attention after n
// rows, of a whole chunk and a whole token with their rows' way into the cache, and what the rows
// take; and of a prompt of 524288 or 131072 tokens, all layers' attention and all else that the
// cache does, the longer with heads of 64 channels too. 32 query heads, 8 KV heads, D 128, normal
// rows of f16. Calls repeat, so that what fits the card's L2 cache stays there. One JSON line a
// result.
//   cuda_layer_bench [--quick] [--only chunk|token|prompt]

#include <chrono>

#include "attend/cuda/causal.h"
#include "bench.h"
#include "cache/cuda/device_cache.h"
#include "kernels/cuda/uploads.h"
#include "kernels/rope.h"

namespace pith::cuda {
namespace {

constexpr int kQueryHeads = 32, kHeads = 8, kDim = 128, kChunk = 2048;
constexpr size_t kRows = 32768;

DeviceArray<uint16_t> draw(Bench& b, size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> host(n);
  for (uint16_t& x : host) {
    const auto number = static_cast<_Float16>(normal(rng));
    std::memcpy(&x, &number, 2);
  }
  return upload(b, host);
}

/// A chunk behind `before` rows; `window`: rows that a query sees, 0: all.
void chunk(Bench& b, int64_t before, int64_t window) {
  const size_t rows = static_cast<size_t>(before) + kChunk;
  const auto k = draw(b, rows * kHeads * kDim, 1), v = draw(b, rows * kHeads * kDim, 2);
  const auto q = draw(b, size_t{kChunk} * kQueryHeads * kDim, 3);
  const DeviceArray<uint16_t> out(b.counter, MemoryKind::kScratch, q.size(), b.stream);
  CausalCall call;
  call.query_heads = kQueryHeads;
  call.kv_heads = kHeads;
  call.head_dim = kDim;
  call.tokens = kChunk;
  call.q = q.data();
  CausalSpan span{k.data(), v.data(), rows * kDim, before + kChunk, before};
  if (window > 0) span.from = before + 1 - window;
  call.result = out.data();
  call.result_dtype = DType::kF16;
  const double us = time_us(b.stream, 2, [&](int) { attend_chunk(call, {&span, 1}, b.stream); });
  fmt::print("{{\"what\": \"chunk\", \"before\": {}, \"window\": {}, \"us\": {:.1f}}}\n", before,
             window, us);
}

/// Rows of a chunk to where the cache wants them.
void place(Bench& b, const RowTarget& to, const DeviceArray<uint16_t>& rows, size_t dim = kDim) {
  const size_t bytes = kChunk * dim * 2;
  const auto side = [&](void* target, int first) {
    for (int g = 0; g < kHeads; ++g) {
      const size_t at = (g * to.head_stride + static_cast<size_t>(to.row) * dim) * 2;
      check(cudaMemcpyAsync(static_cast<char*>(target) + at,
                            rows.data() + kChunk * dim * ((first + g) % kHeads), bytes,
                            cudaMemcpyDeviceToDevice, b.stream),
            "rows");
    }
  };
  side(to.k, 0);
  side(to.v, 3);
}

/// Rows of a chunk into the cache, which attends with the first of them as queries.
void append(Bench& b, DeviceCache& cache, const DeviceArray<uint16_t>& rows, float* out) {
  place(b, cache.chunks().begin_chunk(0, kChunk), rows);
  cache.chunks().attend_chunk(0, out, DType::kF32, rows.data(), kChunk);
  cache.chunks().end_chunk(0, kChunk);
}

/// Of one call, on the host's clock: plans of steps are its work too.
template <class Call>
double wall_us(const Bench& b, int times, const Call& call) {
  check(cudaStreamSynchronize(b.stream), "the work before");
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) call();
  check(cudaStreamSynchronize(b.stream), "a step");
  const std::chrono::duration<double, std::micro> all = std::chrono::steady_clock::now() - start;
  return all.count() / times;
}

void token(Bench& b, const char* policy, int64_t window) {
  const auto rows = draw(b, size_t{kChunk} * kQueryHeads * kDim, 4);
  const DeviceArray<float> out(b.counter, MemoryKind::kScratch, rows.size(), b.stream);
  const Rope rope(kDim, 10000);
  MemoryCounter memory;
  CacheShape shape{1, kQueryHeads, kHeads, kDim, {}, kRows + 2 * kChunk};
  if (window > 0) shape.sliding_window = {window};
  DeviceCache cache(memory, shape, Policy::parse(policy), 1, b.stream, &rope);
  constexpr int kChunks = kRows / kChunk;
  const auto append_chunk = [&] { append(b, cache, rows, out.data()); };
  for (int n = 0; n < kChunks / 2; ++n) append_chunk();
  const double chunk_us = wall_us(b, kChunks / 2, append_chunk);
  cache.chunks().end_prefill();
  const DecodeScratch scratch(memory, cache.steps().token_shape(), b.stream);
  const auto attend = [&] {
    cache.steps().attend_token(0, cache.steps().token_place(0, out.data(), rows.data()), scratch);
  };
  const auto step = [&] {
    cache.steps().begin_token();
    upload_all(cache.steps().token_uploads(), b.stream);
    attend();
    check(cudaStreamSynchronize(b.stream), "a step");  // what it uploads is written anew
    cache.steps().end_token();
  };
  for (int i = 0; i < 64; ++i) step();
  const double step_us = wall_us(b, 256, step);
  cache.steps().begin_token();
  upload_all(cache.steps().token_uploads(), b.stream);
  const double us = time_us(b.stream, 10, [&](int) { attend(); });
  const Ledger ledger = cache.ledger();
  fmt::print(
      "{{\"what\": \"token\", \"policy\": \"{}\", \"window\": {}, \"us\": {:.1f}, "
      "\"step_us\": {:.1f}, \"chunk_us\": {:.1f}, \"MB\": {:.1f}, \"MB_with_room\": {:.1f}, "
      "\"MB_staging\": {:.1f}}}\n",
      policy, window, us, step_us, chunk_us,
      static_cast<double>(ledger.payload + ledger.metadata) / 1e6,
      static_cast<double>(ledger.payload + ledger.metadata + ledger.slack) / 1e6,
      static_cast<double>(memory.bytes(MemoryKind::kStaging)) / 1e6);
  std::fflush(stdout);
}

/// Attention of a prompt's chunks, and all that its cache does, in microseconds per layer.
void prompt(Bench& b, const char* policy, size_t tokens, int dim) {
  constexpr int kLayers = 16;  // selectors take the rows of many at a time
  std::vector<DeviceArray<uint16_t>> rows;
  for (uint32_t seed = 4; seed < 8; ++seed)
    rows.push_back(draw(b, size_t{kChunk} * kQueryHeads * dim, seed));
  const DeviceArray<uint16_t> out(b.counter, MemoryKind::kScratch, rows[0].size(), b.stream);
  const Rope rope(dim, 10000);
  MemoryCounter memory;
  DeviceCache cache(memory, {kLayers, kQueryHeads, kHeads, dim, {}, tokens + kChunk},
                    Policy::parse(policy), 1, b.stream, &rope);
  std::vector<cudaEvent_t> begin(kLayers), end(kLayers);
  for (cudaEvent_t& event : begin) check(cudaEventCreate(&event), "event");
  for (cudaEvent_t& event : end) check(cudaEventCreate(&event), "event");
  double attention_us = 0;
  size_t chunk = 0;
  const double us = wall_us(b, static_cast<int>(tokens / kChunk), [&] {
    const DeviceArray<uint16_t>& own = rows[chunk++ % rows.size()];
    for (int l = 0; l < kLayers; ++l) {
      place(b, cache.chunks().begin_chunk(l, kChunk), own, static_cast<size_t>(dim));
      check(cudaEventRecord(begin[l], b.stream), "event");
      cache.chunks().attend_chunk(l, out.data(), DType::kF16, own.data(), kChunk);
      check(cudaEventRecord(end[l], b.stream), "event");
      cache.chunks().end_chunk(l, kChunk);
    }
    check(cudaStreamSynchronize(b.stream), "a chunk");
    for (int l = 0; l < kLayers; ++l) {
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin[l], end[l]), "elapsed");
      attention_us += 1e3 * ms;
    }
  });
  for (int l = 0; l < kLayers; ++l) {
    check(cudaEventDestroy(begin[l]), "event");
    check(cudaEventDestroy(end[l]), "event");
  }
  const double chunks = static_cast<double>(tokens) / kChunk;
  fmt::print(
      "{{\"what\": \"prompt\", \"policy\": \"{}\", \"dim\": {}, \"rows\": {}, \"layers\": {}, "
      "\"attention_us\": {:.0f}, \"us\": {:.0f}}}\n",
      policy, dim, tokens, kLayers, attention_us / kLayers, us * chunks / kLayers);
  std::fflush(stdout);
}

int run(bool quick, const std::string& only) {
  const auto wanted = [&](const char* name) { return only.empty() || only == name; };
  Bench b;
  if (wanted("chunk")) {
    for (const int64_t window : {0, 4096, 32767 + kChunk}) chunk(b, kRows, window);
    for (const int64_t window : {0, 4096}) chunk(b, 4095, window);
  }
  if (wanted("prompt")) {
    for (const int dim : {64, kDim}) {
      for (const char* policy : {"express(heavy=0,s=2048)", "express(s=2048)"})
        prompt(b, policy, (quick ? size_t{16} : size_t{256}) * kChunk, dim);
    }
    for (const char* policy : {"express(s=2048)+int4", "snapkv(budget=2048)+int4",
                               "keydiff(budget=2048)+int4", "balancekv"})
      prompt(b, policy, (quick ? size_t{16} : size_t{64}) * kChunk, kDim);
  }
  if (!wanted("token")) return 0;
  for (const char* policy : {"exact", "exact+int4", "exact+kivi"}) {
    token(b, policy, 0);
    token(b, policy, 4096);
  }
  if (quick) return 0;
  for (const char* policy :
       {"exact+k:int8+v:int4", "exact+k:f16+v:int4", "exact+k:int8+v:f16",
        "exact+k:bf16+v:int4,dtype=bf16", "exact+k:bf16+v:kivi,dtype=bf16", "exact+k:f16+v:kivi",
        "exact;heads=4-7:exact+int4", "exact;heads=0,2,4,6:exact+int4", "uniform", "uniform+int4",
        "uniform+kivi", "uniform+turboquant(bits=3,center=128)"}) {
    token(b, policy, 0);
  }
  return 0;
}

}  // namespace
}  // namespace pith::cuda

int main(int argc, char** argv) {
  return pith::cuda::bench_main("cuda_layer_bench", argc, argv, pith::cuda::run);
}
