#include "tools/bench/bandwidth.h"

#include <algorithm>
#include <chrono>

#include "core/philox.h"
#include "kernels/read_rate.h"

namespace pith {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

void fill_random(std::vector<float>& x, uint64_t seed) {
  const Philox random(seed, 0, 0);
  for (size_t i = 0; i < x.size(); i += 4) {
    const auto words = random.words(i);
    for (size_t j = 0; j < std::min<size_t>(4, x.size() - i); ++j)
      x[i + j] = (static_cast<float>(words[j] >> 8) * 0x1p-24f - 0.5f) * 3.4641f;
  }
}

Median median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

double read_bandwidth(const Context& context, const Stopped& stopped) {
  constexpr size_t kNumbers = size_t{1} << 28;  // 1 GiB
  Array<float> buffer(context.memory, MemoryKind::kScratch);
  buffer.resize(kNumbers);
  // The system's pages come with the first write, which may take seconds.
  constexpr size_t kPiece = kNumbers / 64;
  for (size_t at = 0; at < kNumbers; at += kPiece) {
    if (stopped()) return 0;
    std::fill_n(buffer.begin() + at, kPiece, 1.0f);
  }
  std::vector<double> rates;
  for (int pass = 0; pass < 7 && (pass == 0 || !stopped()); ++pass)
    rates.push_back(read_rate(context, std::as_bytes(std::span(buffer.data(), kNumbers))));
  return median(rates).value;
}

AttentionSpeed attention_speed(const Context& context, const ModelConfig& config,
                               const Policy& policy, size_t depth, const Stopped& stopped) {
  const CacheShape shape{config.layers,     config.query_heads,    config.kv_heads,
                         config.head_dim,   config.sliding_window, depth + 1,
                         config.fingerprint};
  const Rope rope(static_cast<size_t>(config.head_dim), config.rope_theta);
  KvCache cache(context, shape, policy, 0, &rope);
  constexpr size_t kChunk = 256;
  const auto kv = static_cast<size_t>(config.kv_heads * config.head_dim);
  const auto width = static_cast<size_t>(config.query_heads * config.head_dim);
  std::vector<float> q(kChunk * width), k(kChunk * kv), v(kChunk * kv), out(kChunk * width);
  fill_random(q, 1);
  for (size_t t = 0; t < depth && !stopped(); t += kChunk) {
    const size_t n = std::min(kChunk, depth - t);
    fill_random(k, 2 + t);
    fill_random(v, 3 + t);
    for (int l = 0; l < config.layers; ++l) cache.append(l, k.data(), v.data(), n);
  }
  std::vector<double> seconds;
  const auto begun = Clock::now();
  while (seconds.empty() || (seconds.size() < 5 && !stopped()) ||
         (!stopped() && seconds_since(begun) < 1 && seconds.size() < 100)) {
    const auto start = Clock::now();
    for (int l = 0; l < config.layers; ++l) cache.attend_only(l, out.data(), q.data(), 1);
    seconds.push_back(seconds_since(start));
  }
  return {median(seconds).value, static_cast<double>(cache.ledger().payload)};
}

}  // namespace pith
