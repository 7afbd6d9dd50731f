#pragma once
// The rate of the machine's memory, and the share that attention reaches.

#include <functional>
#include <vector>

#include "cache/kv_cache.h"
#include "pith/model.h"

namespace pith {

/// Asks whether to stop: measurements end early then.
using Stopped = std::function<bool()>;

/// Uniform numbers of mean 0 and variance 1, a function of the seed and their place.
void fill_random(std::vector<float>& x, uint64_t seed);

/// Bytes per second at which the pool's threads read a buffer far larger than the caches: the
/// median of some passes.
double read_bandwidth(const Context& context, const Stopped& stopped);

/// One query token's attention over all layers of a cache, decode's way.
struct AttentionSpeed {
  double seconds = 0;  ///< median of a step through all layers
  double bytes = 0;    ///< payload that the step reads
  double bytes_per_second() const { return bytes / seconds; }
};

/// Fills a cache of the model's shape with `depth` random rows under the policy and times it.
AttentionSpeed attention_speed(const Context& context, const ModelConfig& config,
                               const Policy& policy, size_t depth, const Stopped& stopped);

/// The middle of the values, and the smallest and largest beside it.
struct Median {
  double value = 0, least = 0, most = 0;
};
Median median(std::vector<double> values);

}  // namespace pith
