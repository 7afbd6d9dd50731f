#include "cache/error_probe.h"

#include <algorithm>
#include <cmath>

namespace pith {
namespace {

constexpr uint32_t kDraw = 0xE000;      // no selector draws this of a row
constexpr double kFade = 1 - 1.0 / 32;  // of the sums, at each comparison
constexpr double kStudent = 2.131;      // 97.5% of Student's t with kGroups - 1 degrees of freedom

// Ends of a 95% interval beside the sample's: so much less and more than its expectation is the
// chance part of a squared coding error, and so much of all of it is lost by leaving out products
// of errors. By measurement: docs/error_probe.md.
constexpr double kLess = 0.5, kMore = 1.2, kProducts = 0.05;

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

void ErrorProbe::insert(Head& head, size_t slot, const Row& row, const float* k, const float* v) {
  const size_t dim = shape_.head_dim;
  if (slot == head.rows.size()) {
    head.rows.resize(slot + 1);
    head.k.resize((slot + 1) * dim);
    head.v.resize((slot + 1) * dim);
  }
  head.rows[slot] = row;
  context_.kernels.from_f32(head.k.data() + slot * dim, k, DType::kF16, dim);
  context_.kernels.from_f32(head.v.data() + slot * dim, v, DType::kF16, dim);
  if (head.rows.size() < kFirst + options_.rows) return;
  const auto less = [](const Row& a, const Row& b) { return a.word < b.word; };
  head.largest = static_cast<size_t>(
      std::max_element(head.rows.begin() + kFirst, head.rows.end(), less) - head.rows.begin());
}

void ErrorProbe::append(const float* k, const float* v, size_t tokens) {
  const size_t dim = shape_.head_dim, kv_heads = shape_.kv_heads;
  for (size_t g = 0; g < kv_heads; ++g) {
    Head& head = heads_[g];
    for (size_t t = 0; t < tokens; ++t) {
      const size_t position = tokens_ + t, at = (t * kv_heads + g) * dim;
      Row row{0, static_cast<uint32_t>(position), kGroups};
      size_t slot = head.rows.size();
      if (position >= kFirst) {
        const auto words = head.random.words(position, kDraw);
        row.word = (uint64_t{words[0]} << 32) | words[1], row.group = words[2] % kGroups;
        if (slot == kFirst + options_.rows) {
          if (row.word >= head.rows[head.largest].word) continue;
          slot = head.largest;
        }
      }
      insert(head, slot, row, k + at, v + at);
    }
  }
  tokens_ += tokens;
}

double ErrorProbe::drawn() const {
  return static_cast<double>(heads_[0].rows.size() - std::min(heads_[0].rows.size(), kFirst));
}

ErrorProbe::HeldSample ErrorProbe::held_sample(const Head& head, std::span<const Span> spans,
                                               const Rope* rope) const {
  const size_t dim = shape_.head_dim, m = head.rows.size();
  HeldSample held{std::vector<float>(m * dim), std::vector<float>(m * dim),
                  std::vector<int32_t>(m, -1)};
  std::vector<std::pair<int64_t, size_t>> wanted;  // position and row of the sample
  for (size_t i = 0; i < m; ++i) wanted.emplace_back(head.rows[i].position, i);
  std::sort(wanted.begin(), wanted.end());
  const auto from = [&](int64_t position) {
    return std::lower_bound(wanted.begin(), wanted.end(), std::pair{position, size_t{0}});
  };
  const auto take = [&](size_t s, size_t row, size_t i) {
    spans[s].keys->decode(held.k.data() + i * dim, row, 1);
    if (spans[s].keys_before_rope)
      rope->rotate(context_.kernels, held.k.data() + i * dim, head.rows[i].position);
    spans[s].values->decode(held.v.data() + i * dim, row, 1);
    held.span[i] = static_cast<int32_t>(s);
  };
  for (size_t s = 0; s < spans.size(); ++s) {
    const Span& span = spans[s];
    if (!span.positions) {
      const auto last = span.first_position + static_cast<int64_t>(span.count);
      for (auto it = from(span.first_position); it != wanted.end() && it->first < last; ++it)
        take(s, span.first + static_cast<size_t>(it->first - span.first_position), it->second);
      continue;
    }
    for (size_t row = span.first; row < span.first + span.count; ++row) {
      const auto it = from(span.positions[row]);
      if (it != wanted.end() && it->first == span.positions[row]) take(s, row, it->second);
    }
  }
  return held;
}

void ErrorProbe::Squares::fade() {
  for (double& x : error) x *= kFade;
  for (double& x : size) x *= kFade;
  coding *= kFade, open *= kFade;
}

/// What a step's comparison of every head starts from.
struct ErrorProbe::Comparison {
  std::vector<std::vector<Span>> spans;  // [G] what is held, every row with weight 1
  std::vector<float> known;              // [H, D] the answer over that
  std::vector<float> log_sum;            // [H]
};

void ErrorProbe::measure(const ProbedStep& step) {
  if (tokens_ < 2 * kGroups) return;  // nothing to tell apart
  const size_t dim = shape_.head_dim;
  Comparison c{{step.spans.begin(), step.spans.end()},
               std::vector<float>(shape_.query_heads * dim),
               std::vector<float>(shape_.query_heads)};
  for (auto& list : c.spans) {
    std::erase_if(list, [](const Span& s) { return s.role != Role::kBoth; });
    for (Span& s : list) s.log_weight = 0, s.log_weights = nullptr, s.mass = nullptr;
  }
  const std::vector<std::span<const Span>> spans(c.spans.begin(), c.spans.end());
  AttendCall call;
  call.shape = shape_, call.q = step.q, call.k = step.k, call.v = step.v, call.tokens = 1;
  call.first_position = static_cast<int64_t>(tokens_);
  call.spans = spans, call.rope = step.rope;
  call.out = c.known.data(), call.log_sum = c.log_sum.data();
  attend(context_, call);

  Squares squares = sums_;
  squares.fade();
  for (size_t g = 0; g < heads_.size(); ++g)
    if (!compare_head(g, step, c, squares)) return;
  sums_ = squares;
  ++measured_;
}

CodingSample ErrorProbe::coding_sample(const Head& head, std::span<const Span> spans,
                                       const HeldSample& held, const KeptRows& kept) const {
  const size_t dim = shape_.head_dim, m = head.rows.size();
  CodingSample sample;
  std::vector<size_t> coded;
  for (size_t i = 0; i < m; ++i) {
    if (held.span[i] < 0 || !is_coded(spans[static_cast<size_t>(held.span[i])])) continue;
    const uint32_t b = head.rows[i].group;
    sample.rows.push_back(
        {static_cast<uint32_t>(held.span[i]), b < kGroups ? b : CodingSample::kNotDrawn});
    coded.push_back(i);
    for (size_t x = 0; x < dim; ++x) {
      sample.values.push_back(held.v[i * dim + x]);
      sample.value_errors.push_back(held.v[i * dim + x] - kept.values[i * dim + x]);
    }
  }
  for (size_t j = 0; j < shape_.query_heads / shape_.kv_heads; ++j)
    for (size_t i : coded) {
      sample.scores.push_back(kept.stored[j * m + i]);
      sample.score_errors.push_back(kept.stored[j * m + i] - kept.own[j * m + i]);
    }
  return sample;
}

// Adds one KV head's comparison; false if the sample says nothing of the rows that are coded.
bool ErrorProbe::compare_head(size_t g, const ProbedStep& step, const Comparison& c,
                              Squares& squares) const {
  const Head& head = heads_[g];
  const size_t dim = shape_.head_dim, group = shape_.query_heads / shape_.kv_heads;
  const size_t m = head.rows.size();
  const float scale = shape_.scale != 0 ? shape_.scale : 1 / std::sqrt(static_cast<float>(dim));
  const float* q = step.q + g * group * dim;
  const HeldSample held = held_sample(head, c.spans[g], step.rope);
  std::vector<float> own(group * m), stored(group * m), exact(m * dim);  // scores, values
  const DenseRows kept{head.k.data(), DType::kF16, dim}, back{held.k.data(), DType::kF32, dim};
  context_.kernels.dot_rows(own.data(), m, q, group, kept, m, scale);
  context_.kernels.dot_rows(stored.data(), m, q, group, back, m, scale);
  context_.kernels.to_f32(exact.data(), head.v.data(), DType::kF16, m * dim);

  std::vector<QuerySums> sums(group);
  std::vector<double> log_sums(group), answer(dim);
  std::vector<float> answers(group * dim);
  for (size_t j = 0; j < group; ++j) {
    const float* known = c.known.data() + (g * group + j) * dim;
    QuerySums& s = sums[j];
    s.n.assign(known, known + dim), s.group_n.resize((kGroups + 1) * dim);
    for (size_t i = 0; i < m; ++i) {
      const size_t b = head.rows[i].group;
      if (b < kGroups) ++s.group_rows[b];
      if (held.span[i] >= 0) continue;
      const double weight = std::exp(double{own[j * m + i]} - c.log_sum[g * group + j]);
      (b < kGroups ? s.group_z[b] : s.z) += weight;
      double* n = b < kGroups ? s.group_n.data() + b * dim : s.n.data();
      for (size_t x = 0; x < dim; ++x) n[x] += weight * exact[i * dim + x];
    }
    for (size_t b = 0; b < kGroups; ++b) {
      s.group_z[kGroups] += s.group_z[b], s.group_rows[kGroups] += s.group_rows[b];
      for (size_t x = 0; x < dim; ++x) s.group_n[kGroups * dim + x] += s.group_n[b * dim + x];
    }
    log_sums[j] = c.log_sum[g * group + j] + std::log(answer_without(answer, s, kGroups));
    std::copy(answer.begin(), answer.end(), answers.begin() + static_cast<ptrdiff_t>(j * dim));
  }

  const CodingSample sample = coding_sample(head, c.spans[g], held, {own, stored, exact});
  const auto coding = coding_error(
      context_, {c.spans[g], q, answers.data(), log_sums.data(), group, dim, scale, step.rope},
      sample, kGroups);
  if (coding.empty()) return false;
  for (size_t j = 0; j < group; ++j) {
    compare(squares, sums[j], step.policy + (g * group + j) * dim);
    for (size_t b = 0; b <= kGroups; ++b) {
      squares.error[b] += coding[j].error[b];
      squares.size[b] -= coding[j].growth[b];
    }
    squares.coding += coding[j].error[kGroups], squares.open += coding[j].open;
  }
  return true;
}

double ErrorProbe::answer_without(std::vector<double>& answer, const QuerySums& sums,
                                  size_t b) const {
  const size_t dim = answer.size();
  const double out = b < kGroups ? 1 : 0;  // of group b
  const double rows = drawn() - out * static_cast<double>(sums.group_rows[b]);
  const double factor = open_to_draw() / rows;
  const double sum = sums.z + factor * (sums.group_z[kGroups] - out * sums.group_z[b]);
  for (size_t c = 0; c < dim; ++c) {
    const double gone = sums.group_n[kGroups * dim + c] - out * sums.group_n[b * dim + c];
    answer[c] = (sums.n[c] + factor * gone) / sum;
  }
  return sum;
}

// Adds one query's comparison. Sums are in the unit in which those over what is held are 1.
void ErrorProbe::compare(Squares& squares, const QuerySums& sums, const float* policy) const {
  const size_t dim = shape_.head_dim;
  const double n = open_to_draw(), m = drawn();
  constexpr double kB = kGroups;
  std::vector<double> answer(dim);
  const double sum = answer_without(answer, sums, kGroups);
  // Each group's part of the noise: its sum of (value - answer), about the mean row's.
  std::array<double, kGroups> noise{};
  double all_noise = 0;
  for (size_t b = 0; b < kGroups; ++b) {
    for (size_t c = 0; c < dim; ++c) {
      const double mean = (sums.group_n[kGroups * dim + c] - answer[c] * sums.group_z[kGroups]) / m;
      noise[b] += square(sums.group_n[b * dim + c] - answer[c] * sums.group_z[b] -
                         static_cast<double>(sums.group_rows[b]) * mean);
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
    squares.error[at] += error - variance;
    squares.size[at] += size - variance;
  };
  add(kGroups, std::max(0.0, 1 - m / n) * kB / (kB - 1) * all_noise);
  for (size_t b = 0; b < kGroups; ++b) {
    const double left = all_noise - noise[b] * kB / (kB - 1);
    const double share = (m - static_cast<double>(sums.group_rows[b])) / n;
    answer_without(answer, sums, b);
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
  const double share = drawn() / open_to_draw();
  const double sampling = kStudent * std::sqrt(std::max(0.0, 1 - share) * (kB - 1) / kB * spread);
  const double open = sums_.open / sums_.size[kGroups];
  const double products = kProducts * sums_.coding / sums_.size[kGroups];
  const auto root = [](double x) { return std::sqrt(std::max(0.0, x)); };
  const auto wide = [&](double part) {
    return std::sqrt(square(sampling) + square(part * open) + square(products));
  };
  result.estimate = root(ratio(kGroups));
  result.low = root(ratio(kGroups) - wide(kLess)), result.high = root(ratio(kGroups) + wide(kMore));
  return result;
}

}  // namespace pith
