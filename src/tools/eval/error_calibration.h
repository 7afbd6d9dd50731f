#pragma once
// How true the error probe's estimates are: a text runs through the model exactly; in every layer
// caches under a policy, each with a probe of its own seed, and an exact one get the same queries
// and rows; after the steps, each probe's estimate stands beside the true error of the very steps
// that it compared, weighted alike. Cost: a pass, and a step of every cache.

#include <memory>
#include <vector>

#include "pith/session.h"

namespace pith {

struct CalibrationOptions {
  std::vector<Policy> policies;
  size_t prompt = 1024, steps = 512;  ///< tokens read at once, then one at a time
  size_t seeds = 4;                   ///< probes of each policy
  ErrorProbeOptions probe;
  StandaloneOptions session;  ///< threads, seed, chunk, instruction set
};

/// One layer under one policy.
struct CalibrationPoint {
  size_t policy = 0;
  int layer = 0;
  std::vector<double> truth;           // [seeds]: differs if the policy is random
  std::vector<AttentionError> probes;  // [seeds]
};

/// Empty if `progress` (tokens) asked to stop. Throws what KvCache throws.
std::vector<CalibrationPoint> calibrate_error_probe(const Model& model,
                                                    std::span<const int32_t> text,
                                                    const CalibrationOptions& options,
                                                    const Progress& progress = {});

/// Over points and seeds.
struct CalibrationSummary {
  size_t count = 0;
  double truth = 0, estimate = 0;  ///< root mean squares
  double covered = 0;              ///< share of the intervals that hold the truth
  double width = 0;                ///< mean width of the intervals
  double above = 0;                ///< share of the intervals that lie wholly above the truth
};
CalibrationSummary summarise(std::span<const CalibrationPoint> points);

}  // namespace pith
