#pragma once
// Shared by decode and prefill: the call's sizes, the rows that a query sees, one step of the
// online softmax.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "attend/attend.h"

namespace pith {

inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
/// Rows that are scored at a time.
inline constexpr size_t kTileRows = 256;

/// An AttendCall's sizes, checked.
struct Geometry {
  size_t query_heads;  // H
  size_t kv_heads;     // G
  size_t group;        // H / G
  size_t dim;          // D
  size_t tokens;       // T
  size_t before;       // the chunk's own rows before the first query's
  float scale;

  size_t own() const { return before + tokens; }
};

/// Many query rows: tiles decoded once, matrix products.
void attend_prefill(const Context& context, const AttendCall& call, const Geometry& geometry);
/// At most a few query rows per KV head: codes read once, bound by memory.
void attend_decode(const Context& context, const AttendCall& call, const Geometry& geometry);
Geometry checked_geometry(const AttendCall& call);
/// The bytes that they take at most (attend_scratch).
size_t prefill_scratch(const AttendRoom& room, size_t workers);
size_t decode_scratch(const AttendRoom& room, size_t workers);

/// The oldest position that the query of `token` sees.
inline int64_t oldest_visible(const AttendCall& call, size_t token) {
  if (call.sliding_window == 0) return std::numeric_limits<int64_t>::min();
  return call.first_position + static_cast<int64_t>(token) - call.sliding_window + 1;
}

/// Where the chunk's own rows begin.
inline int64_t own_position(const AttendCall& call) {
  return call.first_position - static_cast<int64_t>(call.before);
}

/// How many of the chunk's own rows [first, first + n) come no later than the query of `token`.
inline size_t own_seen(const Geometry& geometry, size_t token, size_t first, size_t n) {
  const size_t seen = geometry.before + token + 1;
  return seen > first ? std::min(n, seen - first) : 0;
}

/// Attention mass of the chunk's own rows of a KV head.
inline float* own_mass(const AttendCall& call, size_t head) {
  const size_t stride = call.mass_stride > 0 ? call.mass_stride : call.before + call.tokens;
  return call.chunk_mass + head * stride;
}

/// How many rows at the start of a contiguous run are older than `oldest`.
inline size_t hidden_rows(int64_t first_position, size_t count, int64_t oldest) {
  if (oldest <= first_position) return 0;
  return static_cast<size_t>(
      std::min<int64_t>(oldest - first_position, static_cast<int64_t>(count)));
}

inline size_t hidden_rows(const Span& span, int64_t oldest) {
  return span.positions ? 0 : hidden_rows(span.first_position, span.count, oldest);
}

/// scores[i] <- -inf for rows first + i (numbered as Span::positions) older than `oldest`.
inline void hide_old(float* scores, const Span& span, size_t first, size_t n, int64_t oldest) {
  if (!span.positions) {
    const int64_t position = span.first_position + static_cast<int64_t>(first - span.first);
    std::fill_n(scores, hidden_rows(position, n, oldest), kMinusInf);
    return;
  }
  for (size_t i = 0; i < n; ++i)
    if (int64_t{span.positions[first + i]} < oldest) scores[i] = kMinusInf;
}

/// How many of the call's last tokens add to the mass of a KV head's rows.
inline size_t asked_tokens(const AttendCall& call, size_t head) {
  const size_t asked =
      call.head_mass_queries.empty() ? call.mass_queries : call.head_mass_queries[head];
  return std::min(asked, call.tokens);
}

/// bias[n] <- what is added to the scores of rows first + i. False if that is nothing.
inline bool make_bias(float* bias, const Span& span, size_t first, size_t n) {
  if (span.log_weight == 0 && !span.log_weights) return false;
  for (size_t i = 0; i < n; ++i)
    bias[i] = span.log_weight + (span.log_weights ? span.log_weights[first + i] : 0);
  return true;
}

/// Running maximum and sum of one query and its accumulated values, [width].
struct Running {
  float& max;
  float& sum;
  float* acc;
  size_t width;
};

/// Turns n scores into probabilities relative to the new running maximum. `sum` counts them unless
/// they are numerators only.
inline void fold(const Kernels& kernels, float* scores, size_t n, Role role, Running to) {
  const float largest = std::max(to.max, kernels.max(scores, n));
  if (largest == kMinusInf) {
    std::fill_n(scores, n, 0.0f);
    return;
  }
  if (to.max != largest && to.max != kMinusInf) {
    const float shrink = std::exp(to.max - largest);
    kernels.scale(to.acc, shrink, to.width);
    to.sum *= shrink;
  }
  to.max = largest;
  const float sum = kernels.exp_sum(scores, largest, n);
  if (role != Role::kNumerator) to.sum += sum;
}

/// Adds another partial result, which is consumed.
inline void merge(const Kernels& kernels, Running to, Running from) {
  if (from.max == kMinusInf) return;
  const float largest = std::max(to.max, from.max);
  const float shrink = to.max == kMinusInf ? 0 : std::exp(to.max - largest);
  const float shrink_from = std::exp(from.max - largest);
  if (shrink != 1) kernels.scale(to.acc, shrink, to.width);
  kernels.axpy(to.acc, from.acc, shrink_from, to.width);
  to.sum = to.sum * shrink + from.sum * shrink_from;
  to.max = largest;
}

/// Scores [queries, ld], of which n count, as the variant has them.
inline void transform(const Kernels& kernels, const AttentionVariant& variant, float* scores,
                      size_t ld, size_t queries, size_t n) {
  if (variant.soft_cap == 0) return;
  for (size_t m = 0; m < queries; ++m) kernels.soft_cap(scores + m * ld, variant.soft_cap, n);
}

/// Adds the variant's logit of a query head to a complete sum.
inline void add_sink(const Kernels& kernels, const AttentionVariant& variant, size_t query_head,
                     Running to) {
  if (!variant.sinks) return;
  const float logit = variant.sinks[query_head], largest = std::max(to.max, logit);
  if (largest == kMinusInf) return;
  const float shrink = to.max == kMinusInf ? 0 : std::exp(to.max - largest);
  kernels.scale(to.acc, shrink, to.width);
  to.sum = to.sum * shrink + std::exp(logit - largest);
  to.max = largest;
}

/// Writes one query's result and its log-sum. Nothing seen: zeros and -inf.
inline void write_result(const Kernels& kernels, float* out, float* log_sum, Running from) {
  const bool seen = from.sum > 0;
  std::copy_n(from.acc, from.width, out);
  kernels.scale(out, seen ? 1 / from.sum : 0, from.width);
  if (log_sum) *log_sum = seen ? from.max + std::log(from.sum) : kMinusInf;
  if (std::isnan(from.sum)) {  // what went in was not finite: say so
    std::fill_n(out, from.width, from.sum);
    if (log_sum) *log_sum = from.sum;
  }
}

}  // namespace pith
