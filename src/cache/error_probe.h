#pragma once
// The attention error of one layer while it runs, from a sample of exact rows kept aside.
//
// For each KV head the first four rows are kept exactly, as heads often attend to them above all,
// and m of the n others: those of the m smallest random words, so a uniform sample without
// replacement that does not depend on what the policy keeps. At a probed decode step the sums over
// all rows, sum e^s (v, 1), are estimated: those over what the cache holds, each row with weight 1,
// are known; the first rows that are gone are added, and n/m times the sample's that are gone. So
// rows that the cache holds add no noise. What coding did to those is coding_error.h's; both
// errors' squares are added.
//
// The estimate o of the exact answer is noisy, so that |policy - o|^2 is too large by o's variance
// V. V is taken from 16 random groups of the sample, and subtracted. Leaving out one group at a
// time gives the standard error of the final ratio over all heads and steps: the same rows serve
// all steps, so errors of different steps are not independent, but groups are.
//
// Cost: a random word a row; at a probed step one more attention over what is held (two if it is
// coded), and m rows a head. Memory: m + 4 rows of 16-bit numbers and 16 bytes a head.

#include <array>
#include <span>
#include <vector>

#include "attend/attend.h"
#include "cache/coding_error.h"
#include "core/memory.h"
#include "core/philox.h"
#include "pith/attention_error.h"

namespace pith {

/// What a probed step knows.
struct ProbedStep {
  AttentionShape shape;
  const float* q = nullptr;                  // [H, D], as the model made it
  const float* k = nullptr;                  // [G, D], the step's own row
  const float* v = nullptr;                  // [G, D]
  const float* policy = nullptr;             // [H, D], the policy's answer
  std::span<const std::vector<Span>> spans;  ///< [G] what the cache holds
  const Rope* rope = nullptr;
};

class ErrorProbe {
 public:
  static constexpr size_t kGroups = 16, kFirst = 4;

  ErrorProbe(const Context& context, const AttentionShape& shape, int layer, uint64_t seed,
             const ErrorProbeOptions& options);

  /// New rows of all KV heads, k and v [T, G, D].
  void append(const float* k, const float* v, size_t tokens);
  /// Counts a decode step; true if it is one to measure.
  bool due() { return steps_++ % options_.every == 0; }
  void measure(const ProbedStep& step);
  AttentionError result() const;

 private:
  struct Row {
    uint64_t word;
    uint32_t position;
    uint32_t group;  ///< kGroups: one of the first
  };
  struct Head {
    Head(const Context& context, uint64_t seed, uint32_t layer, uint32_t head);
    Philox random;
    Array<Row> rows;       // [<= kFirst + m], the first ones first
    Array<uint16_t> k, v;  // [<= kFirst + m, D] f16
    size_t largest = 0;    // the drawn row of the largest word, once there are m
  };
  /// One query's sums: over what is held and the first rows, as it is; and over the sample that is
  /// gone, by group, the last of all groups. Weights are relative to e^shift, values times weights.
  struct QuerySums {
    double z = 1;
    std::vector<double> n;  // [D]
    std::array<double, kGroups + 1> group_z{};
    std::array<size_t, kGroups + 1> group_rows{};
    std::vector<double> group_n;  // [kGroups + 1, D]
  };
  /// Squared error and squared size of the exact answer: of all groups, and without each.
  struct Squares {
    std::array<double, kGroups + 1> error{}, size{};
    double coding = 0, open = 0;  ///< of the last error: coding's part, and what of it is chance
    void fade();
  };
  /// The kept rows of a head as the cache holds them.
  struct HeldSample {
    std::vector<float> k, v;    // [m, D]
    std::vector<int32_t> span;  // [m] number of the span, or -1: gone
  };
  /// Scores and values of a head's kept rows.
  struct KeptRows {
    std::span<const float> own, stored;  // [group, m] scores: exact, and as the cache holds them
    std::span<const float> values;       // [m, D]
  };
  struct Comparison;

  void insert(Head& head, size_t slot, const Row& row, const float* k, const float* v);
  HeldSample held_sample(const Head& head, std::span<const Span> spans, const Rope* rope) const;
  CodingSample coding_sample(const Head& head, std::span<const Span> spans, const HeldSample& held,
                             const KeptRows& kept) const;
  bool compare_head(size_t g, const ProbedStep& step, const Comparison& comparison,
                    Squares& squares) const;
  /// o without group `b` (kGroups: with all), [D]; returns its sum of weights.
  double answer_without(std::vector<double>& answer, const QuerySums& sums, size_t b) const;
  void compare(Squares& squares, const QuerySums& sums, const float* policy) const;
  double drawn() const;  ///< rows in the sample
  double open_to_draw() const { return static_cast<double>(tokens_) - kFirst; }

  Context context_;
  AttentionShape shape_;
  int layer_;
  ErrorProbeOptions options_;
  std::vector<Head> heads_;  // [G]
  size_t tokens_ = 0, steps_ = 0, measured_ = 0;
  Squares sums_;  ///< fading: a comparison counts half after about 22 others
};

}  // namespace pith
