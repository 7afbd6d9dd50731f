#include "hyper/hyper.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "attend/attend.h"
#include "core/philox.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr uint32_t kProjectionTag = 0, kSampleTag = 1;

/// Tokens [first, first + count).
struct Run {
  size_t first = 0, count = 0;
};

class Hyper {
 public:
  Hyper(const Context& context, float* out, const HyperRule& rule, const CausalHeads& heads)
      : context_(context),
        rule_(rule),
        heads_(heads),
        scale_(1 / std::sqrt(static_cast<float>(heads.head_dim))),
        out_(out),
        log_sum_(context.memory, MemoryKind::kScratch) {
    log_sum_.resize(heads.tokens * heads.query_heads);
  }

  void causal(Run run) {
    if (run.count <= std::max<size_t>(rule_.least, 1)) return exact(run);
    const Run old{run.first, run.count / 2};
    const Run young{run.first + old.count, run.count - old.count};
    causal(old);
    causal(young);
    context_.pool.parallel_for(heads_.query_heads, [&](size_t h, int) { unmasked(h, young, old); });
  }

 private:
  void exact(Run run) {
    AttendCall call;
    call.shape = {heads_.query_heads, heads_.kv_heads, heads_.head_dim, scale_};
    const size_t at = run.first * heads_.kv_heads * heads_.head_dim;
    call.q = query(run.first, 0);
    call.k = heads_.k + at;
    call.v = heads_.v + at;
    call.tokens = run.count;
    const std::vector<std::span<const Span>> none(heads_.kv_heads);
    call.spans = none;
    call.out = out_ + run.first * heads_.query_heads * heads_.head_dim;
    call.log_sum = log_sum_.data() + run.first * heads_.query_heads;
    attend(context_, call);
  }

  const float* query(size_t token, size_t head) const {
    return heads_.q + (token * heads_.query_heads + head) * heads_.head_dim;
  }
  size_t key_at(size_t token, size_t query_head) const {
    const size_t g = query_head / (heads_.query_heads / heads_.kv_heads);
    return (token * heads_.kv_heads + g) * heads_.head_dim;
  }

  /// The place of a vector's signs on a Gray code: neighbours there differ in few signs.
  uint32_t hash(const std::vector<float>& directions, const float* x) const {
    uint32_t signs = 0;
    for (uint32_t b = 0; b < rule_.bits; ++b)
      signs = signs << 1 | (context_.kernels.dot(directions.data() + b * heads_.head_dim, x,
                                                 heads_.head_dim) > 0);
    for (uint32_t shift = 1; shift < 32; shift *= 2) signs ^= signs >> shift;
    return signs;
  }
  /// Tokens of a run in the order of their hashes; vector(t) is token t's.
  template <class F>
  std::vector<size_t> sorted(const std::vector<float>& directions, Run run, F&& vector) const {
    std::vector<std::pair<uint32_t, size_t>> hashes;
    for (size_t t = run.first; t < run.first + run.count; ++t)
      hashes.emplace_back(hash(directions, vector(t)), t);
    std::sort(hashes.begin(), hashes.end());
    std::vector<size_t> order;
    for (const auto& entry : hashes) order.push_back(entry.second);
    return order;
  }
  std::vector<float> directions(const Philox& random, uint64_t from) const {
    std::vector<float> out(rule_.bits * heads_.head_dim);
    for (size_t i = 0; i < out.size(); ++i)  // Irwin-Hall: normal enough for a direction
      for (uint64_t j = 0; j < 12; ++j)
        out[i] += random.uniform((from + i) * 12 + j, kProjectionTag) - 0.5f;
    return out;
  }
  /// `samples` tokens of a run, without repeats.
  std::vector<size_t> drawn(const Philox& random, Run run) const {
    std::vector<std::pair<uint64_t, size_t>> words;
    for (size_t t = run.first; t < run.first + run.count; ++t)
      words.emplace_back(random.word64(t, kSampleTag), t);
    const size_t n = std::min(rule_.samples, run.count);
    std::nth_element(words.begin(), words.begin() + static_cast<ptrdiff_t>(n), words.end());
    std::vector<size_t> out;
    for (size_t i = 0; i < n; ++i) out.push_back(words[i].second);
    return out;
  }

  /// Queries of one head in `asking` attend to the keys of `asked` and what they had.
  void unmasked(size_t head, Run asking, Run asked);
  void block(size_t head, std::span<const size_t> queries, std::span<const size_t> keys,
             std::span<const size_t> others, float log_weight);

  const Context& context_;
  HyperRule rule_;
  CausalHeads heads_;
  float scale_;
  float* out_;            // [T, H, D]
  Array<float> log_sum_;  // [T, H]
};

void Hyper::unmasked(size_t head, Run asking, Run asked) {
  // Each pair of runs has numbers of its own: `asked.first` and its size name it.
  const Philox random(rule_.seed ^ (asked.first << 32 | asked.count), 0,
                      static_cast<uint32_t>(head));
  const std::vector<float> planes = directions(random, 0);
  const auto key = [&](size_t t) { return heads_.k + key_at(t, head); };
  const auto queries = sorted(planes, asking, [&](size_t t) { return query(t, head); });
  const auto keys = sorted(planes, asked, key);
  const std::vector<size_t> samples = drawn(random, asked);
  std::vector<size_t> place(asked.count);  // of each key in the order
  for (size_t i = 0; i < keys.size(); ++i) place[keys[i] - asked.first] = i;
  const size_t blocks = (keys.size() + rule_.block - 1) / rule_.block;
  for (size_t b = 0; b < blocks; ++b) {
    const size_t from = b * rule_.block, to = std::min(keys.size(), from + rule_.block);
    const size_t q_from = queries.size() * b / blocks, q_to = queries.size() * (b + 1) / blocks;
    std::vector<size_t> others;
    for (size_t t : samples) {
      const size_t at = place[t - asked.first];
      if (at < from || at >= to) others.push_back(t);
    }
    const double outside = static_cast<double>(keys.size() - (to - from));
    const auto log_weight =
        others.empty() ? 0.0f
                       : static_cast<float>(std::log(outside / static_cast<double>(others.size())));
    block(head, std::span(queries).subspan(q_from, q_to - q_from),
          std::span(keys).subspan(from, to - from), others, log_weight);
  }
}

void Hyper::block(size_t head, std::span<const size_t> queries, std::span<const size_t> keys,
                  std::span<const size_t> others, float log_weight) {
  if (queries.empty()) return;
  const Kernels& kernels = context_.kernels;
  const size_t d = heads_.head_dim, n = keys.size() + others.size(), m = queries.size();
  Array<float> memory(context_.memory, MemoryKind::kScratch);
  memory.resize(3 * n * d + 2 * m * d + m * n);
  float* const k = memory.data();        // [n, D]
  float* const transposed = k + n * d;   // [D, n]
  float* const v = transposed + n * d;   // [n, D]
  float* const q = v + n * d;            // [m, D]
  float* const result = q + m * d;       // [m, D]
  float* const scores = result + m * d;  // [m, n]
  for (size_t i = 0; i < n; ++i) {
    const size_t at = key_at(i < keys.size() ? keys[i] : others[i - keys.size()], head);
    std::copy_n(heads_.k + at, d, k + i * d);
    std::copy_n(heads_.v + at, d, v + i * d);
  }
  for (size_t i = 0; i < m; ++i) std::copy_n(query(queries[i], head), d, q + i * d);
  kernels.transpose_rows(transposed, n, {k, DType::kF32, d}, n);
  kernels.gemm({scores, n, q, d, transposed, n, m, n, d, false});
  std::vector<float> maxima(m), sums(m);
  for (size_t i = 0; i < m; ++i) {
    float* row = scores + i * n;
    kernels.scale(row, scale_, n);
    for (size_t j = keys.size(); j < n; ++j) row[j] += log_weight;
    maxima[i] = kernels.max(row, n);
    sums[i] = kernels.exp_sum(row, maxima[i], n);
  }
  kernels.gemm({result, d, scores, n, v, d, m, d, n, false});
  for (size_t i = 0; i < m; ++i) {
    const size_t at = queries[i] * heads_.query_heads + head;
    const float here = maxima[i] + std::log(sums[i]), before = log_sum_[at];
    const float largest = std::max(here, before);
    const float total = largest + std::log(std::exp(here - largest) + std::exp(before - largest));
    float* out = out_ + at * d;
    kernels.scale(out, before == kMinusInf ? 0 : std::exp(before - total), d);
    kernels.axpy(out, result + i * d, std::exp(here - total) / sums[i], d);
    log_sum_[at] = total;
  }
}

}  // namespace

void hyper_attention(const Context& context, float* out, const HyperRule& rule,
                     const CausalHeads& heads) {
  if (heads.kv_heads == 0 || heads.query_heads % heads.kv_heads != 0)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("hyper: {} query heads cannot share {} KV heads evenly",
                            heads.query_heads, heads.kv_heads));
  if (rule.block == 0 || rule.bits == 0 || rule.bits > 31)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("hyper: blocks of {} rows and {} bits; a block has at least one row, a "
                            "hash 1 to 31 bits",
                            rule.block, rule.bits));
  if (heads.tokens > 0) Hyper(context, out, rule, heads).causal({0, heads.tokens});
}

}  // namespace pith
