#pragma once
// The error that coded rows bring into an answer, from a sample of the rows as they were.
//
// The answer is o = sum p_i v_i over all rows. If coding made row i's score too large by d_i and
// its value by e_i, o is too large by the sum of p_i (x_i (v_i - o) + (1 - x_i) e_i), x_i = 1 -
// e^-d_i, divided by the sum of p_i (1 - x_i). For sampled rows that is known. Errors of the others
// are taken as independent from row to row, since they come from rounding different numbers: means
// are the sample's of their span, and the squares of what is left add up, sum p_i^2 (X |v_i - o|^2
// + E) with the sample's variances X and E. So only the sizes of errors are sampled; who weighs how
// much is summed over all rows. X is weighted with p: rows that weigh more are often larger, and
// coded less exactly.
//
// Cost: every coded row is decoded once, for all queries of the group.

#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace pith {

/// Answers of one KV head's queries.
struct HeadAnswers {
  const float* o = nullptr;         // [group, D]
  const double* log_sum = nullptr;  // [group] of the softmax
  size_t group = 0, dim = 0;

  /// [group] |o|^2, and |v - o|^2 of a row's value v [D] where |o|^2 = size.
  std::vector<double> sizes(const Kernels& kernels) const;
  double far(const Kernels& kernels, const float* v, size_t query, double size) const;
};

/// Sums over coded rows in one query's softmax.
struct CodedSums {
  double p = 0, squares = 0;   // of p and p^2
  double spread = 0;           // of p^2 |v - o|^2
  std::vector<double> values;  // [D] of p v

  explicit CodedSums(size_t dim) : values(dim) {}
  /// Adds a row of value v [D], |v - o|^2 = far; `sign` -1 takes it out again.
  void add(double weight, const float* v, double far, double sign = 1);
};

/// The coded rows of one KV head, as the cache gives them back.
class CodedSpans {
 public:
  virtual ~CodedSpans() = default;
  /// Spans, and the coded rows of each: 0 where rows are dense numbers, whose rounding is not
  /// counted as an error.
  virtual size_t spans() const = 0;
  virtual size_t rows(size_t span) const = 0;
  /// Over a span's rows, for each query [group].
  virtual std::vector<CodedSums> sums(size_t span, const HeadAnswers& answers) const = 0;
};

/// Sampled rows of one KV head that lie in coded spans.
struct CodingSample {
  /// The group of rows that were not drawn: they are known, and speak for no others.
  static constexpr uint32_t kNotDrawn = UINT32_MAX;
  struct Row {
    uint32_t span;   ///< number in CodedSpans
    uint32_t group;  ///< that it is left out with
  };
  std::vector<Row> rows;            // [m]
  std::vector<float> scores;        // [group, m] as stored
  std::vector<float> score_errors;  // [group, m] stored - exact
  std::vector<float> values;        // [m, D] as stored
  std::vector<float> value_errors;  // [m, D] stored - exact
};

/// Expected squares of one query's answer; [groups + 1] without the sample's group, last: with all.
struct CodingError {
  std::vector<double> error;   ///< its coding error's
  std::vector<double> growth;  ///< |o|^2 less what it would be without coding errors
  double open = 0;             ///< the part of the last error that is chance: of rows not sampled
};

/// For each query [group]; empty if there are coded rows and none, or only one, is sampled.
std::vector<CodingError> coding_error(const Kernels& kernels, const CodedSpans& coded,
                                      const HeadAnswers& answers, const CodingSample& sample,
                                      size_t groups);

}  // namespace pith
