#pragma once
// The error probe of one layer on the CPU: the sample's rows in f16, and what ErrorProbe asks of
// the cache's spans. Cost of a probed step: one more attention over what is held, two if it is
// coded.

#include <memory>
#include <span>
#include <vector>

#include "attend/attend.h"
#include "probe/error_probe.h"

namespace pith {

/// The state of a probed step.
struct ProbedStep {
  const float* q = nullptr;                  // [H, D], as the model made it
  const float* k = nullptr;                  // [G, D], the step's own row
  const float* v = nullptr;                  // [G, D]
  const float* policy = nullptr;             // [H, D], the policy's answer
  std::span<const std::vector<Span>> spans;  ///< [G] what the cache holds
  const Rope* rope = nullptr;
};

class HostProbe {
 public:
  HostProbe(const Context& context, const AttentionShape& shape, const ErrorProbeSite& site,
            size_t every);

  /// New rows of all KV heads, k and v [T, G, D].
  void append(const float* k, const float* v, size_t tokens);
  /// That its rows take after `tokens` tokens.
  size_t most_bytes(size_t tokens) const;
  /// After so many tokens; loading: into a probe that has seen none.
  void archive(Archive& a, size_t tokens);
  bool due() { return probe_.due(); }
  void measure(const ProbedStep& step);
  AttentionError result() const { return probe_.result(); }

 private:
  struct Rows {
    explicit Rows(const Context& context)
        : k(context.memory, MemoryKind::kProbe), v(context.memory, MemoryKind::kProbe) {}
    Array<uint16_t> k, v;  // [<= kFirst + m, D] f16
  };
  struct Comparison;

  /// Where the sample's rows are held, and keys [m, D] and values of those that are.
  void find_held(size_t g, std::span<const Span> spans, const Rope* rope, std::vector<float>& keys,
                 ProbedHead& head) const;
  /// Fills `head` and returns its coded rows.
  std::unique_ptr<CodedSpans> describe_head(size_t g, const ProbedStep& step,
                                            const Comparison& comparison, ProbedHead& head) const;

  Context context_;
  AttentionShape shape_;
  ErrorProbe probe_;
  std::vector<Rows> rows_;  // [G]
};

}  // namespace pith
