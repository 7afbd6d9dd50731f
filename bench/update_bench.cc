// The cost of a selector's updates beside attention, token by token as in decode. A cache takes n
// rows, then n more. Update: the time of append per token, less that of a cache with the same
// window and no body. Selection: less that of a cache that moves every row into its body and keeps
// it. Both against the time of one query's attention to what is held then.
//
// Usage: update_bench N GROUP POLICY... (one thread, one KV head, head_dim 64, f16, sink 4, window
// 64; GROUP query heads). The policy must not set sink, window or dtype.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

#include "cache/kv_cache.h"
#include "kernels/kernels.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kDim = 64, kData = 4096, kAttendEvery = 16;
using Clock = std::chrono::steady_clock;

struct Data {
  explicit Data(size_t group) : q(group * kDim), k(kData * kDim), v(kData * kDim) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& x : q) x = normal(random);
    for (float& x : k) x = normal(random) * 0.5f;
    for (float& x : v) x = normal(random);
  }
  std::vector<float> q;     // [H, D]
  std::vector<float> k, v;  // [kData, D]
};

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

/// Microseconds per token.
struct Cost {
  double append = 0, attend = 0;
  double worst = 0;  ///< the longest append of one token
  double rows = 0;
};

/// Tokens [first, last), one after another.
Cost run(KvCache& cache, const Data& data, size_t first, size_t last, bool attend) {
  Cost cost;
  std::vector<float> out(data.q.size());
  const auto tokens = static_cast<double>(last - first);
  size_t attended = 0;
  for (size_t t = first; t < last; ++t) {
    const size_t at = t % kData * kDim;
    const auto before = Clock::now();
    cache.append(0, data.k.data() + at, data.v.data() + at, 1);
    const double took = microseconds(before, Clock::now());
    cost.append += took / tokens;
    cost.worst = std::max(cost.worst, took);
    if (!attend || t % kAttendEvery != 0) continue;
    const auto middle = Clock::now();
    cache.attend_only(0, out.data(), data.q.data(), 1);
    cost.attend += microseconds(middle, Clock::now());
    ++attended;
    if (t % (kAttendEvery * 64) == 0) cost.rows += static_cast<double>(cache.ledger().rows_kept);
  }
  if (attended > 0) cost.attend /= static_cast<double>(attended);
  cost.rows /= tokens / (kAttendEvery * 64);
  return cost;
}

void report(const Context& context, size_t n, size_t group, const std::string& policy) {
  const Data data(group);
  const CacheShape shape{1, static_cast<int>(group), 1, static_cast<int>(kDim), {}, 2 * n};
  const Policy parsed = Policy::parse(policy + ",sink=4,window=64");
  KvCache cache(context, shape, parsed, 1, nullptr);
  KvCache window(context, shape, Policy::parse("streaming_llm(window=64)"), 1, nullptr);
  KvCache exact(context, shape, Policy::parse("exact,sink=4,window=64"), 1, nullptr);
  for (size_t turn = 0; turn < 2; ++turn) {
    const size_t from = turn * n, to = from + n;
    const double base = run(window, data, from, to, false).append;
    const double moved = run(exact, data, from, to, false).append;
    const Cost cost = run(cache, data, from, to, true);
    const double update = cost.append - base, selection = cost.append - moved;
    fmt::print(
        "{:<36} tokens {:>6}-{:<6} rows {:5.0f}  attend {:6.2f} us  append {:5.3f} (window {:.3f}, "
        "exact {:.3f})  update {:5.3f} = {:5.2f}%  selection {:6.3f} = {:5.2f}%  longest {:7.1f}\n",
        policy, from, to, cost.rows, cost.attend, cost.append, base, moved, update,
        100 * update / cost.attend, selection, 100 * selection / cost.attend, cost.worst);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace pith

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: update_bench N GROUP POLICY...\n");
    return 2;
  }
  try {
    pith::ThreadPool pool(1);
    pith::MemoryCounter memory;
    const pith::Context context{pool, memory, pith::kernels_for()};
    for (int i = 3; i < argc; ++i)
      pith::report(context, std::stoul(argv[1]), std::stoul(argv[2]), argv[i]);
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
}
