#pragma once
// What a selector is on the GPU. Its row in methods/registry_cuda.cc makes it.

#include "attend/cuda/device_body.h"
#include "compress/cuda/score_rule.h"
#include "compress/heavy.h"

namespace pith::cuda {

/// One of the first two.
struct SelectorOnGpu {
  std::shared_ptr<const BodyMaker> body;    ///< rows that leave the window go into such bodies
  std::shared_ptr<const ScoreRule> scores;  ///< rows stay where they lie, and the best are kept
  std::optional<HeavySizes> heavy = {};     ///< rows come through a heavy store
};

}  // namespace pith::cuda
