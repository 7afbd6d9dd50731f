#include "bench_select.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "pith/error.h"

namespace pith::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBlock = 4096;    // tokens of one policy before the next has its turn
constexpr size_t kRounds = 5;      // of attention
constexpr size_t kSteps = 32;      // decode steps after the stream
constexpr double kBurst = 0.002;   // seconds of attention before the next policy has its turn
constexpr double kKeyScale = 0.5;  // spread of scores near that of real heads: about 2

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Rows [first, first + count) of the stream: the same for every policy and repeat.
struct Block {
  Block(const SelectShape& s, size_t first, size_t count)
      : k(count * static_cast<size_t>(s.kv_heads * s.head_dim)), v(k.size()) {
    fill_random(k, 2 * first + 2);
    fill_random(v, 2 * first + 3);
    for (float& x : k) x *= static_cast<float>(kKeyScale);
  }
  std::vector<float> k, v;  // [count, G, D]
};

std::vector<float> queries(const SelectShape& s) {
  std::vector<float> q(static_cast<size_t>(s.kv_heads * s.group * s.head_dim));  // [H, D]
  fill_random(q, 1);
  return q;
}

CacheShape cache_shape(const SelectShape& s, size_t context) {
  return {1, s.kv_heads * s.group, s.kv_heads, s.head_dim, {}, context};
}

// softmax(q.k / sqrt(D)) v of query head `h` in double; out [D].
std::vector<double> softmax_answer(const SelectShape& s, const Block& rows, const float* q, int h,
                                   size_t count) {
  const auto dim = static_cast<size_t>(s.head_dim), heads = static_cast<size_t>(s.kv_heads);
  const auto g = static_cast<size_t>(h / s.group);
  std::vector<double> out(dim);
  double sum = 0;
  for (size_t t = 0; t < count; ++t) {
    const float* k = rows.k.data() + (t * heads + g) * dim;
    const float* v = rows.v.data() + (t * heads + g) * dim;
    double score = 0;
    for (size_t d = 0; d < dim; ++d) score += double{q[d]} * k[d];
    const double p = std::exp(score / std::sqrt(static_cast<double>(dim)));
    sum += p;
    for (size_t d = 0; d < dim; ++d) out[d] += p * v[d];
  }
  for (double& x : out) x /= sum;
  return out;
}

}  // namespace

struct SelectBench::Run {
  std::unique_ptr<KvCache> cache;
  double append_seconds = 0;
  Ledger ledger;
  std::vector<double> attend, step;  // seconds
};

double SelectBench::check_answer() const {
  constexpr size_t kRows = 1000;
  const Block rows(shape_, 0, kRows);
  const std::vector<float> q = queries(shape_);
  KvCache cache(context_, cache_shape(shape_, kRows), Policy::parse("exact"), 0, nullptr);
  for (size_t t = 0; t < kRows; ++t) {
    const size_t at = t * rows.k.size() / kRows;
    cache.append(0, rows.k.data() + at, rows.v.data() + at, 1);
  }
  std::vector<float> out(q.size());
  cache.attend_only(0, out.data(), q.data(), 1);
  double difference = 0, norm = 0;
  const auto dim = static_cast<size_t>(shape_.head_dim);
  for (int h = 0; h < shape_.kv_heads * shape_.group; ++h) {
    const size_t at = static_cast<size_t>(h) * dim;
    const auto expected = softmax_answer(shape_, rows, q.data() + at, h, kRows);
    for (size_t d = 0; d < dim; ++d) {
      difference += std::pow(out[at + d] - expected[d], 2);
      norm += expected[d] * expected[d];
    }
  }
  const double error = std::sqrt(difference / norm);
  if (!(error < 1e-2))
    throw Error(ErrorCode::kInternal,
                fmt::format("exact attention differs from a softmax in double by {:.2e}; nothing "
                            "was timed",
                            error));
  return error;
}

void SelectBench::fill(std::vector<Run>& runs, size_t tokens) const {
  const auto width = static_cast<size_t>(shape_.kv_heads * shape_.head_dim);
  for (size_t first = 0; first < tokens; first += kBlock) {
    const size_t count = std::min(kBlock, tokens - first);
    const Block rows(shape_, first, count);
    for (Run& run : runs) {
      const auto start = Clock::now();
      for (size_t t = 0; t < count; ++t)
        run.cache->append(0, rows.k.data() + t * width, rows.v.data() + t * width, 1);
      run.append_seconds += seconds_since(start);
    }
  }
  for (Run& run : runs) run.ledger = run.cache->ledger();
}

void SelectBench::time_attention(std::vector<Run>& runs) const {
  const std::vector<float> q = queries(shape_);
  std::vector<float> out(q.size());
  for (size_t round = 0; round < kRounds; ++round) {
    for (Run& run : runs) {
      run.cache->attend_only(0, out.data(), q.data(),
                             1);  // into the processor's caches, if it fits
      const auto start = Clock::now();
      size_t calls = 0;
      do {
        run.cache->attend_only(0, out.data(), q.data(), 1);
        ++calls;
      } while (seconds_since(start) < kBurst);
      run.attend.push_back(seconds_since(start) / static_cast<double>(calls));
    }
  }
  const auto width = static_cast<size_t>(shape_.kv_heads * shape_.head_dim);
  const Block rows(shape_, 0, kSteps);
  for (Run& run : runs) {
    for (size_t t = 0; t < kSteps; ++t) {
      const auto start = Clock::now();
      run.cache->step(0, out.data(), q.data(), rows.k.data() + t * width, rows.v.data() + t * width,
                      1);
      run.step.push_back(seconds_since(start));
    }
  }
}

std::vector<SelectPoint> SelectBench::measure(size_t tokens, size_t repeats,
                                              const Progress& progress) const {
  std::vector<SelectPoint> points;
  std::vector<std::vector<double>> update(policies_.size()), attend = update, step = update;
  for (size_t r = 0; r < repeats; ++r) {
    std::vector<Run> runs(policies_.size());
    for (size_t p = 0; p < policies_.size(); ++p)
      runs[p].cache = std::make_unique<KvCache>(context_, cache_shape(shape_, tokens + kSteps),
                                                Policy::parse(policies_[p].text), r, nullptr);
    fill(runs, tokens);
    time_attention(runs);
    for (size_t p = 0; p < policies_.size(); ++p) {
      update[p].push_back(runs[p].append_seconds / static_cast<double>(tokens));
      attend[p].insert(attend[p].end(), runs[p].attend.begin(), runs[p].attend.end());
      step[p].insert(step[p].end(), runs[p].step.begin(), runs[p].step.end());
      if (r + 1 == repeats)
        points.push_back({policies_[p], tokens, runs[p].ledger, median(update[p]),
                          median(attend[p]), median(step[p])});
    }
    if (progress && !progress(r + 1, repeats)) throw SelectCancelled{};
  }
  return points;
}

}  // namespace pith::cli
