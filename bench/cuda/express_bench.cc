// Express and halving on the GPU: microseconds of halvings, decode attention over a coreset after n
// tokens with the updates that made it. 32 query heads, 8 KV heads, D 128, bf16, normal rows.
// One JSON line a result.
//   cuda_express_bench [--quick] [--only halving|decode]

#include <cmath>
#include <numeric>

#include "attend/cuda/decode.h"
#include "bench.h"
#include "methods/selectors/express/express_cuda.h"

namespace pith::cuda {

/// Independent normal numbers in bf16 (normals.cu).
void fill_normals(void* out, size_t n, uint64_t seed, cudaStream_t stream);

namespace {

constexpr int kQueryHeads = 32, kHeads = 8, kDim = 128;

DeviceArray<uint16_t> fresh_normals(Bench& b, size_t n, uint64_t seed) {
  DeviceArray<uint16_t> out(b.counter, MemoryKind::kPayload, n, b.stream);
  fill_normals(out.data(), n, seed, b.stream);
  check(cudaGetLastError(), "random rows");
  return out;
}

ExpressRule express_rule(uint32_t target) {  // the defaults of the policy `express`
  ExpressRule rule;
  rule.shape = {target, 1};
  rule.halving.scale = 1 / std::sqrt(static_cast<float>(kDim));
  rule.halving.temperature = 0.25f;
  rule.halving.value_constant = 0.1f;
  rule.halving.centre = true;
  return rule;
}

/// `groups` runs of `size` rows in each of the KV heads.
void halving(Bench& b, int size, int groups, Walk walk) {
  const size_t rows = static_cast<size_t>(size) * groups;
  const auto k = fresh_normals(b, kHeads * rows * kDim, 1);
  const auto v = fresh_normals(b, kHeads * rows * kDim, 2);
  std::vector<int32_t> numbers(rows);
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto list = upload(b, numbers);
  HalvingRule rule = express_rule(8).halving;
  rule.walk = walk;
  HalvingCall call;
  call.dim = kDim;
  call.k = k.data();
  call.v = v.data();
  call.head_stride = rows * kDim;
  call.row_stride = kDim;
  call.rows = list.data();
  call.size = size;
  call.groups = groups;
  call.heads = kHeads;
  call.kept_stride = rows / 2;
  const DeviceArray<int32_t> kept(b.counter, MemoryKind::kScratch, kHeads * rows / 2, b.stream);
  call.kept = kept.data();
  const double us =
      time_us(b.stream, 4, [&](int) { halve_batch(device_rule(rule), call, b.stream); });
  const double entries = 0.5 * kHeads * groups * size * static_cast<double>(size);
  fmt::print(
      "{{\"what\": \"halving, {}\", \"size\": {}, \"runs\": {}, \"us\": {:.1f}, "
      "\"TFLOP_s\": {:.2f}}}\n",
      walk == Walk::kPairs ? "pairs" : "rows", size, kHeads * groups, us,
      entries * 4 * kDim / us / 1e6);
}

/// Decode attention over the coreset of n tokens, and what keeping it cost a token on the way
/// there.
void decode(Bench& b, uint32_t target, int n, int batch) {
  const size_t numbers = static_cast<size_t>(kHeads) * n * kDim;
  const auto k = fresh_normals(b, numbers, 1), v = fresh_normals(b, numbers, 2);
  const ExpressSite site{DType::kBF16, kDim, kHeads, 0, 1, 0, 0};
  ExpressDevice stream(b.counter, express_rule(target), site, b.stream);
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  check(cudaStreamSynchronize(b.stream), "before the updates");
  check(cudaEventRecord(begin, b.stream), "event");
  for (int done = 0; done < n; done += batch) {
    stream.take(
        {k.data() + static_cast<size_t>(done) * kDim, v.data() + static_cast<size_t>(done) * kDim,
         static_cast<size_t>(n) * kDim, kDim, std::min(batch, n - done)},
        b.stream);
  }
  check(cudaEventRecord(end, b.stream), "event");
  check(cudaEventSynchronize(end), "updates");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
  std::vector<DeviceSpan> of_heads;
  for (size_t h = 0; h < kHeads; ++h) of_heads.push_back(stream.span(h));
  const auto spans = upload(b, of_heads);
  const auto q = fresh_normals(b, static_cast<size_t>(kQueryHeads) * kDim, 3);
  const DeviceArray<float> out(b.counter, MemoryKind::kScratch, q.size(), b.stream);
  const DecodeShape shape{1, kQueryHeads, kHeads, kDim, 1, 0};
  const DecodeScratch scratch(b.counter, shape, b.stream);
  const DecodeCall call{{q.data(), spans.data(), out.data(), nullptr}, shape, DType::kBF16};
  // A layer's coreset is read once a token, after the other layers' and the weights: 400 MB are
  // written between calls so that it is not found in L2. The write's own time is subtracted.
  DeviceArray<char> other(b.counter, MemoryKind::kScratch, size_t{200} << 20, b.stream);
  const auto flush = [&] {
    check(cudaMemsetAsync(other.data(), 1, other.size(), b.stream), "flush");
  };
  const double flush_us = time_us(b.stream, 8, [&](int) { flush(); });
  const double us = time_us(b.stream, 8,
                            [&](int) {
                              flush();
                              decode_dense(call, scratch, b.stream);
                            }) -
                    flush_us;
  fmt::print(
      "{{\"what\": \"express decode\", \"s\": {}, \"n\": {}, \"rows_held\": {}, \"us\": {:.2f}, "
      "\"batch\": {}, \"update_us_per_token\": {:.4f}}}\n",
      target, n, of_heads[0].rows, us, batch, 1e3 * ms / n);
  std::fflush(stdout);
  check(cudaEventDestroy(begin), "event");
  check(cudaEventDestroy(end), "event");
}

/// A layer's prompt of n rows, which come at once: by one block per head, and by all blocks.
void prompt(Bench& b, uint32_t target, int n) {
  const size_t numbers = static_cast<size_t>(kHeads) * n * kDim;
  const auto k = fresh_normals(b, numbers, 1), v = fresh_normals(b, numbers, 2);
  const ExpressSite site{DType::kBF16, kDim, kHeads, 0, 1, 0, 0};
  const NewDeviceRows rows{k.data(), v.data(), static_cast<size_t>(n) * kDim, kDim, n};
  ExpressJobs jobs;
  ExpressDevice stream(b.counter, express_rule(target), site, b.stream);
  jobs.job[jobs.count++] = stream.job(rows);
  const double alone = time_us(b.stream, 2, [&](int) { express_take(jobs, b.stream); });
  const double wide =
      time_us(b.stream, 4, [&](int) { express_take_wide(jobs.job[0], b.counter, b.stream); });
  fmt::print(
      "{{\"what\": \"express prompt\", \"s\": {}, \"n\": {}, \"block_per_head_us\": {:.0f}, "
      "\"all_blocks_us\": {:.0f}}}\n",
      target, n, alone, wide);
}

int run(bool quick, const std::string& only) {
  const auto wanted = [&](const char* name) { return only.empty() || only == name; };
  Bench b;
  cudaDeviceProp p;
  check(cudaGetDeviceProperties(&p, 0), "device");
  fmt::print("{{\"device\": \"{}\", \"multiprocessors\": {}}}\n", p.name, p.multiProcessorCount);
  if (wanted("halving")) {
    halving(b, 16, 4096, Walk::kPairs);
    halving(b, 32, 2048, Walk::kPairs);
    halving(b, 64, 1024, Walk::kPairs);
    halving(b, 256, 256, Walk::kPairs);
    halving(b, 256, 256, Walk::kRowsExact);
    halving(b, 1024, 1, Walk::kPairs);
    halving(b, 2048, 1, Walk::kPairs);
  }
  if (wanted("prompt")) {
    prompt(b, 1024, 32768);
    prompt(b, 4096, 28672);
  }
  if (wanted("decode")) {
    decode(b, 2048, 131072, 256);
    if (!quick) {
      for (const int batch : {64, 256, 1024}) decode(b, 2048, 524288, batch);
      decode(b, 1024, 524288, 256);
    }
  }
  return 0;
}

}  // namespace
}  // namespace pith::cuda

int main(int argc, char** argv) {
  return pith::cuda::bench_main("cuda_express_bench", argc, argv, pith::cuda::run);
}
