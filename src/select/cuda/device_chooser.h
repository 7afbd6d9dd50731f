#pragma once
// The half of a selector that chooses rows, on the GPU. Its Rule (src/plan) decides when and how
// many, and is the CPU's: the host plans by counts alone. Which rows stay is only on the device.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string_view>

#include "plan/step.h"
#include "select/cuda/candidate_rows.h"
#include "select/cuda/share.h"

namespace pith::cuda {

inline constexpr size_t kMostWeights = 16;  // DeviceChooser::weights()

class DeviceChooser {
 public:
  virtual ~DeviceChooser() = default;
  /// space.kept [G, n] <- the numbers of the n rows that a kSelect or kHalve leaves of `rows`,
  /// ascending. Of a kSelect that heads share: as choose_shared (select/cuda/share.h) says.
  virtual void choose(const SelectSpace& space, const CandidateRows& rows, const Step& step,
                      cudaStream_t stream) const = 0;

  /// Numbers that are kept of the queries that pass, 0 at first; `heads`: of queries.
  virtual size_t state_numbers(size_t /*heads*/, size_t /*dim*/) const { return 0; }
  /// Sees queries before they attend. A token's note [1] is read on the device, so that a graph
  /// stays valid.
  virtual void observe_token(const StepQueries& /*queries*/, const QueryNote* /*note*/,
                             cudaStream_t) const {}
  virtual void observe_chunk(const StepQueries& /*queries*/, const QueryNote& /*note*/,
                             cudaStream_t) const {}
  /// Whether queries attend times a factor of their own (Rule::query_factor): `scaled` [T, H, D]
  /// <- those of a step. As with the functions above, the note is on the device for a token.
  virtual bool scales_queries() const { return false; }
  virtual void scale_token(void* /*scaled*/, const StepQueries& /*queries*/,
                           const QueryNote* /*note*/, cudaStream_t) const {}
  virtual void scale_chunk(void* /*scaled*/, const StepQueries& /*queries*/,
                           const QueryNote& /*note*/, cudaStream_t) const {}

  /// Whether choose() looks at keys or values.
  virtual bool reads_rows() const { return true; }
  /// Not empty: choose() looks at keys alone, each head's apart, and choosers of one such name do
  /// so equally: heads of many layers may be selected as those of one, which has no values, no
  /// positions and nothing else beside its rows.
  virtual std::string_view by_keys_alone() const { return {}; }
  /// The rows that stay of those that join do not depend on the time of the selection: it may be
  /// later.
  virtual bool any_time() const { return false; }
  /// A factor on the mass of rows that stay, at each selection.
  virtual float mass_kept() const { return 1; }

  /// How many runs of rows of one weight other than 1 the body can have (RowRun::weighted): their
  /// number of spans never changes.
  virtual size_t weights() const { return 0; }
  /// A row that stands for w others has the log-weight ln w times this.
  virtual float weight_exponent() const { return 1; }
  /// Whether the rows that a selection left have a weight each, which follows from counts: it is
  /// the same in all heads. choose() then reads CandidateRows::log_weights of the rows selected
  /// from before and writes those of what stays. They count as one of weights().
  virtual bool weighs_rows() const { return false; }

  /// Whether rows are ever settled: the body's oldest, of one weight, that are never selected
  /// again. Then any codec may store those; of others rows must be codes that move alone.
  virtual bool settles() const { return false; }
  virtual size_t settled(const PlanState& /*state*/) const { return 0; }
};

/// Choosers that give each row a number and keep the rows with the largest.
class BestRows : public DeviceChooser {
 public:
  void choose(const SelectSpace& space, const CandidateRows& rows, const Step& step,
              cudaStream_t stream) const final {
    score(space, rows, stream);
    const auto keep = static_cast<int>(step.keep), least = static_cast<int>(step.least);
    if (step.shared)
      choose_shared(space, rows, {keep * rows.heads, least}, stream);
    else
      choose_rows(space, rows.heads, rows.rows, keep, stream);
  }

 private:
  /// space.keys <- a number for each row (key_of in order_key.cuh makes it).
  virtual void score(const SelectSpace& space, const CandidateRows& rows,
                     cudaStream_t stream) const = 0;
};

}  // namespace pith::cuda
