#pragma once
// The attention error of one layer while it runs, from a sample of exact rows kept aside.
//
// For each KV head m of the n rows seen so far are kept exactly: those of the m smallest random
// words, so a uniform sample without replacement that does not depend on what the policy keeps. At
// a probed decode step the exact sums over all rows, sum e^s (v, 1), are estimated by a difference
// estimator (Cochran, Sampling Techniques, 7.8): the sums over what the cache holds, each row with
// weight 1, are known; n/m times the sample's sums of (exact row - the row as the cache holds it,
// or nothing) is added. So rows that the cache holds add no noise.
//
// The estimate o of the exact answer is noisy, so that |policy - o|^2 is too large by o's variance
// V. V is taken from 16 random groups of the sample, and subtracted. Leaving out one group at a
// time gives the standard error of the final ratio over all heads and steps: the same rows serve
// all steps, so errors of different steps are not independent, but groups are.
//
// Cost: a random word a row; at a probed step one more attention over what is held, and m rows a
// head. Memory: m rows of 16-bit numbers and 16 bytes a head.

#include <array>
#include <span>
#include <vector>

#include "attend/attend.h"
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
  static constexpr size_t kGroups = 16;

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
    uint32_t group;
  };
  struct Head {
    Head(const Context& context, uint64_t seed, uint32_t layer, uint32_t head);
    Philox random;
    Array<Row> rows;       // [<= m]
    Array<uint16_t> k, v;  // [<= m, D] f16
    size_t largest = 0;    // the row of the largest word, once there are m
  };
  /// Sums over the sample of one query, by group: weights Z and values N, relative to e^shift.
  struct GroupSums {
    std::array<double, kGroups> z{};
    std::array<size_t, kGroups> rows{};
    std::vector<double> n;  // [kGroups, D]
  };
  /// Squared error and squared size of the exact answer: of all groups, and without each.
  struct Squares {
    std::array<double, kGroups + 1> error{}, size{};
  };

  void insert(Head& head, uint64_t word, uint32_t group, uint32_t position, const float* k,
              const float* v);
  void held_sample(const Head& head, const ProbedStep& step, size_t g, std::vector<float>& keys,
                   std::vector<float>& values, std::vector<uint8_t>& held) const;
  void compare(const GroupSums& sums, const float* known, const float* policy, size_t rows);

  Context context_;
  AttentionShape shape_;
  int layer_;
  ErrorProbeOptions options_;
  std::vector<Head> heads_;  // [G]
  size_t tokens_ = 0, steps_ = 0, measured_ = 0;
  Squares sums_;  ///< fading: a comparison counts half after about 22 others
};

}  // namespace pith
