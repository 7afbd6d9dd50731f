#pragma once
// uniform on the GPU: keys of rows for uniform(budget=...), and the body of uniform(rate=...),
// whose parts are in uniform_rate_cuda.h.

#include "methods/device_selector.h"
#include "methods/selectors/uniform/uniform.h"

namespace pith::cuda {

/// Keys that fall with each row's random word: the rows with the smallest words stay. Words are
/// compared by their upper 32 bits.
struct WordSource {
  uint64_t seed = 0;
  uint32_t layer = 0, first_head = 0;
};
void score_words(const SelectSpace& space, const CandidateRows& rows, const WordSource& source,
                 cudaStream_t stream);

/// The body of uniform(rate=...).
BodyMaker make_rate_body(const UniformOptions& options, const SelectorSite& site);

}  // namespace pith::cuda
