#pragma once
// What a selector is on the GPU. Its registry row makes it (SelectorRow::make_on_gpu).

#include "attend/cuda/device_body.h"
#include "compress/cuda/score_rule.h"

namespace pith {
class Parameters;
}

namespace pith::cuda {

/// One of the two.
struct SelectorOnGpu {
  std::shared_ptr<const BodyMaker> body;    ///< rows that leave the window go into such bodies
  std::shared_ptr<const ScoreRule> scores;  ///< rows stay where they lie, and the best are kept
};

/// Throws kUnsupported if the parameters ask for heavy rows (compress/heavy.h).
void refuse_heavy_on_gpu(const Parameters& parameters);

}  // namespace pith::cuda
