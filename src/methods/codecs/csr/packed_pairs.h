#pragma once
// Pairs of 16 bits in the place of 32: an index of as many bits as the atoms ask for, and in the
// rest a signed coefficient in steps of a scale that all pairs of the row share. Half of a 32-bit
// pair says what a row of head_dim 64 cannot pay for: the index has 8 bits too many at 256 atoms,
// and the coefficient more precision than the residual, which is a fifth of the row.

#include <cstddef>
#include <cstdint>

namespace pith {

class PackedPairs {
 public:
  static constexpr size_t kMostAtoms = 4096;  ///< leave 4 bits to the coefficient

  /// For indices below `atoms`, at least 1 and at most kMostAtoms.
  explicit PackedPairs(size_t atoms);

  uint32_t index_of(uint16_t code) const { return code & ((1u << index_bits_) - 1); }
  int index_bits() const { return index_bits_; }
  /// The largest coefficient, in steps.
  int most() const { return (1 << (15 - index_bits_)) - 1; }
  /// codes [pairs] <- a row's pairs, whose coefficients are finite f16. Returns its scale, f16.
  uint16_t pack(uint16_t* codes, const uint16_t* indices, const uint16_t* coefficients,
                size_t pairs) const;
  /// indices, coefficients (f16) [rows, pairs] <- codes [rows, pairs], scales [rows].
  void unpack(uint16_t* indices, uint16_t* coefficients, const uint16_t* codes,
              const uint16_t* scales, size_t pairs, size_t rows) const;

 private:
  int index_bits_;
};

}  // namespace pith
