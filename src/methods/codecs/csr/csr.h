#pragma once
// CSR (Zhang et al. 2024): a row is a sum of few atoms of a dictionary, stored as pairs of a 16-bit
// index and an f16 coefficient, 32 pairs / D bits per channel, or of both in 16 bits. Keys are
// coded before RoPE. Scores rebuild a key from its pairs; values are never rebuilt: probabilities
// are summed over atoms, and the sums expanded once a step.

#include "methods/codecs/csr/pursuit.h"
#include "policy/registry.h"
#include "rows/cpu/coded_rows.h"

namespace pith {

struct CsrFormat;

struct CsrOptions {
  enum class Rope : uint8_t { kPre, kPost };
  enum class Draw : uint8_t { kRows, kKmeans };
  size_t pairs = 8;
  std::optional<size_t> chunks;
  Solver solver = Solver::kMp;
  Rope rope = Rope::kPre;
  std::optional<std::string> dictionary;
  size_t online = 256;
  Draw draw = Draw::kRows;
  std::optional<size_t> collect;
  double outliers = 1;
  int pair_bits = 32;

  Fields fields();
  /// Throws kInvalidArgument.
  void check(const std::string& method) const;
  /// But for the dictionary.
  CsrFormat format(Side side) const;
};

}  // namespace pith
