#pragma once
// Shared by the GPU benchmarks: random rows on the device, timing of replayed graphs, JSON lines.

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"

namespace pith::cuda {

inline uint16_t bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Median microseconds of one call: graphs of `calls` calls, each with its own inputs, replayed.
inline double time_us(cudaStream_t stream, int calls, const std::function<void(int)>& run) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  run(0);
  check(cudaStreamSynchronize(stream), "first run");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) run(i);
  check(cudaStreamEndCapture(stream, &graph), "capture's end");
  check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < 13; ++i) {
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(exec, stream), "graph launch");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "event wait");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 3) times.push_back(1e3 * ms / calls);
  }
  check(cudaGraphExecDestroy(exec), "graph's end");
  check(cudaGraphDestroy(graph), "graph's end");
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Bench {
  MemoryCounter counter;
  cudaStream_t stream = nullptr;

  Bench() { check(cudaStreamCreate(&stream), "stream"); }

  /// Normal numbers, bf16: a pool of random ones repeated (the card's speed does not see it).
  DeviceArray<uint16_t> normals(size_t n, uint32_t seed) {
    static constexpr size_t kPool = size_t{1} << 22;
    std::mt19937 rng(seed);
    std::normal_distribution<float> draw;
    std::vector<uint16_t> pool(std::min(n, kPool));
    for (uint16_t& x : pool) x = bf16(draw(rng));
    DeviceArray<uint16_t> out(counter, MemoryKind::kPayload, n, stream);
    for (size_t i = 0; i < n; i += kPool) {
      check(cudaMemcpyAsync(out.data() + i, pool.data(), 2 * std::min(pool.size(), n - i),
                            cudaMemcpyHostToDevice, stream),
            "upload");
    }
    check(cudaStreamSynchronize(stream), "upload");
    return out;
  }

  void report(const std::string& what, int rows, int sequences, double us, double bytes,
              const std::string& more = "") {
    fmt::print(
        "{{\"what\": \"{}\", \"rows\": {}, \"sequences\": {}, \"us\": {:.2f}, \"MB\": {:.2f}, "
        "\"TB_s\": {:.3f}{}}}\n",
        what, rows, sequences, us, bytes / 1e6, bytes / us / 1e6, more);
    std::fflush(stdout);
  }
};

template <class T>
DeviceArray<T> upload(Bench& b, const std::vector<T>& host) {
  DeviceArray<T> out(b.counter, MemoryKind::kMetadata, host.size(), b.stream);
  out.upload(host.data(), host.size(), b.stream);
  check(cudaStreamSynchronize(b.stream), "upload");
  return out;
}

inline double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double d = 0, n = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    d += (a[i] - b[i]) * static_cast<double>(a[i] - b[i]);
    n += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(d / n);
}

/// main() of a benchmark whose arguments are [--quick] [--only NAME]: errors go to stderr.
inline int bench_main(const char* name, int argc, char** argv,
                      int (*run)(bool quick, const std::string& only)) {
  try {
    bool quick = false;
    std::string only;
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--quick") == 0) quick = true;
      if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
    }
    return run(quick, only);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}: {}\n", name, e.what());
    return 1;
  }
}

}  // namespace pith::cuda
