#pragma once
// CSR (Zhang et al. 2024): a row is a sum of few atoms of a dictionary, stored as pairs of a 16-bit
// index and an f16 coefficient: 32 pairs / D bits a channel. Keys are coded before RoPE. Scores
// rebuild a key from its pairs; values are never rebuilt: probabilities are summed over atoms, and
// the sums expanded once a step.

#include "compress/registry.h"

namespace pith {

CodecRow csr_row();

}  // namespace pith
