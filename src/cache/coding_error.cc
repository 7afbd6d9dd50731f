#include "cache/coding_error.h"

#include <algorithm>
#include <cmath>

#include "compress/dense.h"

namespace pith {
namespace {

constexpr size_t kTile = 128;
constexpr size_t kLeastRows = 4;  // sampled rows of a span that speak for it alone

double square_of(double x) { return x * x; }

bool is_dense(const CodedRows* rows) {
  return dynamic_cast<const DenseRowsStore*>(rows) != nullptr;
}

/// Sums over coded rows of one span and one query.
struct Held {
  double p = 0, squares = 0;   // of p and p^2
  double spread = 0;           // of p^2 |v - o|^2
  std::vector<double> values;  // [D] of p v
};

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
  Coding(const Context& context, const CodedAnswer& answer, const CodingSample& sample,
         size_t groups)
      : context_(context), a_(answer), sample_(sample), groups_(groups) {}

  std::vector<CodingError> run();

 private:
  /// Sums by span, the last of all spans, and in these by group, the last of all groups.
  template <class T>
  using Table = std::vector<std::vector<T>>;  // [spans + 1, groups + 1]

  /// What does not depend on the group left out.
  struct Query {
    const float* o = nullptr;   // [D]
    std::vector<double> wrong;  // [D] the sampled rows' part of the error
    double unit = 1;            // the exact rows' weight, if that of the stored ones is 1
    Table<ScoreErrors> scores;
    std::vector<Held> rest;  // [spans] the held rows that are not sampled
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
    for (size_t span : {size_t{row.span}, a_.spans.size()})
      for (size_t group : {size_t{row.group}, groups_}) add(table[span][group]);
  }
  void sum_value_errors();
  Query query(size_t j) const;
  Sizes sizes_of_errors(const Query& query, size_t span, size_t without) const;
  void sum_span(std::span<Held> held, const Span& span) const;
  /// Adds what rows [n, D] weigh; `sign` -1 takes them out again.
  void add(Held& held, const float* scores, const float* rows, size_t n, size_t query,
           double sign) const;
  /// Entry `without` of an error.
  void add_squares(CodingError& error, const Query& query, size_t j, size_t without) const;

  const Context& context_;
  const CodedAnswer& a_;
  const CodingSample& sample_;
  size_t groups_;
  std::vector<double> sizes_;  // [group] |o|^2
  Table<ValueErrors> values_;
};

void Coding::add(Held& held, const float* scores, const float* rows, size_t n, size_t query,
                 double sign) const {
  const size_t dim = a_.dim;
  const float* o = a_.answer + query * dim;
  for (size_t i = 0; i < n; ++i) {
    const float* v = rows + i * dim;
    const double p = std::exp(double{scores[i]} - a_.log_sum[query]);
    const double far = double{context_.kernels.dot(v, v, dim)} -
                       2 * double{context_.kernels.dot(v, o, dim)} + sizes_[query];
    held.p += sign * p, held.squares += sign * p * p;
    held.spread += sign * p * p * std::max(0.0, far);
    for (size_t c = 0; c < dim; ++c) held.values[c] += sign * p * v[c];
  }
}

void Coding::sum_span(std::span<Held> held, const Span& span) const {
  std::vector<float> rows(kTile * a_.dim), scores(a_.group * kTile);
  RopeCursor cursor(*a_.rope);
  for (size_t t = 0; t < span.count; t += kTile) {
    const size_t first = span.first + t, n = std::min(kTile, span.count - t);
    span.keys->decode(rows.data(), first, n);
    if (span.keys_before_rope)
      cursor.rotate_rows(context_.kernels, rows.data(),
                         span.positions ? span.positions + first : nullptr,
                         span.first_position + static_cast<int64_t>(t), n);
    context_.kernels.dot_rows(scores.data(), kTile, a_.q, a_.group,
                              {rows.data(), DType::kF32, a_.dim}, n, a_.scale);
    span.values->decode(rows.data(), first, n);
    for (size_t j = 0; j < a_.group; ++j)
      add(held[j], scores.data() + j * kTile, rows.data(), n, j, 1);
  }
}

void Coding::sum_value_errors() {
  const size_t dim = a_.dim;
  values_.assign(a_.spans.size() + 1,
                 std::vector<ValueErrors>(groups_ + 1, {0, 0, std::vector<double>(dim)}));
  for (size_t i = 0; i < sample_.rows.size(); ++i)
    add_drawn(values_, i, [&](ValueErrors& sums) {
      ++sums.rows;
      for (size_t c = 0; c < dim; ++c) {
        const double e = sample_.value_errors[i * dim + c];
        sums.sum[c] += e, sums.square += e * e;
      }
    });
}

Coding::Query Coding::query(size_t j) const {
  const size_t m = sample_.rows.size(), dim = a_.dim;
  Query query;
  query.o = a_.answer + j * dim;
  query.wrong.resize(dim);
  query.scores.assign(a_.spans.size() + 1, std::vector<ScoreErrors>(groups_ + 1));
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

// What the sample, without a group, says of the errors of a span's rows; of all spans', where it
// has too few of this one's.
Coding::Sizes Coding::sizes_of_errors(const Query& query, size_t span, size_t without) const {
  const bool all = without == groups_;
  const auto left = [&](const auto& sums, auto field) {
    return sums[groups_].*field - (all ? 0 : sums[without].*field);
  };
  if (left(values_[span], &ValueErrors::rows) < kLeastRows) span = a_.spans.size();
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
    const Held& held = query.rest[s];
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

std::vector<CodingError> Coding::run() {
  const size_t m = sample_.rows.size(), dim = a_.dim;
  sizes_.assign(a_.group, 0);
  for (size_t j = 0; j < a_.group; ++j)
    sizes_[j] = context_.kernels.dot(a_.answer + j * dim, a_.answer + j * dim, dim);
  size_t all = 0;  // coded rows
  std::vector<std::vector<Held>> rest(a_.group, std::vector<Held>(a_.spans.size()));
  for (size_t s = 0; s < a_.spans.size(); ++s) {
    if (!is_coded(a_.spans[s]) || a_.spans[s].count == 0) continue;
    all += a_.spans[s].count;
    std::vector<Held> held(a_.group);
    for (Held& h : held) h.values.resize(dim);
    sum_span(held, a_.spans[s]);
    for (size_t j = 0; j < a_.group; ++j) {
      for (size_t i = 0; i < m; ++i)
        if (sample_.rows[i].span == s)
          add(held[j], sample_.scores.data() + j * m + i, sample_.values.data() + i * dim, 1, j,
              -1);
      rest[j][s] = std::move(held[j]);
    }
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

bool is_coded(const Span& span) { return !is_dense(span.keys) || !is_dense(span.values); }

std::vector<CodingError> coding_error(const Context& context, const CodedAnswer& answer,
                                      const CodingSample& sample, size_t groups) {
  return Coding(context, answer, sample, groups).run();
}

}  // namespace pith
