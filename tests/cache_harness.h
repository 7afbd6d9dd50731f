#pragma once
// Shared by cache tests: a cache over random rows, and attention in double over given rows.

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "policy/registry.h"

namespace pith::test {

struct Shape {
  int head_dim = 64, group = 4, kv_heads = 2, layers = 1;
  size_t context = 1000;
  int query_heads() const { return group * kv_heads; }
  size_t q_size() const { return static_cast<size_t>(query_heads() * head_dim); }
  size_t kv_size() const { return static_cast<size_t>(kv_heads * head_dim); }
};

/// Random rows of one layer. Keys share a mean, as real keys do.
struct Rows {
  Rows(const Shape& shape, size_t tokens, uint32_t seed)
      : q(tokens * shape.q_size()), k(tokens * shape.kv_size()), v(tokens * shape.kv_size()) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& x : q) x = normal(random);
    for (float& x : k) x = normal(random) + 0.5f;
    for (float& x : v) x = normal(random);
  }
  std::vector<float> q;     // [T, H, D]
  std::vector<float> k, v;  // [T, G, D]
};

/// A cache with threads, counted and poisoned memory, and kernels of its own.
class Harness {
 public:
  Harness(const Shape& shape, const std::string& policy, uint64_t seed = 1, int threads = 1,
          const std::string& isa = "", const Rope* rope = nullptr)
      : shape_(shape), pool_(threads), context_{pool_, memory_, kernels_for(isa)} {
    const CacheShape cs{shape.layers, shape.query_heads(), shape.kv_heads, shape.head_dim,
                        {},           shape.context};
    const Policy parsed = Policy::parse(policy);
    if (!rope && turns_keys(parsed)) {
      rope_.emplace(static_cast<size_t>(shape.head_dim), 10000.0);
      rope = &*rope_;
    }
    cache_ = std::make_unique<KvCache>(context_, cs, parsed, seed, rope);
  }

  KvCache& cache() { return *cache_; }
  MemoryCounter& memory() { return memory_; }
  const Context& context() const { return context_; }

  /// Appends rows [first, last) without queries, `chunk` at a time.
  void append(const Rows& rows, size_t first, size_t last, size_t chunk) {
    for (size_t t = first; t < last; t += chunk) {
      const size_t n = std::min(chunk, last - t);
      for (int l = 0; l < shape_.layers; ++l)
        cache_->append(l, rows.k.data() + t * shape_.kv_size(),
                       rows.v.data() + t * shape_.kv_size(), n);
    }
  }
  /// Prefill: each chunk's queries attend and its rows enter. Returns out [T, H, D].
  std::vector<float> step(const Rows& rows, size_t first, size_t last, size_t chunk,
                          int layer = 0) {
    std::vector<float> out((last - first) * shape_.q_size());
    for (size_t t = first; t < last; t += chunk) {
      const size_t n = std::min(chunk, last - t);
      cache_->step(layer, out.data() + (t - first) * shape_.q_size(),
                   rows.q.data() + t * shape_.q_size(), rows.k.data() + t * shape_.kv_size(),
                   rows.v.data() + t * shape_.kv_size(), n);
    }
    return out;
  }
  /// Queries [first, last) attend to what is stored.
  std::vector<float> attend(const Rows& rows, size_t first, size_t last) {
    std::vector<float> out((last - first) * shape_.q_size());
    cache_->attend_only(0, out.data(), rows.q.data() + first * shape_.q_size(), last - first);
    return out;
  }

 private:
  /// Whether keys are stored before RoPE, for which a cache needs one.
  static bool turns_keys(const Policy& policy) {
    for (const PolicyRule& rule : policy.rules)
      if (rule.key_codec) {
        const CodecRow& row = codec_row(rule.key_codec->name);
        if (row.make(row.read(*rule.key_codec), Side::kKeys)->pre_rope()) return true;
      }
    return false;
  }

  Shape shape_;
  ThreadPool pool_;
  MemoryCounter memory_{0, /*poison=*/true};
  Context context_;
  std::optional<Rope> rope_;  // for policies that need one, where the test has none
  std::unique_ptr<KvCache> cache_;
};

/// x [count, D] as a dense cache of `dtype` gives it back.
inline void round_to(std::vector<float>& x, DType dtype) {
  const Kernels& scalar = kernels_for("scalar");
  std::vector<uint32_t> raw(x.size());
  scalar.from_f32(raw.data(), x.data(), dtype, x.size());
  scalar.to_f32(x.data(), raw.data(), dtype, x.size());
}

/// softmax(q.k / sqrt(D) + log w) v in double over the rows named, for one query of one head. Rows
/// held for one sum alone count in that sum alone.
inline std::vector<double> oracle(const Shape& shape, const float* q, const Rows& rows, int kv_head,
                                  const HeadRows& held) {
  const auto d = static_cast<size_t>(shape.head_dim);
  std::vector<double> scores;
  double top = -INFINITY;
  for (size_t i = 0; i < held.positions.size(); ++i) {
    const float* k = rows.k.data() + static_cast<size_t>(held.positions[i]) * shape.kv_size() +
                     static_cast<size_t>(kv_head) * d;
    double s = 0;
    for (size_t c = 0; c < d; ++c) s += double{q[c]} * k[c];
    scores.push_back(s / std::sqrt(static_cast<double>(d)) + held.log_weights[i]);
    top = std::max(top, scores.back());
  }
  std::vector<double> out(d);
  double sum = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double p = std::exp(scores[i] - top);
    const Role role = held.roles.empty() ? Role::kBoth : held.roles[i];
    if (role != Role::kNumerator) sum += p;
    if (role == Role::kDenominator) continue;
    const float* v = rows.v.data() + static_cast<size_t>(held.positions[i]) * shape.kv_size() +
                     static_cast<size_t>(kv_head) * d;
    for (size_t c = 0; c < d; ++c) out[c] += p * v[c];
  }
  for (double& x : out) x /= sum;
  return out;
}

/// The oracle for queries [first, last) of all heads over rows that each KV head holds.
inline std::vector<double> oracle_all(const Shape& shape, const Rows& rows, size_t first,
                                      size_t last, const std::vector<HeadRows>& held) {
  std::vector<double> out;
  for (size_t t = first; t < last; ++t)
    for (int h = 0; h < shape.query_heads(); ++h) {
      const float* q = rows.q.data() + t * shape.q_size() + static_cast<size_t>(h * shape.head_dim);
      const auto one =
          oracle(shape, q, rows, h / shape.group, held[static_cast<size_t>(h / shape.group)]);
      out.insert(out.end(), one.begin(), one.end());
    }
  return out;
}

inline std::vector<HeadRows> held_rows(const KvCache& cache, const Shape& shape) {
  std::vector<HeadRows> held;
  for (int g = 0; g < shape.kv_heads; ++g) held.push_back(cache.rows(0, g));
  return held;
}

inline HeadRows all_rows(size_t n) {
  HeadRows rows;
  for (size_t i = 0; i < n; ++i) rows.positions.push_back(static_cast<int64_t>(i));
  rows.log_weights.assign(n, 0.0f);
  rows.roles.assign(n, Role::kBoth);
  return rows;
}

/// ||a - b|| / ||b||.
template <class A, class B>
double relative_error(const A& a, const B& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace pith::test
