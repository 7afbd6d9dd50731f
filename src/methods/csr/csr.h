#pragma once
// CSR (Zhang et al. 2024): a row is a sum of few atoms of a dictionary, stored as pairs of a 16-bit
// index and an f16 coefficient: 32 pairs / D bits a channel. Keys are coded before RoPE. Scores
// rebuild a key from its pairs; values are never rebuilt: probabilities are summed over atoms, and
// the sums expanded once a step.

#include "compress/coded_rows.h"
#include "compress/registry.h"

namespace pith {

struct CsrFormat;

CodecRow csr_row();

/// The parameters of `csr`, but for the dictionary.
CsrFormat csr_format(const Parameters& parameters, Side side);

}  // namespace pith
