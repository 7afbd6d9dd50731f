#pragma once
// The run-time estimate of a policy's attention error.
// How it is made and when to trust it: docs/error_probe.md.

#include <cstddef>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

struct ErrorProbeOptions {
  size_t rows = 0;       ///< sampled exact rows per layer and KV head; 0 = no probe
  size_t every = 16;     ///< decode steps between comparisons
  double max_error = 0;  ///< generation stops when a layer's interval is above it; 0 = no limit
};

/// |policy - exact| / |exact| of one layer's attention output over its recent comparisons. It is
/// estimated from a sample of the exact rows; [low, high] is a 95% interval.
struct AttentionError {
  int layer = 0;
  size_t steps = 0;  ///< comparisons made; 0: no estimate yet
  double estimate = 0, low = 0, high = 0;
};

}  // namespace pith

#pragma GCC visibility pop
