// Time and error of the seeds' approximations of attention against n: HyperAttention (causal) and
// Thinformer (no mask), against exact attention of the same kind, on a model's real heads.
//
// Usage: prefill_approx_bench DUMP LAYER [THREADS] (bench/heads_dump.h; the first n tokens of it)

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>

#include "attend/attend.h"
#include "heads_dump.h"
#include "hyper/hyper.h"
#include "kernels/kernels.h"
#include "rows/cpu/dense.h"
#include "thinformer/thinformer.h"

namespace pith {
namespace {

constexpr int kTurns = 3;

double seconds(const std::function<void()>& work) {
  std::vector<double> all;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    work();
    all.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(all.begin(), all.end());
  return all[kTurns / 2];
}

double error(const std::vector<float>& got, const std::vector<float>& exact) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    difference += std::pow(double{got[i]} - exact[i], 2);
    norm += double{exact[i]} * exact[i];
  }
  return std::sqrt(difference / norm);
}

void causal(const Context& context, const Dump& d, const LayerDump& l, size_t n) {
  const CausalHeads heads{l.q.data(), l.k.data(), l.v.data(), n, d.query_heads, d.kv_heads, d.dim};
  std::vector<float> exact(n * d.query_heads * d.dim), out(exact.size());
  HyperRule all;
  all.least = n;
  const double base = seconds([&] { hyper_attention(context, exact.data(), all, heads); });
  for (size_t size : {64, 256}) {
    HyperRule rule;
    rule.block = rule.samples = size;
    rule.least = std::min<size_t>(1024, n / 4);
    const double took = seconds([&] { hyper_attention(context, out.data(), rule, heads); });
    fmt::print(
        "causal    n {:>6}  exact {:8.2f} ms  hyper(block=samples={}, least={}) {:8.2f} ms = "
        "{:5.2f}  error {:.3f}\n",
        n, base * 1e3, size, rule.least, took * 1e3, took / base, error(out, exact));
  }
}

void unmasked(const Context& context, const Dump& d, const LayerDump& l, size_t n) {
  const UnmaskedHeads heads{l.q.data(), l.k.data(),    l.v.data(), n,
                            n,          d.query_heads, d.kv_heads, d.dim};
  std::vector<float> exact(n * d.query_heads * d.dim), out(exact.size());
  ThinformerRule rule;
  rule.inflation = 16;  // every row stays
  const double base = seconds([&] { thinformer_attention(context, exact.data(), rule, heads); });
  for (uint32_t g : {1u, 2u, 3u}) {
    rule.inflation = g;
    const double took = seconds([&] { thinformer_attention(context, out.data(), rule, heads); });
    const size_t rows = thinformer_rows(context, rule, heads, 0).size();
    const double ours = error(out, exact);
    rule.halving.balance = 100;  // a fair coin for each pair
    thinformer_attention(context, out.data(), rule, heads);
    rule.halving.balance = 0;
    fmt::print(
        "no mask   n {:>6}  exact {:8.2f} ms  thinformer(g={}) {:>5} rows {:8.2f} ms = "
        "{:5.2f}  error {:.3f} (random pairs {:.3f})\n",
        n, base * 1e3, g, rows, took * 1e3, took / base, ours, error(out, exact));
  }
}

}  // namespace
}  // namespace pith

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: prefill_approx_bench DUMP LAYER [THREADS]\n");
    return 2;
  }
  try {
    pith::ThreadPool pool(argc > 3 ? std::stoi(argv[3]) : 1);
    pith::MemoryCounter memory;
    const pith::Context context{pool, memory, pith::kernels_for()};
    const pith::Dump dump = pith::read_dump(argv[1]);
    const pith::LayerDump& layer = dump.layers.at(std::stoul(argv[2]));
    for (size_t n = 1024; n <= dump.tokens; n *= 2) {
      pith::causal(context, dump, layer, n);
      pith::unmasked(context, dump, layer, n);
      std::fflush(stdout);
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
}
