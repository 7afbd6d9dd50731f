#pragma once
// Attention in double precision over the rows that a cache says it holds, with the numbers that
// these rows had when they came: what the GPU's attention must equal, whatever chose the rows.

#include <algorithm>
#include <cmath>
#include <vector>

#include "pith/rows.h"

namespace pith::cuda {

struct OracleShape {
  size_t query_heads = 0, kv_heads = 0, dim = 0;
  int64_t window = 0;  ///< rows that a query sees, its own among them; 0 = all
};

/// One layer's numbers of all tokens so far.
class RowOracle {
 public:
  explicit RowOracle(const OracleShape& shape) : shape_(shape) {}

  /// The next step's own rows, k and v [T, G, D]; they are held by nobody before the step ends.
  void append(const std::vector<float>& k, const std::vector<float>& v) {
    k_.insert(k_.end(), k.begin(), k.end());
    v_.insert(v_.end(), v.begin(), v.end());
  }
  size_t tokens() const { return k_.size() / (shape_.kv_heads * shape_.dim); }

  struct Query {
    const float* q = nullptr;  // [D]
    size_t head = 0;           ///< query head
    int64_t at = 0;            ///< its position
    int64_t first = 0;         ///< of its step's rows
  };

  /// out [D] <- attention of the query over the rows in `held` before the step, and over the
  /// step's rows up to its own.
  std::vector<double> attend(const Query& query, const HeadRows& held) const {
    std::vector<double> scores, out(shape_.dim);
    std::vector<int64_t> rows;
    const auto add = [&](int64_t position, double log_weight) {
      if (shape_.window > 0 && position <= query.at - shape_.window) return;
      scores.push_back(score(query, position) + log_weight);
      rows.push_back(position);
    };
    for (size_t r = 0; r < held.positions.size(); ++r) {
      add(held.positions[r], static_cast<double>(held.log_weights[r]));
    }
    for (int64_t p = query.first; p <= query.at; ++p) add(p, 0);
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const double p = std::exp(scores[r] - top);
      sum += p;
      const float* v = row(v_, rows[r], query.head);
      for (size_t c = 0; c < shape_.dim; ++c) out[c] += p * v[c];
    }
    for (double& x : out) x /= sum;
    return out;
  }
  /// `held` without the row with the largest score.
  HeadRows without(const Query& query, HeadRows held) const {
    size_t top = 0;
    for (size_t r = 1; r < held.positions.size(); ++r) {
      if (score(query, held.positions[r]) + static_cast<double>(held.log_weights[r]) >
          score(query, held.positions[top]) + static_cast<double>(held.log_weights[top]))
        top = r;
    }
    held.positions.erase(held.positions.begin() + static_cast<ptrdiff_t>(top));
    held.log_weights.erase(held.log_weights.begin() + static_cast<ptrdiff_t>(top));
    return held;
  }

 private:
  double score(const Query& query, int64_t position) const {
    double dot = 0;
    const float* k = row(k_, position, query.head);
    for (size_t c = 0; c < shape_.dim; ++c) dot += static_cast<double>(query.q[c]) * k[c];
    return dot / std::sqrt(static_cast<double>(shape_.dim));
  }
  const float* row(const std::vector<float>& side, int64_t position, size_t query_head) const {
    const size_t g = query_head / (shape_.query_heads / shape_.kv_heads);
    return side.data() + (static_cast<size_t>(position) * shape_.kv_heads + g) * shape_.dim;
  }

  OracleShape shape_;
  std::vector<float> k_, v_;  // [T, G, D]
};

}  // namespace pith::cuda
