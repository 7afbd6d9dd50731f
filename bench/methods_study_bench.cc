// Relative attention error of selectors on a model's real heads: BalanceKV's single-layer protocol.
// All rows but the last 256 enter a cache (with their queries if the policy watches attention); the
// last 256 queries attend to it and, causally, to their own rows; the error is |z - exact| /
// |exact| over those queries, for each layer and KV head. Each policy is set against
// uniform(weights) and uniform(weights=false) with as many body rows.
//
// Usage: methods_study_bench DUMP SEEDS POLICY...
// DUMP: see bench/heads_dump.h.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "cache/kv_cache.h"
#include "heads_dump.h"
#include "kernels/kernels.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kQueries = 256;

struct Result {
  std::vector<float> out;    // [kQueries, H, D]
  std::vector<size_t> rows;  // [G] body rows
};

Result attend_last(const Context& context, const Dump& d, const LayerDump& l,
                   const std::string& policy, uint64_t seed) {
  const CacheShape shape{1,
                         static_cast<int>(d.query_heads),
                         static_cast<int>(d.kv_heads),
                         static_cast<int>(d.dim),
                         {},
                         d.tokens};
  const Policy parsed = Policy::parse(policy);
  KvCache cache(context, shape, parsed, seed, nullptr);
  const size_t before = d.tokens - kQueries;
  // Rules that live on attention mass must see the queries, in chunks as in prefill.
  bool watches = false;
  for (const char* word : {"heavy=", "h2o", "snapkv", "tova", "buzz"})
    watches |= policy.find(word) != std::string::npos;
  const size_t step = watches ? 512 : before;
  std::vector<float> unused(watches ? step * d.query_heads * d.dim : 0);
  for (size_t t = 0; t < before; t += step) {
    const size_t n = std::min(step, before - t), at = t * d.kv_heads * d.dim;
    if (watches)
      cache.step(0, unused.data(), l.q.data() + t * d.query_heads * d.dim, l.k.data() + at,
                 l.v.data() + at, n);
    else
      cache.append(0, l.k.data(), l.v.data(), n);
  }
  Result r;
  const size_t around = parsed.rules[0].sink.value_or(0) + parsed.rules[0].window.value_or(0);
  for (size_t g = 0; g < d.kv_heads; ++g)
    r.rows.push_back(cache.rows(0, static_cast<int>(g)).positions.size() - around);
  r.out.resize(kQueries * d.query_heads * d.dim);
  const size_t kv = d.kv_heads * d.dim;
  cache.step(0, r.out.data(), l.q.data() + before * d.query_heads * d.dim, l.k.data() + before * kv,
             l.v.data() + before * kv, kQueries);
  return r;
}

/// Errors of each KV head.
std::vector<double> errors(const Dump& d, const std::vector<float>& got,
                           const std::vector<float>& exact) {
  const size_t group = d.query_heads / d.kv_heads * d.dim;
  std::vector<double> difference(d.kv_heads), norm(d.kv_heads);
  for (size_t i = 0; i < exact.size(); ++i) {
    const size_t g = i / group % d.kv_heads;
    difference[g] += std::pow(double{got[i]} - exact[i], 2);
    norm[g] += double{exact[i]} * exact[i];
  }
  for (size_t g = 0; g < d.kv_heads; ++g) difference[g] = std::sqrt(difference[g] / norm[g]);
  return difference;
}

void report(const std::string& name, const std::vector<std::vector<double>>& mean,
            const std::vector<std::vector<double>>& base, double rows) {
  double log_ratio = 0, wins = 0, heads = 0;
  std::string layers;
  for (size_t l = 0; l < mean.size(); ++l) {
    double sum = 0;
    for (size_t g = 0; g < mean[l].size(); ++g, ++heads) {
      sum += mean[l][g];
      log_ratio += std::log(mean[l][g] / base[l][g]);
      wins += mean[l][g] < base[l][g];
    }
    layers += fmt::format(" {:.3f}", sum / static_cast<double>(mean[l].size()));
  }
  fmt::print("{:<78} rows {:6.0f}  ratio {:.3f}  wins {:3.0f}/{:.0f} |{}\n", name, rows,
             std::exp(log_ratio / heads), wins, heads, layers);
  std::fflush(stdout);
}

void study(const Context& context, const Dump& d, size_t seeds, const std::string& policy) {
  const std::string around = ",sink=256,window=256";
  const std::vector<std::vector<double>> zero(d.layers.size(), std::vector<double>(d.kv_heads));
  auto ours = zero, weighted = zero, plain = zero;
  double rows = 0;
  for (size_t l = 0; l < d.layers.size(); ++l) {
    const LayerDump& layer = d.layers[l];
    const auto exact = attend_last(context, d, layer, "exact+f32", 0).out;
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      const auto add = [&](std::vector<std::vector<double>>& to, const Result& r) {
        const auto e = errors(d, r.out, exact);
        for (size_t g = 0; g < d.kv_heads; ++g) to[l][g] += e[g] / static_cast<double>(seeds);
      };
      const Result r = attend_last(context, d, layer, policy + "+f32" + around, seed);
      add(ours, r);
      const size_t held = r.rows[0];
      rows += static_cast<double>(held) / static_cast<double>(seeds * d.layers.size());
      for (bool weights : {true, false})
        add(weights ? weighted : plain,
            attend_last(context, d, layer,
                        fmt::format("uniform(budget={},weights={})+f32{}", held, weights, around),
                        seed + 1000));
    }
  }
  report(policy, ours, weighted, rows);
  report("  uniform, weighted, equal rows", weighted, weighted, rows);
  report("  uniform, unweighted, equal rows", plain, weighted, rows);
}

}  // namespace
}  // namespace pith

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: methods_study_bench DUMP SEEDS POLICY...\n");
    return 2;
  }
  try {
    pith::ThreadPool pool;
    pith::MemoryCounter memory;
    const pith::Context context{pool, memory, pith::kernels_for()};
    const pith::Dump dump = pith::read_dump(argv[1]);
    for (int i = 3; i < argc; ++i) pith::study(context, dump, std::stoul(argv[2]), argv[i]);
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
}
