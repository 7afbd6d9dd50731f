#pragma once
// The attention error of one layer while it runs, from a sample of exact rows kept aside
// (probe_sample.h). This is the estimate alone, for every device; ProbedHead is its view of a
// cache.
//
// At a probed decode step the sums over all rows, sum e^s (v, 1), are estimated: those over what
// the cache holds, each row with weight 1, are known; the first rows that were evicted are added,
// and n/m times the evicted rows of the sample. So rows that the cache holds add no noise. The
// error of coding is coding_error.h's; both errors' squares are added.
//
// The estimate o of the exact answer is noisy, so that |policy - o|^2 is too large by o's variance
// V. V is taken from 16 random groups of the sample, and subtracted. Leaving out one group at a
// time gives the standard error of the final ratio over all heads and steps: the same rows serve
// all steps, so errors of different steps are not independent, but groups are.
//
// Cost of a probed step: m rows per head, and what ProbedHead takes.

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "kernels/context.h"
#include "pith/attention_error.h"
#include "probe/coding_error.h"
#include "probe/probe_sample.h"

namespace pith {

/// One KV head at a probed step. "Rows held" are what the cache holds and the step's own row.
struct ProbedHead {
  std::vector<float> known;       // [group, D] the answer over all rows held, each with weight 1
  std::vector<float> log_sum;     // [group] of its softmax
  std::span<const float> policy;  // [group, D] the policy's answer
  // Of the sample's rows:
  static constexpr int32_t kGone = -1, kDense = -2;
  std::vector<int32_t> span;  // [m] number of the coded span that holds it, or one of those
  std::vector<float> own;     // [group, m] exact scores
  std::vector<float> values;  // [m, D] exact
  std::vector<float> stored;  // [group, m] scores as the cache holds them; of coded rows
  std::vector<float> back;    // [m, D] values likewise
};

/// The arguments of an error probe.
struct ErrorProbeSite {
  ProbeSampleSite sample;
  size_t group = 0, dim = 0;  ///< query heads of a KV head, D
};

class ErrorProbe {
 public:
  static constexpr size_t kGroups = ProbeSample::kGroups, kFirst = ProbeSample::kFirst;

  ErrorProbe(MemoryCounter& memory, const ErrorProbeSite& site, size_t every);

  ProbeSample& sample() { return sample_; }
  const ProbeSample& sample() const { return sample_; }
  /// Counts a decode step; true if it is one to measure.
  bool due() { return steps_++ % every_ == 0; }
  /// Whether the sample can tell anything yet.
  bool ready() const { return sample_.tokens() >= 2 * kGroups; }
  /// Adds a comparison of all KV heads with the sample as it was at that step: of(g, head) gives
  /// what is known of one, and its coded rows. Heads go side by side. Meanwhile other threads may
  /// append, and count steps.
  template <class F>
  void measure(const Context& context, const ProbeSample& sample, const F& of) {
    std::vector<std::optional<Squares>> heads(sample.kv_heads());
    context.pool.parallel_for(heads.size(), [&](size_t g, int) {
      ProbedHead head;
      const auto coded = of(g, head);
      const Sampled at{sample.rows(g), sample.drawn(), sample.open_to_draw()};
      heads[g] = compare_head(context.kernels, at, head, *coded);
    });
    add(heads);
  }
  AttentionError result() const;
  /// After so many tokens.
  void archive(Archive& a, size_t tokens);

 private:
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
    void add(const Squares& other);
    void archive(Archive& a);
  };

  /// One head's sample.
  struct Sampled {
    std::span<const ProbeSample::Row> rows;  // [m]
    double drawn, open_to_draw;              // ProbeSample's
  };
  QuerySums query_sums(const Sampled& sample, const ProbedHead& head, size_t query) const;
  CodingSample coding_sample(const Sampled& sample, const ProbedHead& head) const;
  /// One KV head's comparison; nothing if the sample says nothing of the rows that are coded.
  std::optional<Squares> compare_head(const Kernels& kernels, const Sampled& sample,
                                      const ProbedHead& head, const CodedSpans& coded) const;
  void add(std::span<const std::optional<Squares>> heads);
  /// o without group `b` (kGroups: with all), [D]; returns its sum of weights.
  static double answer_without(std::vector<double>& answer, const Sampled& sample,
                               const QuerySums& sums, size_t b);
  void compare(Squares& squares, const Sampled& sample, const QuerySums& sums,
               const float* policy) const;

  int layer_;
  size_t group_, dim_, every_;
  ProbeSample sample_;
  size_t steps_ = 0, measured_ = 0;
  Squares sums_;  ///< fading: a comparison counts half after about 22 others
};

/// Throws kInvalidArgument for options that say nothing.
void check_error_probe(const ErrorProbeOptions& options);
/// Throws kUnsupported: such a policy has no attention error.
[[noreturn]] void refuse_cache_positions();
/// And for soft-capped attention and for sink logits.
[[noreturn]] void refuse_variant();

}  // namespace pith
