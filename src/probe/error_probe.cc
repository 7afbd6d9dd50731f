#include "probe/error_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pith/error.h"

namespace pith {
namespace {

constexpr double kFade = 1 - 1.0 / 32;  // of the sums, at each comparison
constexpr double kStudent = 2.131;      // 97.5% of Student's t with kGroups - 1 degrees of freedom

// Ends of a 95% interval beside the sample's: so much less and more than its expectation is the
// chance part of a squared coding error, and so much of all of it is lost by leaving out products
// of errors. By measurement: docs/error_probe.md.
constexpr double kLess = 0.5, kMore = 1.2, kProducts = 0.05;

// Four rows per group.
constexpr size_t kLeastRows = 4 * ErrorProbe::kGroups, kMostRows = size_t{1} << 24;

double square(double x) { return x * x; }

}  // namespace

void check_error_probe(const ErrorProbeOptions& options) {
  if (options.rows >= kLeastRows && options.rows <= kMostRows && options.every > 0 &&
      options.max_error >= 0)
    return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("error probe: {} rows every {} steps, limit {}; use {} to {} rows, a "
                          "step of 1 or more and a limit of 0 (none) or more",
                          options.rows, options.every, options.max_error, kLeastRows, kMostRows));
}

void refuse_variant() {
  throw Error(ErrorCode::kUnsupported,
              "error probe: attention with soft-capped scores or sink logits; the probe compares "
              "with plain softmax(scale q.k) v: leave it out");
}

void refuse_cache_positions() {
  throw Error(ErrorCode::kUnsupported,
              "error probe: a policy with positions inside the cache (rope=cache) is not an "
              "approximation of exact attention; use rope=true or leave the probe out");
}

ErrorProbe::ErrorProbe(MemoryCounter& memory, const ErrorProbeSite& site, size_t every)
    : layer_(site.sample.layer),
      group_(site.group),
      dim_(site.dim),
      every_(every),
      sample_(memory, site.sample) {}

void ErrorProbe::Squares::fade() {
  for (double& x : error) x *= kFade;
  for (double& x : size) x *= kFade;
  coding *= kFade, open *= kFade;
}

void ErrorProbe::Squares::add(const Squares& other) {
  for (size_t b = 0; b <= kGroups; ++b) error[b] += other.error[b], size[b] += other.size[b];
  coding += other.coding, open += other.open;
}

void ErrorProbe::Squares::archive(Archive& a) {
  for (double& x : error) a.number(x);
  for (double& x : size) a.number(x);
  a.number(coding);
  a.number(open);
}

void ErrorProbe::archive(Archive& a, size_t tokens) {
  a.number(steps_, tokens, "more steps than tokens");
  a.number(measured_, tokens, "more steps than tokens");
  sums_.archive(a);
  sample_.archive(a, tokens);
}

void ErrorProbe::add(std::span<const std::optional<Squares>> heads) {
  Squares squares = sums_;
  squares.fade();
  for (const auto& head : heads) {
    if (!head) return;
    squares.add(*head);
  }
  sums_ = squares;
  ++measured_;
}

CodingSample ErrorProbe::coding_sample(const Sampled& of, const ProbedHead& head) const {
  const auto rows = of.rows;
  const size_t m = rows.size();
  CodingSample sample;
  std::vector<size_t> coded;
  for (size_t i = 0; i < m; ++i) {
    if (head.span[i] < 0) continue;
    const uint32_t b = rows[i].group;
    sample.rows.push_back(
        {static_cast<uint32_t>(head.span[i]), b < kGroups ? b : CodingSample::kNotDrawn});
    coded.push_back(i);
  }
  sample.values.reserve(coded.size() * dim_), sample.value_errors.reserve(coded.size() * dim_);
  for (const size_t i : coded) {
    for (size_t x = 0; x < dim_; ++x) {
      sample.values.push_back(head.back[i * dim_ + x]);
      sample.value_errors.push_back(head.back[i * dim_ + x] - head.values[i * dim_ + x]);
    }
  }
  for (size_t j = 0; j < group_; ++j)
    for (size_t i : coded) {
      sample.scores.push_back(head.stored[j * m + i]);
      sample.score_errors.push_back(head.stored[j * m + i] - head.own[j * m + i]);
    }
  return sample;
}

ErrorProbe::QuerySums ErrorProbe::query_sums(const Sampled& sample, const ProbedHead& head,
                                             size_t j) const {
  const auto rows = sample.rows;
  const size_t m = rows.size();
  const float* known = head.known.data() + j * dim_;
  QuerySums s;
  s.n.assign(known, known + dim_), s.group_n.resize((kGroups + 1) * dim_);
  for (size_t i = 0; i < m; ++i) {
    const size_t b = rows[i].group;
    if (b < kGroups) ++s.group_rows[b];
    if (head.span[i] != ProbedHead::kGone) continue;
    const double weight = std::exp(double{head.own[j * m + i]} - head.log_sum[j]);
    (b < kGroups ? s.group_z[b] : s.z) += weight;
    double* n = b < kGroups ? s.group_n.data() + b * dim_ : s.n.data();
    for (size_t x = 0; x < dim_; ++x) n[x] += weight * head.values[i * dim_ + x];
  }
  for (size_t b = 0; b < kGroups; ++b) {
    s.group_z[kGroups] += s.group_z[b], s.group_rows[kGroups] += s.group_rows[b];
    for (size_t x = 0; x < dim_; ++x) s.group_n[kGroups * dim_ + x] += s.group_n[b * dim_ + x];
  }
  return s;
}

std::optional<ErrorProbe::Squares> ErrorProbe::compare_head(const Kernels& kernels,
                                                            const Sampled& sample,
                                                            const ProbedHead& head,
                                                            const CodedSpans& coded) const {
  std::vector<QuerySums> sums;
  std::vector<double> log_sums(group_), answer(dim_);
  std::vector<float> answers(group_ * dim_);
  for (size_t j = 0; j < group_; ++j) {
    sums.push_back(query_sums(sample, head, j));
    log_sums[j] = head.log_sum[j] + std::log(answer_without(answer, sample, sums[j], kGroups));
    std::copy(answer.begin(), answer.end(), answers.begin() + static_cast<ptrdiff_t>(j * dim_));
  }
  const auto coding = coding_error(kernels, coded, {answers.data(), log_sums.data(), group_, dim_},
                                   coding_sample(sample, head), kGroups);
  if (coding.empty()) return std::nullopt;
  Squares squares;
  for (size_t j = 0; j < group_; ++j) {
    compare(squares, sample, sums[j], head.policy.data() + j * dim_);
    for (size_t b = 0; b <= kGroups; ++b) {
      squares.error[b] += coding[j].error[b];
      squares.size[b] -= coding[j].growth[b];
    }
    squares.coding += coding[j].error[kGroups], squares.open += coding[j].open;
  }
  return squares;
}

double ErrorProbe::answer_without(std::vector<double>& answer, const Sampled& sample,
                                  const QuerySums& sums, size_t b) {
  const size_t dim = answer.size();
  const double out = b < kGroups ? 1 : 0;  // of group b
  const double rows = sample.drawn - out * static_cast<double>(sums.group_rows[b]);
  const double factor = sample.open_to_draw / rows;
  const double sum = sums.z + factor * (sums.group_z[kGroups] - out * sums.group_z[b]);
  for (size_t c = 0; c < dim; ++c) {
    const double gone = sums.group_n[kGroups * dim + c] - out * sums.group_n[b * dim + c];
    answer[c] = (sums.n[c] + factor * gone) / sum;
  }
  return sum;
}

// Adds one query's comparison. Sums are in the unit in which those over what is held are 1.
void ErrorProbe::compare(Squares& squares, const Sampled& sample, const QuerySums& sums,
                         const float* policy) const {
  const size_t dim = dim_;
  const double n = sample.open_to_draw, m = sample.drawn;
  constexpr double kB = kGroups;
  std::vector<double> answer(dim);
  const double sum = answer_without(answer, sample, sums, kGroups);
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
    answer_without(answer, sample, sums, b);
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
  const double share = sample_.drawn() / sample_.open_to_draw();
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
