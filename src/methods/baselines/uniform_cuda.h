#pragma once
// The uniform sample's keys on the GPU.

#include "compress/cuda/score_rule.h"

namespace pith::cuda {

/// Keys that fall with each row's random word: the rows with the smallest words stay. Words are
/// compared by their upper 32 bits.
struct WordSource {
  uint64_t seed = 0;
  uint32_t layer = 0;
};
void score_words(const SelectSpace& space, const JudgedRows& rows, const WordSource& source,
                 cudaStream_t stream);

}  // namespace pith::cuda
