// A long stream through a selector: rows held, sum of weights and time per row as n grows.
// Usage: methods_stream_bench ROWS POLICY... (head_dim 64, one KV head, Gaussian rows, f16)

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>

#include "cache/kv_cache.h"
#include "kernels/kernels.h"

namespace pith {
namespace {

constexpr size_t kDim = 64, kChunk = 4096;

void stream(const Context& context, const std::string& policy, size_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> k(kChunk * kDim), v(kChunk * kDim);  // [kChunk, D]
  for (float& x : k) x = normal(random) * 0.5f;
  for (float& x : v) x = normal(random);
  KvCache cache(context, {1, 1, 1, static_cast<int>(kDim), {}, n}, Policy::parse(policy), 1,
                nullptr);
  const auto start = std::chrono::steady_clock::now();
  size_t most = 0, next = size_t{1} << 16;
  for (size_t t = 0; t < n; t += kChunk) {
    const size_t count = std::min(kChunk, n - t);
    cache.append(0, k.data(), v.data(), count);
    const HeadRows held = cache.rows(0, 0);
    most = std::max(most, held.positions.size());
    if (t + count < next && t + count < n) continue;
    next *= 4;
    double numerator = 0, denominator = 0;
    for (size_t i = 0; i < held.positions.size(); ++i) {
      const double w = std::exp(double{held.log_weights[i]});
      if (held.roles[i] != Role::kDenominator) numerator += w;
      if (held.roles[i] != Role::kNumerator) denominator += w;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    fmt::print(
        "{:<40} n {:>9} rows {:>6} most {:>6} weights/n {:.6f} {:.6f} bytes {:>8} us/row {:.3f}\n",
        policy, t + count, held.positions.size(), most, numerator / static_cast<double>(t + count),
        denominator / static_cast<double>(t + count), context.memory.total(),
        took.count() * 1e6 / static_cast<double>(t + count));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace pith

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: methods_stream_bench ROWS POLICY...\n");
    return 2;
  }
  pith::ThreadPool pool;
  pith::MemoryCounter memory;
  const pith::Context context{pool, memory, pith::kernels_for()};
  for (int i = 2; i < argc; ++i) pith::stream(context, argv[i], std::stoul(argv[1]));
}
