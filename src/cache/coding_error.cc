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

class Coding {
 public:
  Coding(const Context& context, const CodedAnswer& answer, const CodingSample& sample,
         size_t groups)
      : context_(context), a_(answer), sample_(sample), groups_(groups) {}

  std::vector<CodingError> run();

 private:
  /// Errors of one span's rows: `lost` is the share of its weight that a row has too much.
  struct Sizes {
    double rows = 0;  ///< sampled; 0: nothing is known
    double lost = 0, lost_variance = 0, value_variance = 0;
    double doubt = 0;           ///< variance of `lost` in units of lost_variance
    std::vector<double> value;  // [D] mean
  };

  /// p of a sampled row as stored; 1 - (p it should have) / p.
  double weight(size_t query, size_t row) const {
    return std::exp(double{sample_.scores[query * sample_.rows.size() + row]} - a_.log_sum[query]);
  }
  double lost_share(size_t query, size_t row) const {
    return 1 - std::exp(-double{sample_.score_errors[query * sample_.rows.size() + row]});
  }
  Sizes sizes_of_errors(size_t span, size_t query, size_t without) const;
  void sum_span(std::span<Held> held, const Span& span) const;
  /// Adds what rows [n, D] weigh; `sign` -1 takes them out again.
  void add(Held& held, const float* scores, const float* rows, size_t n, size_t query,
           double sign) const;
  /// Entry `without` of an error.
  void add_squares(CodingError& error, std::span<const Held> rest, size_t query,
                   size_t without) const;

  const Context& context_;
  const CodedAnswer& a_;
  const CodingSample& sample_;
  size_t groups_;
  std::vector<double> sizes_;  // [group] |o|^2
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

// What the sample, without a group, says of the errors of a span's rows.
Coding::Sizes Coding::sizes_of_errors(size_t span, size_t query, size_t without) const {
  const size_t m = sample_.rows.size(), dim = a_.dim;
  const auto speaks = [&](const CodingSample::Row& row) {
    return row.group != without && row.group != CodingSample::kNotDrawn;
  };
  size_t own = 0;
  for (const auto& row : sample_.rows) own += speaks(row) && row.span == span;
  Sizes s;
  s.value.resize(dim);
  double weights = 0, lost = 0, lost_square = 0, value_square = 0;
  for (size_t i = 0; i < m; ++i) {
    const auto& row = sample_.rows[i];
    if (!speaks(row) || (own >= kLeastRows && row.span != span)) continue;
    const double p = weight(query, i), x = lost_share(query, i);
    s.rows += 1, weights += p, s.doubt += p * p, lost += p * x, lost_square += p * x * x;
    for (size_t c = 0; c < dim; ++c) {
      const double e = sample_.value_errors[i * dim + c];
      s.value[c] += e, value_square += e * e;
    }
  }
  if (s.rows < 2 || weights <= 0) return Sizes{};
  s.lost = lost / weights, s.doubt /= weights * weights;
  s.lost_variance = std::max(0.0, lost_square / weights - square_of(s.lost));
  double common = 0;
  for (double& x : s.value) x /= s.rows, common += x * x;
  s.value_variance = std::max(0.0, value_square / s.rows - common);
  return s;
}

// rest [spans]: the held rows that are not sampled.
void Coding::add_squares(CodingError& error, std::span<const Held> rest, size_t query,
                         size_t without) const {
  const size_t m = sample_.rows.size(), dim = a_.dim;
  const float* o = a_.answer + query * dim;
  std::vector<double> wrong(dim);  // what is known of the error, and the means of what is not
  double open = 0, doubt = 0;      // squares of the rest, and of what is unsure about the means
  double unit = 1;                 // the exact rows' weight, if that of the stored ones is 1
  for (size_t i = 0; i < m; ++i) {
    const double p = weight(query, i), lost = lost_share(query, i);
    unit -= p * lost;
    for (size_t c = 0; c < dim; ++c)
      wrong[c] += p * (lost * (double{sample_.values[i * dim + c]} - o[c]) +
                       (1 - lost) * sample_.value_errors[i * dim + c]);
  }
  for (size_t s = 0; s < rest.size(); ++s) {
    const Held& held = rest[s];
    if (held.values.empty()) continue;
    const Sizes sizes = sizes_of_errors(s, query, without);
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
  error.growth[without] = sizes_[query] - std::max(0.0, size - error.open);
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
  for (size_t j = 0; j < a_.group; ++j)
    for (size_t b = 0; b <= groups_; ++b)
      add_squares(errors[j], rest[j], j, b);  // with all groups last, whose open part stays
  return errors;
}

}  // namespace

bool is_coded(const Span& span) { return !is_dense(span.keys) || !is_dense(span.values); }

std::vector<CodingError> coding_error(const Context& context, const CodedAnswer& answer,
                                      const CodingSample& sample, size_t groups) {
  return Coding(context, answer, sample, groups).run();
}

}  // namespace pith
