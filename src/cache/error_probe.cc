#include "cache/error_probe.h"

#include <algorithm>
#include <cmath>

namespace pith {
namespace {

constexpr uint32_t kDraw = 0xE000;      // no selector draws this of a row
constexpr double kFade = 1 - 1.0 / 32;  // of the sums, at each comparison
constexpr double kStudent = 2.131;      // 97.5% of Student's t with kGroups - 1 degrees of freedom

double square(double x) { return x * x; }

}  // namespace

ErrorProbe::Head::Head(const Context& context, uint64_t seed, uint32_t layer, uint32_t head)
    : random(seed, layer, head),
      rows(context.memory, MemoryKind::kProbe),
      k(context.memory, MemoryKind::kProbe),
      v(context.memory, MemoryKind::kProbe) {}

ErrorProbe::ErrorProbe(const Context& context, const AttentionShape& shape, int layer,
                       uint64_t seed, const ErrorProbeOptions& options)
    : context_(context), shape_(shape), layer_(layer), options_(options) {
  for (size_t g = 0; g < shape.kv_heads; ++g)
    heads_.emplace_back(context, seed, static_cast<uint32_t>(layer), static_cast<uint32_t>(g));
}

void ErrorProbe::insert(Head& head, uint64_t word, uint32_t group, uint32_t position,
                        const float* k, const float* v) {
  const size_t dim = shape_.head_dim;
  size_t slot = head.rows.size();
  if (slot == options_.rows) {
    slot = head.largest;
  } else {
    head.rows.resize(slot + 1);
    head.k.resize((slot + 1) * dim);
    head.v.resize((slot + 1) * dim);
  }
  head.rows[slot] = {word, position, group};
  context_.kernels.from_f32(head.k.data() + slot * dim, k, DType::kF16, dim);
  context_.kernels.from_f32(head.v.data() + slot * dim, v, DType::kF16, dim);
  if (head.rows.size() < options_.rows) return;
  const auto less = [](const Row& a, const Row& b) { return a.word < b.word; };
  head.largest = static_cast<size_t>(std::max_element(head.rows.begin(), head.rows.end(), less) -
                                     head.rows.begin());
}

void ErrorProbe::append(const float* k, const float* v, size_t tokens) {
  const size_t dim = shape_.head_dim, kv_heads = shape_.kv_heads;
  for (size_t g = 0; g < kv_heads; ++g) {
    Head& head = heads_[g];
    for (size_t t = 0; t < tokens; ++t) {
      const auto words = head.random.words(tokens_ + t, kDraw);
      const uint64_t word = (uint64_t{words[0]} << 32) | words[1];
      if (head.rows.size() == options_.rows && word >= head.rows[head.largest].word) continue;
      const size_t at = (t * kv_heads + g) * dim;
      insert(head, word, words[2] % kGroups, static_cast<uint32_t>(tokens_ + t), k + at, v + at);
    }
  }
  tokens_ += tokens;
}

// The sampled rows that the cache holds, as it gives them back: keys and values [m, D], held [m].
// Keys are stored after RoPE: codecs that want them before are refused.
void ErrorProbe::held_sample(const Head& head, const ProbedStep& step, size_t g,
                             std::vector<float>& keys, std::vector<float>& values,
                             std::vector<uint8_t>& held) const {
  const size_t dim = shape_.head_dim, m = head.rows.size();
  std::vector<std::pair<int64_t, size_t>> wanted;  // position and row of the sample
  for (size_t i = 0; i < m; ++i) wanted.emplace_back(head.rows[i].position, i);
  std::sort(wanted.begin(), wanted.end());
  const auto take = [&](const Span& span, size_t row, size_t i) {
    span.keys->decode(keys.data() + i * dim, row, 1);
    span.values->decode(values.data() + i * dim, row, 1);
    held[i] = 1;
  };
  for (const Span& span : step.spans[g]) {
    if (span.role != Role::kBoth) continue;
    if (!span.positions) {
      const auto last = span.first_position + static_cast<int64_t>(span.count);
      for (auto it = std::lower_bound(wanted.begin(), wanted.end(),
                                      std::pair{span.first_position, size_t{0}});
           it != wanted.end() && it->first < last; ++it)
        take(span, span.first + static_cast<size_t>(it->first - span.first_position), it->second);
      continue;
    }
    for (size_t row = span.first; row < span.first + span.count; ++row) {
      const int64_t position = span.positions[row];
      const auto it =
          std::lower_bound(wanted.begin(), wanted.end(), std::pair{position, size_t{0}});
      if (it != wanted.end() && it->first == position) take(span, row, it->second);
    }
  }
}

void ErrorProbe::measure(const ProbedStep& step) {
  if (tokens_ < 2 * kGroups) return;  // nothing to tell apart
  const size_t dim = shape_.head_dim, group = shape_.query_heads / shape_.kv_heads;
  // What is held, every row with weight 1.
  std::vector<std::vector<Span>> plain(step.spans.begin(), step.spans.end());
  for (auto& list : plain) {
    std::erase_if(list, [](const Span& s) { return s.role != Role::kBoth; });
    for (Span& s : list) s.log_weight = 0, s.log_weights = nullptr, s.mass = nullptr;
  }
  const std::vector<std::span<const Span>> spans(plain.begin(), plain.end());
  std::vector<float> known(shape_.query_heads * dim), log_sum(shape_.query_heads);
  AttendCall call;
  call.shape = shape_, call.q = step.q, call.k = step.k, call.v = step.v, call.tokens = 1;
  call.first_position = static_cast<int64_t>(tokens_);
  call.spans = spans, call.rope = step.rope, call.out = known.data(), call.log_sum = log_sum.data();
  attend(context_, call);

  for (double& x : sums_.error) x *= kFade;
  for (double& x : sums_.size) x *= kFade;
  const float scale = shape_.scale != 0 ? shape_.scale : 1 / std::sqrt(static_cast<float>(dim));
  for (size_t g = 0; g < heads_.size(); ++g) {
    const Head& head = heads_[g];
    const size_t m = head.rows.size();
    std::vector<float> keys(m * dim), values(m * dim), exact(m * dim);
    std::vector<float> own(group * m), stored(group * m);  // scores
    std::vector<uint8_t> held(m);
    held_sample(head, step, g, keys, values, held);
    const float* q = step.q + g * group * dim;
    context_.kernels.dot_rows(own.data(), m, q, group, {head.k.data(), DType::kF16, dim}, m, scale);
    context_.kernels.dot_rows(stored.data(), m, q, group, {keys.data(), DType::kF32, dim}, m,
                              scale);
    context_.kernels.to_f32(exact.data(), head.v.data(), DType::kF16, m * dim);
    for (size_t j = 0; j < group; ++j) {
      const size_t h = g * group + j;
      GroupSums sums;
      sums.n.resize(kGroups * dim);
      for (size_t i = 0; i < m; ++i) {
        const size_t b = head.rows[i].group;
        const double mine = std::exp(double{own[j * m + i]} - log_sum[h]);
        const double theirs = held[i] ? std::exp(double{stored[j * m + i]} - log_sum[h]) : 0;
        ++sums.rows[b];
        sums.z[b] += mine - theirs;
        for (size_t c = 0; c < dim; ++c)
          sums.n[b * dim + c] += mine * exact[i * dim + c] - theirs * values[i * dim + c];
      }
      compare(sums, known.data() + h * dim, step.policy + h * dim, m);
    }
  }
  ++measured_;
}

// Adds one query head's comparison. `known`: the answer over what is held with weight 1, whose sum
// is 1 in the unit of `sums`.
void ErrorProbe::compare(const GroupSums& sums, const float* known, const float* policy,
                         size_t rows) {
  const size_t dim = shape_.head_dim;
  const auto n = static_cast<double>(tokens_), m = static_cast<double>(rows);
  constexpr double kB = kGroups;
  double z = 0;
  std::vector<double> total(dim);
  for (size_t b = 0; b < kGroups; ++b) {
    z += sums.z[b];
    for (size_t c = 0; c < dim; ++c) total[c] += sums.n[b * dim + c];
  }
  // The answer with group `b` left out; b = kGroups: with all of them.
  std::vector<double> answer(dim);
  const auto answer_without = [&](size_t b) {
    const bool all = b == kGroups;
    const double factor = n / (m - (all ? 0 : static_cast<double>(sums.rows[b])));
    const double sum = 1 + factor * (z - (all ? 0 : sums.z[b]));
    for (size_t c = 0; c < dim; ++c)
      answer[c] = (known[c] + factor * (total[c] - (all ? 0 : sums.n[b * dim + c]))) / sum;
    return sum;
  };
  const double sum = answer_without(kGroups);
  // Each group's part of the noise: its sum of (value - answer), about the mean row's.
  std::array<double, kGroups> noise{};
  double all_noise = 0;
  for (size_t b = 0; b < kGroups; ++b) {
    for (size_t c = 0; c < dim; ++c) {
      const double mean = (total[c] - answer[c] * z) / m;
      noise[b] += square(sums.n[b * dim + c] - answer[c] * sums.z[b] -
                         static_cast<double>(sums.rows[b]) * mean);
    }
    noise[b] *= square(n / m / sum);
    all_noise += noise[b];
  }
  const auto add = [&](size_t at, double variance) {
    double error = 0, size = 0;
    for (size_t c = 0; c < dim; ++c) {
      error += square(policy[c] - answer[c]);
      size += square(answer[c]);
    }
    sums_.error[at] += error - variance;
    sums_.size[at] += size - variance;
  };
  add(kGroups, std::max(0.0, 1 - m / n) * kB / (kB - 1) * all_noise);
  for (size_t b = 0; b < kGroups; ++b) {
    const double left = all_noise - noise[b] * kB / (kB - 1);
    const double share = (m - static_cast<double>(sums.rows[b])) / n;
    answer_without(b);
    add(b, std::max(0.0, 1 - share) * kB * kB / ((kB - 1) * (kB - 2)) * left);
  }
}

AttentionError ErrorProbe::result() const {
  AttentionError result;
  result.layer = layer_, result.steps = measured_;
  if (measured_ == 0 || sums_.size[kGroups] <= 0) return result;
  const auto ratio = [&](size_t at) {
    return sums_.size[at] > 0 ? sums_.error[at] / sums_.size[at] : 0;
  };
  constexpr double kB = kGroups;
  double mean = 0, spread = 0;
  for (size_t b = 0; b < kGroups; ++b) mean += ratio(b) / kB;
  for (size_t b = 0; b < kGroups; ++b) spread += square(ratio(b) - mean);
  const double share = static_cast<double>(heads_[0].rows.size()) / static_cast<double>(tokens_);
  const double error = kStudent * std::sqrt(std::max(0.0, 1 - share) * (kB - 1) / kB * spread);
  const auto root = [](double x) { return std::sqrt(std::max(0.0, x)); };
  result.estimate = root(ratio(kGroups));
  result.low = root(ratio(kGroups) - error), result.high = root(ratio(kGroups) + error);
  return result;
}

}  // namespace pith
