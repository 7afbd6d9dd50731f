#pragma once
// For tests: random attention problems and their answers by a softmax in double that shares nothing
// with the code under test.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attend/attend.h"
#include "rows/cpu/dense.h"

namespace pith::oracle {

inline constexpr double kTheta = 10000;

/// One span of one KV head, with what the oracle needs to know about it.
struct Rows {
  std::unique_ptr<DenseRowsStore> keys, values;
  std::vector<float> k, v;                    // [rows, D] as stored
  std::vector<std::vector<double>> turned_k;  // [rows] of [D], as a query meets them
  std::vector<float> log_weights;
  std::vector<uint32_t> positions;
  std::vector<float> mass;
  std::vector<double> wanted_mass;
  Span span;
};

/// The parameters of a case.
struct Case {
  size_t dim = 64, kv_heads = 2, group = 4, tokens = 1;
  DType dtype = DType::kF32;
  bool own_rows = true;
  int64_t window = 0;
  size_t mass_queries = 0;
  bool weights = false, positions = false, before_rope = false;
  int64_t query_shift = 0;
  Role role = Role::kBoth;
  std::vector<size_t> span_rows = {5, 300, 33};
  double soft_cap = 0;
  bool sinks = false;
};

inline std::string describe(const Case& c) {
  std::string s = "D " + std::to_string(c.dim) + " group " + std::to_string(c.group) + " tokens " +
                  std::to_string(c.tokens) + " " + to_string(c.dtype) + " window " +
                  std::to_string(c.window) + " mass " + std::to_string(c.mass_queries) + " role " +
                  std::to_string(static_cast<int>(c.role)) + " shift " +
                  std::to_string(c.query_shift);
  if (c.own_rows) s += " own";
  if (c.weights) s += " weights";
  if (c.positions) s += " positions";
  if (c.before_rope) s += " before_rope";
  if (c.soft_cap > 0) s += " capped";
  if (c.sinks) s += " sinks";
  for (size_t n : c.span_rows) s += " " + std::to_string(n);
  return s;
}

class Problem {
 public:
  Problem(const Case& c, std::string_view isa = "", int threads = 2)
      : case_(c), pool_(threads), kernels_(kernels_for(isa)), rope_(c.dim, kTheta) {
    std::mt19937 random(static_cast<uint32_t>(c.dim * 7 + c.group * 3 + c.tokens));
    const size_t heads = c.kv_heads * c.group;
    q_ = numbers(random, c.tokens * heads * c.dim, 1.5f);
    k_ = numbers(random, c.tokens * c.kv_heads * c.dim, 1.5f);
    v_ = numbers(random, c.tokens * c.kv_heads * c.dim, 1);
    heads_.resize(c.kv_heads);
    for (auto& head : heads_) fill_head(random, head);
    for (auto& head : heads_) {
      lists_.emplace_back();
      for (Rows& rows : head) lists_.back().push_back(rows.span);
    }
    for (const auto& list : lists_) spans_.emplace_back(list);
    out_.assign(c.tokens * heads * c.dim, std::nanf(""));
    log_sum_.assign(c.tokens * heads, std::nanf(""));
    chunk_mass_.assign(c.kv_heads * c.tokens, 0.0f);
    if (c.sinks) sinks_ = numbers(random, heads, 4);
  }

  AttendCall call() {
    return {.shape = {.query_heads = case_.kv_heads * case_.group,
                      .kv_heads = case_.kv_heads,
                      .head_dim = case_.dim,
                      .variant = {.soft_cap = static_cast<float>(case_.soft_cap),
                                  .sinks = case_.sinks ? sinks_.data() : nullptr}},
            .q = q_.data(),
            .k = case_.own_rows ? k_.data() : nullptr,
            .v = case_.own_rows ? v_.data() : nullptr,
            .tokens = case_.tokens,
            .first_position = first_position_,
            .sliding_window = case_.window,
            .spans = spans_,
            .rope = &rope_,
            .mass_queries = case_.mass_queries,
            .chunk_mass = chunk_mass_.data(),
            .out = out_.data(),
            .log_sum = log_sum_.data()};
  }

  Context context() { return {pool_, memory_, kernels_}; }
  void run() { attend(context(), call()); }
  void check();

  std::vector<float> result() const {
    std::vector<float> all = out_;
    all.insert(all.end(), log_sum_.begin(), log_sum_.end());
    all.insert(all.end(), chunk_mass_.begin(), chunk_mass_.end());
    for (const auto& head : heads_)
      for (const Rows& rows : head) all.insert(all.end(), rows.mass.begin(), rows.mass.end());
    return all;
  }
  void clear() {
    std::fill(chunk_mass_.begin(), chunk_mass_.end(), 0.0f);
    for (auto& head : heads_)
      for (Rows& rows : head) std::fill(rows.mass.begin(), rows.mass.end(), 0.0f);
  }
  MemoryCounter& memory() { return memory_; }
  std::vector<float>& out() { return out_; }
  std::vector<float>& log_sum() { return log_sum_; }
  const ThreadPool& pool() const { return pool_; }

 private:
  static std::vector<float> numbers(std::mt19937& random, size_t n, float size) {
    std::uniform_real_distribution<float> uniform(-size, size);
    std::vector<float> x(n);
    for (float& value : x) value = uniform(random);
    return x;
  }
  void fill_head(std::mt19937& random, std::vector<Rows>& head);
  std::vector<double> turned(const float* x, int64_t positions) const;
  struct Seen {
    double score;
    const float* value;
    Role role;
    double* mass;
  };
  void collect(std::vector<Seen>& seen, size_t token, size_t h);

  Case case_;
  ThreadPool pool_;
  MemoryCounter memory_{0, true};
  const Kernels& kernels_;
  Rope rope_;
  int64_t first_position_ = 0;
  std::vector<float> q_, k_, v_, out_, log_sum_, chunk_mass_, sinks_;
  std::vector<double> wanted_chunk_mass_;
  std::vector<std::vector<Rows>> heads_;
  std::vector<std::vector<Span>> lists_;
  std::vector<std::span<const Span>> spans_;
};

/// The first span is plain and exact; the later ones have everything the case asks for. Each store
/// holds two rows more at the start that the span leaves out.
inline void Problem::fill_head(std::mt19937& random, std::vector<Rows>& head) {
  constexpr size_t kSkipped = 2;
  uint32_t position = 0;
  for (size_t nth = 0; nth < case_.span_rows.size(); ++nth) {
    const size_t n = case_.span_rows[nth], all = n + kSkipped, dim = case_.dim;
    const bool plain = nth == 0;
    Rows& rows = head.emplace_back();
    const DType type = plain ? DType::kF32 : case_.dtype;
    const Context context = this->context();
    const RowsRequest keys{.side = Side::kKeys, .dim = dim};
    rows.keys = std::make_unique<DenseRowsStore>(context, type, keys);
    rows.values = std::make_unique<DenseRowsStore>(context, type, keys);
    rows.keys->append(numbers(random, all * dim, 1.5f).data(), dim, all);
    rows.values->append(numbers(random, all * dim, 1).data(), dim, all);
    rows.k.resize(all * dim);
    rows.v.resize(all * dim);
    rows.keys->decode(rows.k.data(), 0, all);
    rows.values->decode(rows.v.data(), 0, all);
    rows.log_weights = numbers(random, all, 1);
    rows.mass.assign(all, 0.0f);
    rows.wanted_mass.assign(all, 0.0);
    Span& s = rows.span;
    s = {.keys = rows.keys.get(), .values = rows.values.get(), .first = kSkipped, .count = n};
    s.first_position = position;
    if (case_.mass_queries > 0) s.mass = rows.mass.data();
    rows.positions.assign(all, 4000000000u);
    const bool scattered = !plain && case_.positions;
    for (size_t i = kSkipped; i < all; ++i) {
      rows.positions[i] = position;
      position += scattered ? 1 + random() % 9 : 1;
    }
    if (plain) continue;
    if (scattered) s.positions = rows.positions.data();
    if (case_.weights) {
      s.log_weight = 0.7f;
      s.log_weights = rows.log_weights.data();
    }
    s.role = nth == 1 ? case_.role : Role::kBoth;
    s.keys_before_rope = case_.before_rope;
    s.query_shift = case_.query_shift;
    if (s.role == Role::kDenominator) s.values = nullptr;
  }
  for (Rows& rows : head)
    for (size_t i = 0; i < rows.positions.size(); ++i)
      rows.turned_k.push_back(turned(rows.k.data() + i * case_.dim,
                                     rows.span.keys_before_rope ? int64_t{rows.positions[i]} : 0));
  first_position_ = std::max<int64_t>(first_position_, position);
}

inline std::vector<double> Problem::turned(const float* x, int64_t positions) const {
  const size_t dim = case_.dim, half = dim / 2;
  std::vector<double> y(x, x + dim);
  if (positions == 0) return y;
  for (size_t i = 0; i < half; ++i) {
    const double angle = double(positions) * std::pow(kTheta, -2.0 * double(i) / double(dim));
    y[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
    y[i + half] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return y;
}

inline void Problem::collect(std::vector<Seen>& seen, size_t token, size_t h) {
  const size_t dim = case_.dim, head = h / case_.group;
  const float* q = q_.data() + (token * case_.kv_heads * case_.group + h) * dim;
  const int64_t position = first_position_ + int64_t(token);
  const auto visible = [&](int64_t at) {
    return case_.window == 0 || at > position - case_.window;
  };
  const auto product = [&](const std::vector<double>& x, const std::vector<double>& y) {
    double sums[4] = {};
    for (size_t i = 0; i < dim; ++i) sums[i % 4] += x[i] * y[i];
    const double logit = (sums[0] + sums[1] + sums[2] + sums[3]) / std::sqrt(double(dim));
    return case_.soft_cap > 0 ? case_.soft_cap * std::tanh(logit / case_.soft_cap) : logit;
  };
  for (Rows& rows : heads_[head]) {
    const Span& s = rows.span;
    const std::vector<double> query = turned(q, s.query_shift);
    for (size_t i = s.first; i < s.first + s.count; ++i) {
      if (!visible(rows.positions[i])) continue;
      const double weight = s.log_weight + (s.log_weights ? s.log_weights[i] : 0);
      seen.push_back({product(query, rows.turned_k[i]) + weight, rows.v.data() + i * dim, s.role,
                      &rows.wanted_mass[i]});
    }
  }
  if (!case_.own_rows) return;
  for (size_t t = 0; t <= token; ++t) {
    if (!visible(first_position_ + int64_t(t))) continue;
    const size_t at = (t * case_.kv_heads + head) * dim;
    seen.push_back({product(turned(q, 0), turned(k_.data() + at, 0)), v_.data() + at, Role::kBoth,
                    &wanted_chunk_mass_[head * case_.tokens + t]});
  }
}

inline void Problem::check() {
  const size_t heads = case_.kv_heads * case_.group, dim = case_.dim;
  wanted_chunk_mass_.assign(case_.kv_heads * case_.tokens, 0.0);
  for (size_t t = 0; t < case_.tokens; ++t) {
    for (size_t h = 0; h < heads; ++h) {
      std::vector<Seen> seen;
      collect(seen, t, h);
      double largest = -INFINITY, sum = 0;
      for (const Seen& row : seen) largest = std::max(largest, row.score);
      if (case_.sinks) {
        largest = std::max(largest, double{sinks_[h]});
        sum = std::exp(sinks_[h] - largest);
      }
      std::vector<double> wanted(dim, 0.0);
      double spread = 0;  // size of the terms that the result sums, for the tolerance
      for (const Seen& row : seen) {
        const double p = std::exp(row.score - largest);
        if (row.role != Role::kNumerator) sum += p;
        if (row.role == Role::kDenominator) continue;
        spread += p;
        for (size_t c = 0; c < dim; ++c) wanted[c] += p * row.value[c];
      }
      const float* out = out_.data() + (t * heads + h) * dim;
      const double scale = sum > 0 ? 1 / sum : 0, tolerance = 3e-6 * (1 + spread * scale);
      for (size_t c = 0; c < dim; ++c) ASSERT_NEAR(out[c], wanted[c] * scale, tolerance);
      if (sum == 0) {
        ASSERT_EQ(log_sum_[t * heads + h], -INFINITY);
        continue;
      }
      ASSERT_NEAR(log_sum_[t * heads + h], largest + std::log(sum), 5e-6);
      if (t + case_.mass_queries < case_.tokens) continue;
      for (const Seen& row : seen) *row.mass += std::exp(row.score - largest) / sum;
    }
  }
  if (case_.mass_queries == 0) return;
  const double tolerance = 1e-6 * double(case_.group * std::min(case_.mass_queries, case_.tokens));
  for (auto& head : heads_)
    for (Rows& rows : head)
      for (size_t i = 0; i < rows.mass.size(); ++i)
        ASSERT_NEAR(rows.mass[i], rows.wanted_mass[i], tolerance);
  if (!case_.own_rows) return;
  for (size_t i = 0; i < chunk_mass_.size(); ++i)
    ASSERT_NEAR(chunk_mass_[i], wanted_chunk_mass_[i], tolerance);
}

}  // namespace pith::oracle
