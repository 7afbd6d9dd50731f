#include "probe/coding_error.h"

#include <algorithm>
#include <cmath>

namespace pith {
namespace {

constexpr size_t kLeastRows = 4;  // sampled rows of a span that speak for it alone

double square_of(double x) { return x * x; }

/// Sums over drawn rows: of their value errors, and of one query's score errors. `lost` is the
/// share of its weight that a row has too much.
struct ValueErrors {
  size_t rows = 0;
  double square = 0;
  std::vector<double> sum;  // [D]
};
struct ScoreErrors {
  double weights = 0, weight_squares = 0, lost = 0, lost_squares = 0;
};

class Coding {
 public:
  Coding(const Kernels& kernels, const CodedSpans& coded, const HeadAnswers& answers,
         const CodingSample& sample)
      : kernels_(kernels), coded_(coded), spans_(coded.spans()), a_(answers), sample_(sample) {}

  std::vector<CodingError> run(size_t groups);

 private:
  /// Sums by span, the last of all spans, and in these by group, the last of all groups.
  template <class T>
  using Table = std::vector<std::vector<T>>;  // [spans + 1, groups + 1]

  /// Terms that do not depend on the group are left out.
  struct Query {
    const float* o = nullptr;   // [D]
    std::vector<double> wrong;  // [D] the sampled rows' part of the error
    double unit = 1;            // the exact rows' weight, if that of the stored ones is 1
    Table<ScoreErrors> scores;
    std::vector<CodedSums> rest;  // [spans] the coded rows that are not sampled
  };
  /// Errors of one span's rows.
  struct Sizes {
    double rows = 0;  ///< sampled; 0: nothing is known
    double lost = 0, lost_variance = 0, value_variance = 0;
    double doubt = 0;           ///< variance of `lost` in units of lost_variance
    std::vector<double> value;  // [D] mean
  };

  /// add(sums) for each entry of the table that the drawn row i is part of.
  template <class T, class F>
  void add_drawn(Table<T>& table, size_t i, const F& add) const {
    const CodingSample::Row& row = sample_.rows[i];
    if (row.group == CodingSample::kNotDrawn) return;
    for (size_t span : {size_t{row.span}, spans_})
      for (size_t group : {size_t{row.group}, groups_}) add(table[span][group]);
  }
  void sum_value_errors();
  Query query(size_t j) const;
  Sizes sizes_of_errors(const Query& query, size_t span, size_t without) const;
  /// A span's sums, for each query [group], without the sampled rows.
  std::vector<CodedSums> rest_of(size_t span) const;
  /// Entry `without` of an error.
  void add_squares(CodingError& error, const Query& query, size_t j, size_t without) const;

  const Kernels& kernels_;
  const CodedSpans& coded_;
  size_t spans_;
  const HeadAnswers& a_;
  const CodingSample& sample_;
  size_t groups_ = 0;
  std::vector<double> sizes_;  // [group] |o|^2
  Table<ValueErrors> values_;
};

void Coding::sum_value_errors() {
  const size_t dim = a_.dim;
  values_.assign(spans_ + 1,
                 std::vector<ValueErrors>(groups_ + 1, {0, 0, std::vector<double>(dim)}));
  for (size_t i = 0; i < sample_.rows.size(); ++i) {
    const CodingSample::Row& row = sample_.rows[i];
    if (row.group == CodingSample::kNotDrawn) continue;
    ValueErrors& sums = values_[row.span][row.group];
    const float* errors = sample_.value_errors.data() + i * dim;
    ++sums.rows;
    sums.square += double{kernels_.dot(errors, errors, dim)};
    for (size_t c = 0; c < dim; ++c) sums.sum[c] += double{errors[c]};
  }
  const auto add = [&](ValueErrors& to, const ValueErrors& from) {
    if (from.rows == 0) return;
    to.rows += from.rows, to.square += from.square;
    for (size_t c = 0; c < dim; ++c) to.sum[c] += from.sum[c];
  };
  for (size_t s = 0; s < spans_; ++s)
    for (size_t b = 0; b < groups_; ++b) {
      add(values_[s][groups_], values_[s][b]), add(values_[spans_][b], values_[s][b]);
      add(values_[spans_][groups_], values_[s][b]);
    }
}

Coding::Query Coding::query(size_t j) const {
  const size_t m = sample_.rows.size(), dim = a_.dim;
  Query query;
  query.o = a_.o + j * dim;
  query.wrong.resize(dim);
  query.scores.assign(spans_ + 1, std::vector<ScoreErrors>(groups_ + 1));
  for (size_t i = 0; i < m; ++i) {
    const double p = std::exp(double{sample_.scores[j * m + i]} - a_.log_sum[j]);
    const double lost = 1 - std::exp(-double{sample_.score_errors[j * m + i]});
    query.unit -= p * lost;
    for (size_t c = 0; c < dim; ++c)
      query.wrong[c] += p * (lost * (double{sample_.values[i * dim + c]} - query.o[c]) +
                             (1 - lost) * sample_.value_errors[i * dim + c]);
    add_drawn(query.scores, i, [&](ScoreErrors& sums) {
      sums.weights += p, sums.weight_squares += p * p;
      sums.lost += p * lost, sums.lost_squares += p * lost * lost;
    });
  }
  return query;
}

// The estimate of the sample, without a group, for the errors of a span's rows; of all spans',
// where it has too few of this one's.
Coding::Sizes Coding::sizes_of_errors(const Query& query, size_t span, size_t without) const {
  const bool all = without == groups_;
  const auto left = [&](const auto& sums, auto field) {
    return sums[groups_].*field - (all ? 0 : sums[without].*field);
  };
  if (left(values_[span], &ValueErrors::rows) < kLeastRows) span = spans_;
  const auto& values = values_[span];
  const auto& scores = query.scores[span];
  Sizes s;
  s.rows = static_cast<double>(left(values, &ValueErrors::rows));
  const double weights = left(scores, &ScoreErrors::weights);
  if (s.rows < 2 || weights <= 0) return Sizes{};
  s.doubt = left(scores, &ScoreErrors::weight_squares) / (weights * weights);
  s.lost = left(scores, &ScoreErrors::lost) / weights;
  s.lost_variance =
      std::max(0.0, left(scores, &ScoreErrors::lost_squares) / weights - square_of(s.lost));
  double common = 0;
  for (size_t c = 0; c < a_.dim; ++c) {
    s.value.push_back((values[groups_].sum[c] - (all ? 0 : values[without].sum[c])) / s.rows);
    common += square_of(s.value[c]);
  }
  s.value_variance = std::max(0.0, left(values, &ValueErrors::square) / s.rows - common);
  return s;
}

void Coding::add_squares(CodingError& error, const Query& query, size_t j, size_t without) const {
  const size_t dim = a_.dim;
  const float* o = query.o;
  std::vector<double> wrong = query.wrong;  // and the means of what is not known
  double open = 0, doubt = 0;  // squares of the rest, and of what is unsure about means
  double unit = query.unit;
  for (size_t s = 0; s < query.rest.size(); ++s) {
    const CodedSums& held = query.rest[s];
    if (held.values.empty()) continue;
    const Sizes sizes = sizes_of_errors(query, s, without);
    if (sizes.rows == 0) continue;
    unit -= held.p * sizes.lost;
    double pull = 0;
    for (size_t c = 0; c < dim; ++c) {
      const double along = held.values[c] - held.p * o[c];
      wrong[c] += sizes.lost * along + held.p * (1 - sizes.lost) * sizes.value[c];
      pull += along * along;
    }
    const double values = sizes.value_variance * square_of(1 - sizes.lost);
    open += std::max(0.0, held.spread) * sizes.lost_variance + std::max(0.0, held.squares) * values;
    doubt += pull * sizes.lost_variance * sizes.doubt + held.p * held.p * values / sizes.rows;
  }
  unit = std::max(unit, 1e-3);
  double known = 0, size = 0;
  for (size_t c = 0; c < dim; ++c) {
    known += square_of(wrong[c] / unit);
    size += square_of(o[c] - wrong[c] / unit);
  }
  error.open = open / square_of(unit);
  error.error[without] = std::max(0.0, known - doubt / square_of(unit)) + error.open;
  error.growth[without] = sizes_[j] - std::max(0.0, size - error.open);
}

std::vector<CodedSums> Coding::rest_of(size_t span) const {
  const size_t m = sample_.rows.size();
  std::vector<CodedSums> rest = coded_.sums(span, a_);
  for (size_t j = 0; j < a_.group; ++j)
    for (size_t i = 0; i < m; ++i) {
      if (sample_.rows[i].span != span) continue;
      const float* v = sample_.values.data() + i * a_.dim;
      const double p = std::exp(double{sample_.scores[j * m + i]} - a_.log_sum[j]);
      rest[j].add(p, v, a_.far(kernels_, v, j, sizes_[j]), -1);
    }
  return rest;
}

std::vector<CodingError> Coding::run(size_t groups) {
  const size_t m = sample_.rows.size();
  groups_ = groups;
  sizes_ = a_.sizes(kernels_);
  size_t all = 0;  // coded rows
  std::vector<std::vector<CodedSums>> rest(a_.group, std::vector<CodedSums>(spans_, CodedSums(0)));
  for (size_t s = 0; s < spans_; ++s) {
    if (coded_.rows(s) == 0) continue;
    all += coded_.rows(s);
    std::vector<CodedSums> of_span = rest_of(s);
    for (size_t j = 0; j < a_.group; ++j) rest[j][s] = std::move(of_span[j]);
  }
  std::vector<CodingError> errors(a_.group);
  for (CodingError& e : errors)
    e = {std::vector<double>(groups_ + 1), std::vector<double>(groups_ + 1)};
  if (all == 0) return errors;
  const auto drawn = [](const auto& row) { return row.group != CodingSample::kNotDrawn; };
  if (m < all && std::count_if(sample_.rows.begin(), sample_.rows.end(), drawn) < 2) return {};
  sum_value_errors();
  for (size_t j = 0; j < a_.group; ++j) {
    Query query = this->query(j);
    query.rest = std::move(rest[j]);
    for (size_t b = 0; b <= groups_; ++b)
      add_squares(errors[j], query, j, b);  // with all groups last, whose open part stays
  }
  return errors;
}

}  // namespace

std::vector<double> HeadAnswers::sizes(const Kernels& kernels) const {
  std::vector<double> sizes(group);
  for (size_t j = 0; j < group; ++j) sizes[j] = kernels.dot(o + j * dim, o + j * dim, dim);
  return sizes;
}

double HeadAnswers::far(const Kernels& kernels, const float* v, size_t query, double size) const {
  const double far =
      double{kernels.dot(v, v, dim)} - 2 * double{kernels.dot(v, o + query * dim, dim)} + size;
  return std::max(0.0, far);
}

void CodedSums::add(double weight, const float* v, double far, double sign) {
  p += sign * weight, squares += sign * weight * weight;
  spread += sign * weight * weight * far;
  for (size_t c = 0; c < values.size(); ++c) values[c] += sign * weight * v[c];
}

std::vector<CodingError> coding_error(const Kernels& kernels, const CodedSpans& coded,
                                      const HeadAnswers& answers, const CodingSample& sample,
                                      size_t groups) {
  return Coding(kernels, coded, answers, sample).run(groups);
}

}  // namespace pith
