#pragma once
// The run-time estimate of a policy's attention error. What it is and when to trust it:
// docs/error_probe.md.

#include <cstddef>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

struct ErrorProbeOptions {
  size_t rows = 0;       ///< exact rows kept aside for each layer and KV head; 0 = no probe
  size_t every = 16;     ///< decode steps from one comparison to the next
  double max_error = 0;  ///< generation stops when a layer is surely above it; 0 = no limit
};

/// |policy - exact| / |exact| of one layer's attention over its recent comparisons, as estimated
/// from a sample of the exact rows, with a 95% interval for what the sample leaves open.
struct AttentionError {
  int layer = 0;
  size_t steps = 0;  ///< comparisons made; 0: nothing is known
  double estimate = 0, low = 0, high = 0;
};

}  // namespace pith

#pragma GCC visibility pop
